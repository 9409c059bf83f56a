/* A loop that calls a function, and lines. */
#include "bpf.h"

long sum = 0, rounds = 0;

static int each(__u32 index, void *context)
{
    *(long *)context += index;
    return index == 3;
}

SEC("uprobe/probed:other_job")
int BPF_KPROBE(on_other_job, long n)
{
    long here = 0;

    __sync_fetch_and_add(&rounds, bpf_loop(n, each, &here, 0));
    __sync_fetch_and_add(&sum, here);
    return 0;
}

SEC("uprobe/probed:allowed")
int BPF_KPROBE(say, int uid)
{
    bpf_printk("allowed(%d) of %x", uid, 255);
    return 0;
}
