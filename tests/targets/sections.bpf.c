/* All kinds of sections. */
#include "bpf.h"

long entries = 0, returns = 0, returned = 0, many = 0, many_returns = 0, by_hand = 0, inner = 0;

SEC("uprobe/probed:job")
int BPF_KPROBE(entry, long n, const char *name)
{
    __sync_fetch_and_add(&entries, 1);
    return 0;
}

SEC("uretprobe/probed:job")
int BPF_KRETPROBE(leave, long value)
{
    __sync_fetch_and_add(&returns, 1);
    __sync_fetch_and_add(&returned, value);
    return 0;
}

SEC("uprobe.multi/probed:*job")
int multi(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&many, 1);
    return 0;
}

SEC("uretprobe.multi/probed:*job")
int multi_return(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&many_returns, 1);
    return 0;
}

SEC("kprobe")
int hand(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&by_hand, 1);
    return 0;
}

SEC("uprobe/probed:job+0")
int offset(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&inner, 1);
    return 0;
}
