// Entry and return, a hash of starts, a histogram in an array, globals, an atomic add, a function that is not inlined.
#include "bpf.h"
struct {
    __uint(type, HASH);
    __uint(max_entries, 1024);
    __type(key, u64);
    __type(value, u64);
} starts SEC(".maps");
struct {
    __uint(type, ARRAY);
    __uint(max_entries, 64);
    __type(key, u32);
    __type(value, u64);
} hist SEC(".maps");

const volatile u32 only_pid = 0;
u64 missed;
u64 least = 1000;

SEC("uprobe//usr/bin/redis-server:processCommand") int entry(struct pt_regs *ctx)
{
    u64 id = get_current_pid_tgid();
    if (only_pid && id >> 32 != only_pid)
        return 0;
    u64 now = ktime_get_ns();
    map_update(&starts, &id, &now, 0);
    return 0;
}

static noinline u32 log2(u64 v)
{
    u32 bits = 0;
    for (int i = 0; i < 63; i++) {
        if (!(v >>= 1))
            break;
        bits++;
    }
    return bits;
}

SEC("uretprobe//usr/bin/redis-server:processCommand") int leave(struct pt_regs *ctx)
{
    u64 id = get_current_pid_tgid();
    u64 *start = map_lookup(&starts, &id);
    if (!start) {
        __sync_fetch_and_add(&missed, 1);
        return 0;
    }
    u64 took = ktime_get_ns() - *start;
    if (took < least)
        least = took;
    u32 slot = log2(took);
    u64 *count = map_lookup(&hist, &slot);
    if (count)
        __sync_fetch_and_add(count, 1);
    return 0;
}
char LICENSE[] SEC("license") = "Dual MIT/GPL";
