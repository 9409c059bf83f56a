/* Threads that write to the same maps as fast as they can. */
#include "bpf.h"

/* A value that says whose it is, and whether it is whole. */
struct value {
    __u64 of;
    __u64 words[6];
    __u64 sum;
};

struct event {
    __u64 tid;
    __u64 n;
};

const struct event *unused __attribute__((unused));

/* Every so many calls a record. */
const volatile unsigned long every = 256;
/* Different keys of the table. */
const volatile unsigned long keys = 32;
/* Whether entries are taken out again. */
const volatile unsigned long deletes = 1;
long calls = 0, updated = 0, failed = 0, lost = 0, failed_recent = 0;

MAP(table, HASH, __u64, struct value, 64);
MAP(recent, LRU_HASH, __u64, struct value, 64);
MAP(by_thread, PERCPU_ARRAY, __u32, __u64, 2);

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 18);
} ring SEC(".maps");

SEC("uprobe/probed:job")
int BPF_KPROBE(on_job, unsigned long n)
{
    struct value value;
    struct event *event;
    __u64 key = n % keys, *count;
    __u32 index = n & 1;

    __sync_fetch_and_add(&calls, 1);
    count = bpf_map_lookup_elem(&by_thread, &index);
    if (count)
        *count += 1;
    value.of = key;
    value.sum = key;
    for (int i = 0; i < 6; i++) {
        value.words[i] = (n + i) * 0x9e3779b97f4a7c15ull;
        value.sum ^= value.words[i];
    }
    if (bpf_map_update_elem(&table, &key, &value, BPF_ANY))
        __sync_fetch_and_add(&failed, 1);
    else
        __sync_fetch_and_add(&updated, 1);
    if (deletes && n % 61 == 7)
        bpf_map_delete_elem(&table, &key);
    value.sum ^= key ^ n;
    value.of = key = n;
    if (bpf_map_update_elem(&recent, &key, &value, BPF_ANY))
        __sync_fetch_and_add(&failed_recent, 1);
    if (n % every)
        return 0;
    event = bpf_ringbuf_reserve(&ring, sizeof *event, 0);
    if (!event) {
        __sync_fetch_and_add(&lost, 1);
        return 0;
    }
    event->tid = (__u32)bpf_get_current_pid_tgid();
    event->n = n / every;
    bpf_ringbuf_submit(event, 0);
    return 0;
}
