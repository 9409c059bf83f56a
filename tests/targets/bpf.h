/* What programs for libbpf begin with. */
#pragma once
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#ifdef TARGET_I386 /* of such a program, all arguments are on the stack */
static __always_inline unsigned long stack_argument(const struct pt_regs *ctx, int n)
{
    __u32 word = 0;

    bpf_probe_read_user(&word, sizeof word, (void *)(PT_REGS_SP(ctx) + 4 * n));
    return word;
}
#undef PT_REGS_PARM1
#undef PT_REGS_PARM2
#undef PT_REGS_PARM3
#undef PT_REGS_PARM4
#undef PT_REGS_PARM5
#define PT_REGS_PARM1(ctx) stack_argument(ctx, 1)
#define PT_REGS_PARM2(ctx) stack_argument(ctx, 2)
#define PT_REGS_PARM3(ctx) stack_argument(ctx, 3)
#define PT_REGS_PARM4(ctx) stack_argument(ctx, 4)
#define PT_REGS_PARM5(ctx) stack_argument(ctx, 5)
#endif

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define MAP(name, kind, key_type, value_type, entries)                                                                 \
    struct {                                                                                                           \
        __uint(type, BPF_MAP_TYPE_##kind);                                                                             \
        __uint(max_entries, entries);                                                                                  \
        __type(key, key_type);                                                                                         \
        __type(value, value_type);                                                                                     \
    } name SEC(".maps")
