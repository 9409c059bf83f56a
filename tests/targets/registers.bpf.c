/* Programs of all kinds that look at the registers of a site; where they are attached is said on the command line. */
#include "bpf.h"

#define ANYWHERE SEC("uprobe/registers:elsewhere")

unsigned long seen[21], copied[21], chosen[21];
unsigned long sum_rdi, sum_rax, sum_r11, sum_rcx, sum_rsp, sum_rip, sum_eflags;
long timed, stopped, walked, entries;

MAP(by_site, HASH, __u64, __u64, 8);

struct {
    __uint(type, BPF_MAP_TYPE_STACK_TRACE);
    __uint(max_entries, 64);
    __uint(key_size, 4);
    __uint(value_size, 127 * 8);
} stacks SEC(".maps");

/* Small and without stores: parts of the detour. */
#define SUM(reg)                                                                                                       \
    ANYWHERE int add_##reg(struct pt_regs *ctx)                                                                        \
    {                                                                                                                  \
        __sync_fetch_and_add(&sum_##reg, ctx->reg);                                                                    \
        return 0;                                                                                                      \
    }
SUM(rdi) SUM(rax) SUM(r11) SUM(rcx) SUM(rsp) SUM(rip)

ANYWHERE int timer(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&timed, bpf_ktime_get_ns() != 0);
    return 0;
}

/* Flags are no part of a detour. */
SUM(eflags)

/* Filters: one that never lets anything pass, and one that nearly always does. */
ANYWHERE int stop(struct pt_regs *ctx)
{
    if (ctx->rdi != 1 || ctx->rcx != 2)
        return 0;
    stopped += bpf_get_prandom_u32();
    return 0;
}

#define KEEP(to)                                                                                                       \
    to[0] = ctx->r15, to[1] = ctx->r14, to[2] = ctx->r13, to[3] = ctx->r12, to[4] = ctx->rbp, to[5] = ctx->rbx,        \
    to[6] = ctx->r11, to[7] = ctx->r10, to[8] = ctx->r9, to[9] = ctx->r8, to[10] = ctx->rax, to[11] = ctx->rcx,        \
    to[12] = ctx->rdx, to[13] = ctx->rsi, to[14] = ctx->rdi, to[15] = ctx->orig_rax, to[16] = ctx->rip,                \
    to[17] = ctx->cs, to[18] = ctx->eflags, to[19] = ctx->rsp, to[20] = ctx->ss

ANYWHERE int go(struct pt_regs *ctx)
{
    if (ctx->rdi + ctx->rsi * 3 == 5)
        return 0;
    KEEP(chosen);
    return 0;
}

ANYWHERE int walk(struct pt_regs *ctx)
{
    int id = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK);

    if (id >= 0)
        __sync_fetch_and_add(&walked, 1);
    return 0;
}

/* Runs alone, and calls helpers that write. */
ANYWHERE int alone(struct pt_regs *ctx)
{
    __u64 key = 1, one = 1, *value = bpf_map_lookup_elem(&by_site, &key);

    entries++;
    if (value)
        *value += 1;
    else
        bpf_map_update_elem(&by_site, &key, &one, BPF_ANY);
    return 0;
}

/* The context as memory. */
ANYWHERE int copy(struct pt_regs *ctx)
{
    bpf_probe_read_kernel(copied, sizeof copied, ctx);
    return 0;
}

ANYWHERE int words(struct pt_regs *ctx)
{
    KEEP(seen);
    return 0;
}
