#include "bpf.h"

SEC("uprobe/probed:allowed")
int BPF_KPROBE(deny, int uid)
{
    if (uid == 7)
        bpf_override_return(ctx, 42);
    return 0;
}
