// What most probes do: count, filter, sum, measure.
#include "bpf.h"
static u64 (*hist_bucket)(u64 value) = (void *)256;
struct {
    __uint(type, PERCPU_ARRAY);
    __uint(max_entries, 4);
    __type(key, u32);
    __type(value, u64);
} counts SEC(".maps");
struct {
    __uint(type, PERCPU_ARRAY);
    __uint(max_entries, 976);
    __type(key, u32);
    __type(value, u64);
} hist SEC(".maps");

SEC("uprobe") int count(struct pt_regs *ctx)
{
    u32 key = 1;
    u64 *value = map_lookup(&counts, &key);
    if (value)
        (*value)++;
    return 0;
}

SEC("uprobe") int sum_of_large(struct pt_regs *ctx)
{
    if (ctx->si <= 64)
        return 0;
    u32 key = 2;
    u64 *value = map_lookup(&counts, &key);
    if (value)
        *value += ctx->si;
    return 0;
}

SEC("uprobe") int sizes(struct pt_regs *ctx)
{
    u32 bucket = hist_bucket(ctx->di);
    u64 *value = map_lookup(&hist, &bucket);
    if (value)
        __sync_fetch_and_add(value, 1);
    return 0;
}

SEC("uprobe") int by_low_bits(struct pt_regs *ctx)
{
    u32 key = (int)ctx->dx >> 1;
    u64 *value = map_lookup(&counts, &key);
    if (!value)
        return 0;
    *value -= 3;
    return 0;
}

SEC("uprobe") int large_calls(struct pt_regs *ctx)
{
    if ((int)ctx->si != 7 && ctx->di < 100)
        return 0;
    char name[16];
    get_current_comm(name, sizeof(name));
    return name[0];
}
