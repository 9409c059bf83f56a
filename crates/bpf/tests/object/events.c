// Records in a ring, strings of the target, constant text, a callback, and sections for all kinds of probes.
#include "bpf.h"
struct event {
    u64 ns;
    u32 pid;
    u32 len;
    u8 comm[16];
    u8 text[64];
};
struct {
    __uint(type, RING);
    __uint(max_entries, 100000);
} ring SEC(".maps");

static noinline int fill(struct event *e, const void *text)
{
    e->ns = ktime_get_ns();
    e->pid = get_current_pid_tgid() >> 32;
    get_current_comm(e->comm, sizeof(e->comm));
    long len = probe_read_user_str(e->text, sizeof(e->text), text);
    if (len < 0)
        return 0;
    e->len = len;
    return 1;
}

SEC("uprobe.multi/libc:str*") int on_string(struct pt_regs *ctx)
{
    struct event *e = ringbuf_reserve(&ring, sizeof(*e), 0);
    if (!e)
        return 0;
    fill(e, (void *)ctx->di);
    ringbuf_submit(e, 0);
    return 0;
}

static const char names[4][8] = { "zero", "one", "two", "three" };
struct sum { u64 total; u32 letters; };

static int add(u32 index, struct sum *sum)
{
    sum->total += index;
    sum->letters += names[index & 3][0];
    return 0;
}

SEC("usdt/libc.so.6:libc:setjmp") int summed(struct pt_regs *ctx)
{
    struct sum sum = {};
    loop(10, add, &sum, 0);
    return sum.total + sum.letters;
}

SEC("uprobe") int by_hand(struct pt_regs *ctx)
{
    return ctx->ax == 1;
}
char LICENSE[] SEC("license") = "GPL";
