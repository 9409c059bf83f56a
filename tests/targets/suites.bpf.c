/* Programs for what the kernel's own tests assert; where they are attached is said on the command line. */
#include "bpf.h"
#include <bpf/usdt.bpf.h>

long entered, returned, both, only_entered;

#define COUNT(section, name, counter, result)                                                                          \
    SEC(section) int name(struct pt_regs *ctx)                                                                         \
    {                                                                                                                  \
        __sync_fetch_and_add(&counter, 1);                                                                             \
        return result;                                                                                                 \
    }
COUNT("?uprobe", on_entry, entered, 0)
COUNT("?uretprobe", on_return, returned, 0)
COUNT("?uprobe.session", on_both, both, 0)
COUNT("?uprobe.session", on_entry_only, only_entered, 1)

long fired, fired_sum;

SEC("?usdt") int BPF_USDT(on_usdt, long n)
{
    fired++;
    fired_sum += n;
    return 0;
}

/* Long, and not to be entered again: what is kept per CPU is not changed at once. */
MAP(scratch, PERCPU_ARRAY, __u32, __u64[64], 2);

static int alone(__u32 key)
{
    __u64 *words = bpf_map_lookup_elem(&scratch, &key);

    if (words) {
        __u64 before = words[0];

        for (int i = 1; i < 64; i++)
            words[i] = before + i;
        words[0] = before + 1;
    }
    return 0;
}

SEC("?uprobe") int alone_entry(struct pt_regs *ctx) { return alone(0); }
SEC("?uretprobe") int alone_return(struct pt_regs *ctx) { return alone(1); }
SEC("?uprobe.session") int alone_both(struct pt_regs *ctx) { return alone(0); }

unsigned long entry_stack[4], return_stack[4];
unsigned long entry_ip, return_ip, entry_func, return_func, behind_func;

SEC("?uprobe") int entry_look(struct pt_regs *ctx)
{
    bpf_get_stack(ctx, entry_stack, sizeof entry_stack, BPF_F_USER_STACK);
    entry_ip = PT_REGS_IP(ctx);
    entry_func = bpf_get_func_ip(ctx);
    return 0;
}

SEC("?uretprobe") int return_look(struct pt_regs *ctx)
{
    bpf_get_stack(ctx, return_stack, sizeof return_stack, BPF_F_USER_STACK);
    return_ip = PT_REGS_IP(ctx);
    return_func = bpf_get_func_ip(ctx);
    return 0;
}

unsigned long at_return[21];

SEC("?uretprobe") int words_back(struct pt_regs *ctx)
{
    at_return[0] = ctx->r15, at_return[1] = ctx->r14, at_return[2] = ctx->r13, at_return[3] = ctx->r12;
    at_return[4] = ctx->rbp, at_return[5] = ctx->rbx, at_return[6] = ctx->r11, at_return[7] = ctx->r10;
    at_return[8] = ctx->r9, at_return[9] = ctx->r8, at_return[10] = ctx->rax, at_return[11] = ctx->rcx;
    at_return[12] = ctx->rdx, at_return[13] = ctx->rsi, at_return[14] = ctx->rdi, at_return[15] = ctx->orig_rax;
    at_return[16] = ctx->rip, at_return[17] = ctx->cs, at_return[18] = ctx->eflags, at_return[19] = ctx->rsp;
    at_return[20] = ctx->ss;
    return 0;
}

/* The same program at both ends. */
unsigned long both_ips[2], both_stacks[2][4];
long both_runs;

SEC("?uprobe.session") int both_look(struct pt_regs *ctx)
{
    int at = both_runs++ & 1;

    both_ips[at] = PT_REGS_IP(ctx);
    bpf_get_stack(ctx, both_stacks[at], sizeof both_stacks[0], BPF_F_USER_STACK);
    return 0;
}

/* What is seen before an instruction and behind one, all hits together. */
unsigned long before_sum[21], behind_sum[21], behind_last[21];
long before_hits, behind_hits;

#define ADD(to)                                                                                                        \
    to[0] += ctx->r15, to[1] += ctx->r14, to[2] += ctx->r13, to[3] += ctx->r12, to[4] += ctx->rbp,                     \
    to[5] += ctx->rbx, to[6] += ctx->r11, to[7] += ctx->r10, to[8] += ctx->r9, to[9] += ctx->r8, to[10] += ctx->rax,   \
    to[11] += ctx->rcx, to[12] += ctx->rdx, to[13] += ctx->rsi, to[14] += ctx->rdi, to[15] += ctx->orig_rax,           \
    to[16] += ctx->rip, to[17] += ctx->cs, to[18] += ctx->eflags, to[19] += ctx->rsp, to[20] += ctx->ss

SEC("?uprobe") int before(struct pt_regs *ctx)
{
    before_hits++;
    ADD(before_sum);
    return 0;
}

SEC("?uprobe.post") int behind(struct pt_regs *ctx)
{
    behind_hits++;
    ADD(behind_sum);
    __builtin_memset(behind_last, 0, sizeof behind_last);
    ADD(behind_last);
    behind_func = bpf_get_func_ip(ctx);
    return 0;
}

/* Small: parts of the detour. */
unsigned long behind_rax, behind_rip;
COUNT("?uprobe.post", count_behind, behind_hits, 0)
SEC("?uprobe.post") int add_rax(struct pt_regs *ctx) { __sync_fetch_and_add(&behind_rax, ctx->rax); return 0; }
SEC("?uprobe.post") int add_rip(struct pt_regs *ctx) { __sync_fetch_and_add(&behind_rip, ctx->rip); return 0; }

SEC("?uprobe.post") int change_rbx(struct pt_regs *ctx) { ctx->rbx += 1000; return 0; }
/* Not the next instruction, which has four bytes. */
SEC("?uprobe.post") int skip_four(struct pt_regs *ctx) { ctx->rip += 4; return 0; }

/* Every general register but the stack pointer becomes its complement. */
SEC("?uprobe") int change_all(struct pt_regs *ctx)
{
    ctx->r15 = ~ctx->r15, ctx->r14 = ~ctx->r14, ctx->r13 = ~ctx->r13, ctx->r12 = ~ctx->r12;
    ctx->rbp = ~ctx->rbp, ctx->rbx = ~ctx->rbx, ctx->r11 = ~ctx->r11, ctx->r10 = ~ctx->r10;
    ctx->r9 = ~ctx->r9, ctx->r8 = ~ctx->r8, ctx->rax = ~ctx->rax, ctx->rcx = ~ctx->rcx;
    ctx->rdx = ~ctx->rdx, ctx->rsi = ~ctx->rsi, ctx->rdi = ~ctx->rdi;
    return 0;
}
