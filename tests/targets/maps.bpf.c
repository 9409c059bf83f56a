/* Maps of all kinds, variables, functions. */
#include "bpf.h"

struct event {
    __u64 n;
    char name[8];
};

/* So that the compiler keeps the type. */
const struct event *unused __attribute__((unused));

const volatile unsigned long modulus = 8;
const volatile bool quiet = false;
long calls = 0, weight = 1000, failed = 0;

MAP(by_rest, HASH, __u64, __u64, 64);
MAP(all_calls, PERCPU_ARRAY, __u32, __u64, 1);
MAP(by_rest_per_cpu, PERCPU_HASH, __u64, __u64, 64);
MAP(recent, LRU_HASH, __u64, __u64, 16);
MAP(by_length, ARRAY, __u32, __u64, 4);

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} ring SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
    __uint(key_size, 4);
    __uint(value_size, 4);
} perf SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_STACK_TRACE);
    __uint(max_entries, 64);
    __uint(key_size, 4);
    __uint(value_size, 127 * 8);
} stacks SEC(".maps");

MAP(by_stack, HASH, __u32, __u64, 64);

/* Adds 1 to an entry that two threads may want to make at once. */
static __always_inline int count(void *map, const void *key)
{
    __u64 *value = bpf_map_lookup_elem(map, key), zero = 0;

    if (!value) {
        bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
        value = bpf_map_lookup_elem(map, key);
    }
    if (!value)
        return 0;
    __sync_fetch_and_add(value, 1);
    return 1;
}

/* A function of its own in the code, too. */
static __noinline int count_rest(__u64 rest)
{
    return count(&by_rest, &rest);
}

SEC("uprobe/probed:job")
int BPF_KPROBE(on_job, long n, const char *name)
{
    struct event event = {.n = n}, *record;
    __u64 rest = (unsigned long)n % modulus, one = 1, *value;
    __u32 zero = 0, length;
    int id;

    __sync_fetch_and_add(&calls, 1);
    __sync_fetch_and_add(&weight, n);
    if (!count_rest(rest))
        __sync_fetch_and_add(&failed, 1);
    value = bpf_map_lookup_elem(&all_calls, &zero);
    if (value)
        *value += 1;
    value = bpf_map_lookup_elem(&by_rest_per_cpu, &rest);
    if (value)
        *value += 1;
    else
        bpf_map_update_elem(&by_rest_per_cpu, &rest, &one, BPF_ANY);
    rest = n;
    bpf_map_update_elem(&recent, &rest, &one, BPF_ANY);
    length = bpf_probe_read_user_str(event.name, sizeof event.name, name);
    if (length < 4) {
        value = bpf_map_lookup_elem(&by_length, &length);
        if (value)
            __sync_fetch_and_add(value, 1);
    }
    id = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK);
    if (id >= 0 && !count(&by_stack, &id))
        __sync_fetch_and_add(&failed, 1);
    if (quiet)
        return 0;
    record = bpf_ringbuf_reserve(&ring, sizeof *record, 0);
    if (record) {
        *record = event;
        bpf_ringbuf_submit(record, 0);
    }
    bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, &event, sizeof event);
    return 0;
}
