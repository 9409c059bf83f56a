/* Handlers with the signatures of the functions, as users of libbpf write them. */
#include "bpf.h"

/* As libbpf has them since 1.2. */
#ifndef BPF_UPROBE
#define BPF_UPROBE(name, args...) BPF_KPROBE(name, ##args)
#define BPF_URETPROBE(name, args...) BPF_KRETPROBE(name, ##args)
#endif

/* `long`, addresses, the sixth and the seventh argument of the functions. */
#ifdef TARGET_I386
typedef int word;
typedef unsigned address;
#define SIXTH(ctx) stack_argument(ctx, 6)
#define SEVENTH(ctx) stack_argument(ctx, 7)
#else
typedef long word;
typedef unsigned long address;
#endif
#ifdef __TARGET_ARCH_arm64
#define SIXTH(ctx) (((const struct user_pt_regs *)(ctx))->regs[5])
#define SEVENTH(ctx) (((const struct user_pt_regs *)(ctx))->regs[6])
#elif !defined(TARGET_I386)
#define SIXTH(ctx) ((ctx)->r9)
#define SEVENTH(ctx) behind_return_address(ctx)

static __always_inline word behind_return_address(const struct pt_regs *ctx)
{
    word seventh = 0;

    bpf_probe_read_user(&seventh, sizeof seventh, (void *)(PT_REGS_SP(ctx) + 8));
    return seventh;
}
#endif

struct item {
    int id;
    short kind;
    char name[10];
    word weights[3];
    address next;
};

long calls, wrong;
long a_sum, b_sum, c_sum, d_sum, e_sum, weights, ids, kinds, results, eights;
char text[8], name[10], of_second[10];

SEC("uprobe/typed:add")
int BPF_UPROBE(on_add, int a, char *at, word b, unsigned char c, short d)
{
    unsigned e = SIXTH(ctx);

    calls++;
    a_sum += a, b_sum += b, c_sum += c, d_sum += d, e_sum += e;
    wrong += bpf_probe_read_user_str(text, sizeof text, at) != 7;
    return 0;
}

SEC("uretprobe/typed:add")
int BPF_URETPROBE(add_done, int result)
{
    results += result;
    return 0;
}

SEC("uprobe/typed:weigh")
int BPF_UPROBE(on_weigh, const struct item *item, int which)
{
    struct item copy, next;

    if (bpf_probe_read_user(&copy, sizeof copy, item) || bpf_probe_read_user(&next, sizeof next, (void *)(unsigned long)copy.next)) {
        wrong++;
        return 0;
    }
    ids += copy.id;
    kinds += copy.kind;
    if (which >= 0 && which < 3)
        weights += copy.weights[which];
    __builtin_memcpy(of_second, next.name, sizeof of_second);
    return 0;
}

SEC("uretprobe/typed:name_of")
int BPF_URETPROBE(named, const char *result)
{
    wrong += bpf_probe_read_user_str(name, sizeof name, result) != 6;
    return 0;
}

/* What is on the stack is not in the context. */
SEC("uprobe/typed:eight")
int BPF_UPROBE(on_eight, word a, word b, word c, word d, word e)
{
    word f = SIXTH(ctx);

    eights += a + 10 * b + 100 * c + 1000 * d + 10000 * e + 100000 * f + (int)SEVENTH(ctx);
    return 0;
}

SEC("uprobe/typed:nothing")
int BPF_UPROBE(on_nothing)
{
    calls++;
    return 0;
}

/* Numbers with a point, which sidestep has behind the registers and the cookie: no float leaves clang for eBPF. */
#ifdef __TARGET_ARCH_arm64
#define FLOATS 35
#else
#define FLOATS 22
#endif
unsigned long xmm[8], result;

SEC("?uprobe")
int on_mixed(struct pt_regs *ctx)
{
    __u64 *words = (__u64 *)ctx + FLOATS;

    xmm[0] = words[0], xmm[1] = words[1], xmm[2] = words[2], xmm[3] = words[3];
    xmm[4] = words[4], xmm[5] = words[5], xmm[6] = words[6], xmm[7] = words[7];
    return 0;
}

SEC("?uretprobe")
int mixed_done(struct pt_regs *ctx)
{
    result = ((__u64 *)ctx)[FLOATS];
    return 0;
}
