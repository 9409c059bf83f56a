/* A histogram of latencies, in the way of bcc's libbpf tools: configured by constants, kept in variables. */
#include "bpf.h"

#define SLOTS 26

enum unit { NSEC, USEC, MSEC };

const volatile enum unit unit = NSEC;
const volatile __u32 only_tgid = 0;

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, 10240);
    __type(key, __u32);
    __type(value, __u64);
} starts SEC(".maps");

__u32 slots[SLOTS] = {};
__u32 calls = 0;

static __always_inline __u64 log2l(__u64 value)
{
    __u64 result = 0;

    for (int shift = 32; shift; shift >>= 1)
        if (value >> shift) {
            value >>= shift;
            result += shift;
        }
    return result;
}

SEC("kprobe")
int BPF_KPROBE(entry)
{
    __u64 id = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();
    __u32 tid = id;

    if (only_tgid && only_tgid != id >> 32)
        return 0;
    bpf_map_update_elem(&starts, &tid, &now, BPF_ANY);
    return 0;
}

SEC("kretprobe")
int BPF_KRETPROBE(leave)
{
    __u64 now = bpf_ktime_get_ns(), *start, delta, slot;
    __u32 tid = bpf_get_current_pid_tgid();

    start = bpf_map_lookup_elem(&starts, &tid);
    if (!start)
        return 0;
    delta = now - *start;
    switch (unit) {
    case MSEC:
        delta /= 1000000;
        break;
    case USEC:
        delta /= 1000;
        break;
    case NSEC:
        break;
    }
    slot = log2l(delta);
    if (slot >= SLOTS)
        slot = SLOTS - 1;
    __sync_fetch_and_add(&slots[slot], 1);
    __sync_fetch_and_add(&calls, 1);
    bpf_map_delete_elem(&starts, &tid);
    return 0;
}
