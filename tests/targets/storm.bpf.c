/* A program that must not be entered again: what it keeps per CPU is not changed at once. */
#include "bpf.h"

long hits = 0;

MAP(scratch, PERCPU_ARRAY, __u32, __u64[64], 1);

SEC("uprobe/probed:ticked")
int on_tick(struct pt_regs *ctx)
{
    __u32 zero = 0;
    __u64 *words = bpf_map_lookup_elem(&scratch, &zero);
    __u64 before;

    if (!words)
        return 0;
    before = words[0];
    for (int i = 1; i < 64; i++)
        words[i] = before + i;
    words[0] = before + 1;
    __sync_fetch_and_add(&hits, 1);
    return 0;
}
