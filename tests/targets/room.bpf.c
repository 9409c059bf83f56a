/* Needs more stack than a goroutine may have left. */
#include "bpf.h"

MAP(seen, LRU_HASH, __u64[55], __u64, 64);

__u64 runs = 0;

SEC("uprobe/grow:main.grow")
int on_call(struct pt_regs *ctx)
{
    __u64 key[55], one = 1;

    bpf_probe_read_user(key, sizeof(key), (void *)PT_REGS_SP(ctx));
    bpf_map_update_elem(&seen, key, &one, BPF_ANY);
    __sync_fetch_and_add(&runs, 1);
    return 0;
}
