#include "bpf.h"

MAP(counts, HASH, __u32, __u64, 8);

SEC("uprobe/probed:job")
int careless(struct pt_regs *ctx)
{
    __u32 key = 1;
    __u64 *value = bpf_map_lookup_elem(&counts, &key);
    *value += 1;
    return 0;
}
