#include "bpf.h"

/* The function gets its argument in this register in 32-bit code, too. */
SEC("uprobe/probed:allowed")
int deny(struct pt_regs *ctx)
{
    if ((int)ctx->rdi == 7)
        bpf_override_return(ctx, 42);
    return 0;
}
