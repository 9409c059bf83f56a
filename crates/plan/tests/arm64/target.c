// An arm64 program that plays the agent's part: `arm64/main.rs` puts generated code into it, and compares what it writes.
typedef unsigned int u32;
typedef unsigned long u64;
typedef unsigned __int128 u128;

// sidestep_wire::{arch::a64::Regs, LookupEntry}
struct regs {
    u64 x[31], sp, pc, pstate;
};
struct entry {
    u64 key, cells, state, owner;
};

#define AT(name) __attribute__((section(name), used, noinline))
#define CHECK(what)              \
    do {                         \
        if (!(what))             \
            leave(__LINE__ & 0xff); \
    } while (0)

#define ROUNDS 4
#define BELOW 128
#define STACK 0x10000
#define ABOVE 1024
#define PROBES 8

// What `run` takes and gives: the registers, the flags, the vector registers and FPSR.
struct state {
    u64 x[31], sp, flags, fpsr;
    u128 q[32];
};
struct seen {
    u64 probe, state, private;
    struct regs regs;
    u64 cookie, floats[8];
};
// `arm64/main.rs` reads it.
struct out {
    u64 hits, slots, returns, signals, cells[PROBES];
    struct seen first;
    struct round {
        struct state state;
        u64 sp;
        unsigned char stack[BELOW + ABOVE];
    } rounds[ROUNDS];
} out;

struct entry buckets[8192] __attribute__((section(".lookup")));
char descs[PROBES * DESC_LEN] __attribute__((section(".descs"))) = {1};
asm(".section .generated,\"awx\"\n .skip 0x10000\n .text\n");
static u64 self, wanted, real_return, steps, offered;
static volatile u64 redirect;
struct state in asm("in"), result asm("result");
u64 saved asm("saved");
unsigned char stack[STACK] asm("stack") __attribute__((aligned(4096)));
u64 other(void);

void *memcpy(void *to, const void *from, u64 len) {
    for (u64 i = 0; i < len; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int value, u64 len) {
    for (u64 i = 0; i < len; i++)
        ((volatile char *)to)[i] = value;
    return to;
}

static long call(long number, long a, long b, long c, long d) {
    register long x8 asm("x8") = number, x0 asm("x0") = a, x1 asm("x1") = b, x2 asm("x2") = c, x3 asm("x3") = d;
    asm volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

static void leave(int status) {
    call(94, status, 0, 0, 0);
}

// All that AAPCS64 lets a function change, but what the thunk does not save: vector registers that are not asked for.
#define CLOBBER()                                                                                                  \
    asm volatile("mov x1,#1\n mov x2,#2\n mov x3,#3\n mov x4,#4\n mov x5,#5\n mov x6,#6\n mov x7,#7\n mov x8,#8\n" \
                 "mov x9,#9\n mov x10,#10\n mov x11,#11\n mov x12,#12\n mov x13,#13\n mov x14,#14\n mov x15,#15\n" \
                 "mov x16,#16\n mov x17,#17\n mov x18,#18\n cmp x0,x0\n" VECTORS                                   \
                 ::: "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14",      \
                     "x15", "x16", "x17", "x18", "x30", "cc", "memory")

// The stack is used, too.
static void deep(void) {
    volatile char room[3000];
    for (int i = 0; i < 3000; i += 8)
        *(volatile u64 *)(room + i) = 0x5a5a5a5a5a5a5a5aul;
}

AT(".agent_slot") struct entry *agent_slot(u64 private, u64 tp) {
    CHECK(private == 0x123456789abcul && tp == (u64)&self && (u64)__builtin_dwarf_cfa() % 16 == 0);
    out.slots++;
    // sidestep_wire::lookup::bucket
    struct entry *entry = &buckets[(tp * 0x1e3779b1ul >> 32) & 8191];
    if (offered)
        *entry = (struct entry){tp, (u64)out.cells, 0xabcd0, tp};
    deep();
    CLOBBER();
    return offered ? entry : 0;
}

AT(".agent_hit") u64 agent_hit(struct regs *regs, u64 state, u64 private, u64 probe) {
    CHECK((u64)regs % 8 == 0 && (u64)__builtin_dwarf_cfa() % 16 == 0 && probe < PROBES);
    char *hit = (char *)regs;
    if (!out.hits++) {
        out.first = (struct seen){probe, state, private, *regs};
        for (int i = 0; i < 8; i++)
            out.first.floats[i] = *(u64 *)(hit + FLOATS + 8 * i);
    }
    // What a program may write before the thunk looks at it.
    *(u64 *)(hit + COOKIE) = ~0ul;
    CHECK(*(u64 *)(hit + OVERRIDDEN) == 0);
    if (probe == 2)
        real_return = regs->x[30], regs->x[30] = TRAMPOLINE;
    if (probe == 3)
        regs->x[0] = 1000, regs->x[16] = 16, regs->x[17] = 17, regs->x[19] = 77, regs->x[28] = 28;
    if (probe == 4)
        *(u64 *)(hit + OVERRIDDEN) = 1, regs->x[0] = 5;
    if (probe == 5)
        regs->pc = redirect;
    deep();
    CLOBBER();
    return probe == 2;
}

AT(".agent_return") u64 agent_return(struct regs *regs, u64 state, u64 private) {
    CHECK(state == 0xabcd0 && private == 0x123456789abcul);
    // The frame is known by its stack pointer.
    CHECK(regs->sp == in.sp);
    out.returns++;
    u64 to = real_return;
    deep();
    CLOBBER();
    return to;
}

static void handler(int number, void *info, void *context) {
    CHECK(number == 5 && info && context);
    u64 *pc = (u64 *)((char *)context + 184 + 32 * 8);
    *pc += 4;
    out.signals += 100;
}

AT(".agent_signal") u64 agent_signal(u64 private, int number, u32 *info, char *context) {
    CHECK(private == 0x123456789abcul && number == 5 && info[0] == 5);
    out.signals++;
    if (!wanted)
        *(u64 *)(context + 184 + 32 * 8) += 4;
    deep();
    CLOBBER();
    return wanted;
}

// A function of a program that is not compiled ends here.
static u64 interpreted[6], interpreter_sp;
AT(".interpreter") u64 agent_interpret(u64 regs, u64 slots, u64 len, u64 stack_end, u64 stack_len, u64 state) {
    u64 all[6] = {regs, slots, len, stack_end, stack_len, state};
    for (int i = 0; i < 6; i++)
        interpreted[i] = all[i];
    interpreter_sp = (u64)__builtin_dwarf_cfa();
    for (u64 at = stack_end - stack_len; at < stack_end; at += 8)
        *(volatile u64 *)at = ~0ul;
    CLOBBER();
    return 4711;
}

// The state at a breakpoint, which is where a site is otherwise.
static void breakpoint(int number, void *info, char *context) {
    (void)number, (void)info;
    out.first.regs = *(struct regs *)(context + 184);
    for (int i = 0; i < 8; i++)
        out.first.floats[i] = *(u64 *)(context + 480 + 16 * i);
    call(64, 1, (long)&out, sizeof out, 0);
    leave(0);
}

static void on_trap(u64 handler, u64 restorer) {
    struct {
        u64 handler, flags, restorer, mask;
    } action = {handler, 4 | 0x08000000 | (restorer ? 0x04000000 : 0), restorer, 0};
    CHECK(call(134, 5, (long)&action, 0, 8) == 0);
}

// Nothing is where a handler saves registers: says so as if a breakpoint were there. On a stack of its own.
static void no_stack(int number, void *info, char *context) {
    CHECK(number == 11);
    breakpoint(number, info, context);
}

// `in.sp` is so many bytes above memory that is missing.
static u64 room;
static void no_memory_below(u64 bytes) {
    static char own[0x8000] __attribute__((aligned(16)));
    struct {
        void *at;
        u64 flags, len;
    } alternate = {own, 0, sizeof own};
    CHECK(call(132, (long)&alternate, 0, 0, 0) == 0 && call(215, (long)stack, 4096, 0, 0) == 0);
    struct {
        void *handler;
        u64 flags;
        u64 restorer, mask;
    } action = {no_stack, 4 | 0x08000000, 0, 0};
    CHECK(call(134, 11, (long)&action, 0, 8) == 0);
    room = bytes;
}

// A signal at any time, whose handler hits the probe, too.
void run_leaf(void);
extern u64 leaf(u64);
static volatile u64 interrupted;
static void tick(int number) {
    for (int i = 0; i < 3; i++)
        leaf(i);
    interrupted++;
}

static u64 count_with_signals(u64 ticks) {
    struct {
        void (*handler)(int);
        u64 flags, restorer, mask;
    } action = {tick, 0x10000000, 0, 0};
    u64 interval[4] = {0, 200, 0, 200}, none[4] = {0}, calls = 0;
    CHECK(call(134, 14, (long)&action, 0, 8) == 0 && call(103, 0, (long)interval, 0, 0) == 0);
    for (; interrupted < ticks; calls++)
        leaf(calls);
    call(103, 0, (long)none, 0, 0);
    return calls + 3 * interrupted;
}

// A handler that is a function of the target: of the context and a number, with all vector registers.
static struct regs *native_regs;
static u64 native_data;
AT(".interpreter") void native_function(struct regs *regs, u64 data) {
    native_regs = regs, native_data = data;
    deep();
    CLOBBER();
}

#include "functions.h"

// Calls a function with all registers and flags as in `in`, and notes what they are then. The stack is `stack`.
#define RUN(name)                                                                                           \
    ".globl run_" #name "\nrun_" #name ":\n stp x29,x30,[sp,#-112]!\n stp x19,x20,[sp,#16]\n"               \
    " stp x21,x22,[sp,#32]\n stp x23,x24,[sp,#48]\n stp x25,x26,[sp,#64]\n stp x27,x28,[sp,#80]\n"          \
    " mov x1,sp\n ldr x0,=saved\n str x1,[x0]\n ldr x0,=in\n add x1,x0,#272\n .irp n,0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30\n"   \
    " ldr q\\n,[x1,#(16 * \\n)]\n .endr\n .irp n,1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31\n ldr q\\n,[x1,#(16 * \\n)]\n .endr\n" \
    " ldr x1,[x0,#248]\n mov sp,x1\n ldr x1,[x0,#256]\n msr nzcv,x1\n ldr x1,[x0,#264]\n msr fpsr,x1\n"     \
    " .irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29\n"               \
    " ldr x\\n,[x0,#(8 * \\n)]\n .endr\n ldr x0,[x0]\n bl " #name "\n str x0,[sp]\n ldr x0,=result\n"       \
    " .irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30\n"            \
    " str x\\n,[x0,#(8 * \\n)]\n .endr\n ldr x1,[sp]\n str x1,[x0]\n mov x1,sp\n str x1,[x0,#248]\n"        \
    " mrs x1,nzcv\n str x1,[x0,#256]\n mrs x1,fpsr\n str x1,[x0,#264]\n add x1,x0,#272\n"                   \
    " .irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"       \
    " str q\\n,[x1,#(16 * \\n)]\n .endr\n"                                                                  \
    " ldr x0,=saved\n ldr x0,[x0]\n mov sp,x0\n ldp x19,x20,[sp,#16]\n ldp x21,x22,[sp,#32]\n"              \
    " ldp x23,x24,[sp,#48]\n ldp x25,x26,[sp,#64]\n ldp x27,x28,[sp,#80]\n ldp x29,x30,[sp],#112\n ret\n .ltorg\n"

asm(".section .probed,\"ax\"\n .arch armv8.5-a+pauth\n" FUNCTIONS RUN(plain) RUN(near) RUN(branches) RUN(calls) RUN(signs)
    RUN(leaf) RUN(trapped) RUN(ends) RUN(native) RUN(nothing) ".text\n");
AT(".far") u64 far_other(void) {
    return 1717;
}
void run_plain(void), run_near(void), run_branches(void), run_calls(void), run_signs(void), run_leaf(void), run_trapped(void),
    run_ends(void), run_native(void), run_nothing(void);

static void fill(u64 round) {
    u64 random = 0x9e3779b97f4a7c15ul * (round + 1);
    for (u64 *at = (u64 *)&in; at < (u64 *)(&in + 1); at++) {
        random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
        *at = random;
    }
    for (int i = room ? 4096 : 0; i < STACK; i++)
        stack[i] = i * 7 + round;
    // Small numbers, since functions count down to 0.
    in.x[0] = round * 3, in.x[1] = 5 + round;
    in.sp = (u64)stack + (room ? 4096 + room : STACK / 2), in.flags = (round * 5 + 6) << 28, in.fpsr = 0;
}

static void round(void (*run)(void)) {
    struct round *round = &out.rounds[steps];
    fill(steps);
    run();
    round->state = result;
    round->sp = in.sp;
    unsigned char *from = stack + STACK / 2 - BELOW;
    // Where the result was put on the stack.
    *(u64 *)in.sp = 0;
    for (u64 i = 0; i < sizeof round->stack; i++)
        round->stack[i] = from[i];
    steps++;
}

asm(".globl _start\n_start:\n mov x29,#0\n mov x30,#0\n b start\n");
AT(".text") void start(void) {
    self = (u64)&self;
    asm volatile("msr tpidr_el0, %0" : : "r"(&self));
    offered = 1;
    redirect = (u64)&other;
    on_trap((u64)&breakpoint, 0);
    CHECKS
    CHECK(call(64, 1, (long)&out, sizeof out, 0) == sizeof out);
    leave(0);
}
