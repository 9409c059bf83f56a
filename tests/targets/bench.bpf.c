/* Handlers that the benchmark measures, one each. */
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
typedef unsigned int u32;
typedef unsigned long long u64;

struct pt_regs {
    u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};

static void *(*map_lookup)(void *, const void *) = (void *)1;
static long (*map_update)(void *, const void *, const void *, u64) = (void *)2;
static u64 (*ktime)(void) = (void *)5;
static long (*read_user_str)(void *, u32, const void *) = (void *)114;
static void *(*ring_reserve)(void *, u64, u64) = (void *)131;
static void (*ring_submit)(void *, u64) = (void *)132;
static u64 (*func_ip)(void *) = (void *)173;

struct {
    __uint(type, 6); /* BPF_MAP_TYPE_PERCPU_ARRAY */
    __uint(max_entries, 1);
    __type(key, u32);
    __type(value, u64);
} total SEC(".maps");

struct {
    __uint(type, 5); /* BPF_MAP_TYPE_PERCPU_HASH */
    __uint(max_entries, 1024);
    __type(key, u64);
    __type(value, u64);
} keyed SEC(".maps");

struct {
    __uint(type, 1); /* BPF_MAP_TYPE_HASH */
    __uint(max_entries, 1024);
    __type(key, u64);
    __type(value, u64);
} shared SEC(".maps");

struct {
    __uint(type, 27); /* BPF_MAP_TYPE_RINGBUF */
    __uint(max_entries, 1 << 18);
} ring SEC(".maps");

static void add(u64 n)
{
    u32 zero = 0;
    u64 *value = map_lookup(&total, &zero);
    if (value)
        __sync_fetch_and_add(value, n);
}

SEC("?uprobe") int sum(struct pt_regs *ctx)
{
    add(ctx->di != 0);
    return 0;
}

SEC("?uprobe.post") int behind(struct pt_regs *ctx)
{
    add(1);
    return 0;
}

SEC("?uprobe") int frame(struct pt_regs *ctx)
{
    add(func_ip(ctx) != 0);
    return 0;
}

SEC("?uprobe") int filter(struct pt_regs *ctx)
{
    if (ctx->di < 64)
        add(func_ip(ctx));
    return 0;
}

SEC("?uprobe") int count_keyed(struct pt_regs *ctx)
{
    u64 key = ctx->di, one = 1;
    u64 *value = map_lookup(&keyed, &key);
    if (value)
        __sync_fetch_and_add(value, 1);
    else
        map_update(&keyed, &key, &one, 0);
    return 0;
}

SEC("?uprobe") int count_shared(struct pt_regs *ctx)
{
    u64 key = ctx->di, one = 1;
    u64 *value = map_lookup(&shared, &key);
    if (value)
        __sync_fetch_and_add(value, 1);
    else
        map_update(&shared, &key, &one, 0);
    return 0;
}

SEC("?uprobe") int record(struct pt_regs *ctx)
{
    u64 *event = ring_reserve(&ring, 24, 0);
    if (!event)
        return 0;
    event[0] = ktime();
    event[1] = ctx->di;
    event[2] = ctx->si;
    ring_submit(event, 0);
    return 0;
}

SEC("?uprobe") int text(struct pt_regs *ctx)
{
    char buffer[32];
    add(read_user_str(buffer, sizeof(buffer), (void *)ctx->di));
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
