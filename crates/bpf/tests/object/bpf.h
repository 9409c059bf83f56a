// What programs of the tests need of libbpf's headers.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;
#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define noinline __attribute__((noinline))
enum { HASH = 1, ARRAY = 2, PERF = 4, PERCPU_ARRAY = 6, STACKS = 7, RING = 27 };
struct pt_regs { u64 r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss; };
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*ktime_get_ns)(void) = (void *)5;
static u64 (*get_current_pid_tgid)(void) = (void *)14;
static long (*get_current_comm)(void *buf, u32 size) = (void *)16;
static long (*probe_read_user_str)(void *dst, u32 size, const void *src) = (void *)114;
static void *(*ringbuf_reserve)(void *ring, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *data, u64 flags) = (void *)132;
static long (*loop)(u32 nr, void *callback, void *ctx, u64 flags) = (void *)181;
