/* Programs that change what the program does: registers, and where it goes on. */
#include "bpf.h"

SEC("?uprobe")
int argument(struct pt_regs *ctx)
{
    ctx->rdi = 5;
    return 0;
}

SEC("?uprobe")
int result_low(struct pt_regs *ctx)
{
    *(__u32 *)&ctx->rax = 1000;
    return 0;
}

SEC("?uprobe")
int kept(struct pt_regs *ctx)
{
    ctx->rbx = 50;
    return 0;
}

/* The instruction at the probe has six bytes. */
SEC("?uprobe")
int skip(struct pt_regs *ctx)
{
    ctx->rax = 100;
    ctx->rip += 6;
    return 0;
}

SEC("?uretprobe")
int result(struct pt_regs *ctx)
{
    ctx->rax = 77;
    return 0;
}

SEC("?uretprobe")
int nowhere(struct pt_regs *ctx)
{
    ctx->rip = 0;
    return 0;
}
