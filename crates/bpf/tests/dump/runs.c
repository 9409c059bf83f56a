// Leaves something in variables, a hash, values per CPU and a ring at each run.
#include "../object/bpf.h"
struct event {
    u64 run;
    char what[8];
};
struct {
    __uint(type, RING);
    __uint(max_entries, 4096);
} ring SEC(".maps");
struct {
    __uint(type, HASH);
    __uint(max_entries, 8);
    __type(key, u64);
    __type(value, struct event);
} last SEC(".maps");
struct {
    __uint(type, PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u64);
} each SEC(".maps");

const volatile u64 step = 3;
u64 runs;
u64 sum = 100;

SEC("uprobe") int prog(void *ctx)
{
    u64 zero = 0;
    struct event event = { .run = ++runs, .what = "run" };
    sum += step;
    map_update(&last, &runs, &event, 0);
    u64 *count = map_lookup(&each, &zero);
    if (count)
        *count += 1;
    struct event *record = ringbuf_reserve(&ring, sizeof(*record), 0);
    if (!record)
        return 0;
    *record = event;
    ringbuf_submit(record, 0);
    return 0;
}
char LICENSE[] SEC("license") = "GPL";
