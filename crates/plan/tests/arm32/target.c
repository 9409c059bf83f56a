// An arm32 program that plays the agent's part: `arm32/main.rs` puts generated code into it, and compares what it writes.
typedef unsigned int u32;
typedef unsigned long long u64;

// sidestep_wire::{arch::a32::Regs, LookupEntry}
struct regs {
    u64 r[16], cpsr, orig_r0;
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
#define STACK 0x10000
#define ABOVE 1024
#define PROBES 8

// What `run` takes and gives: the registers, the flags, the vector registers and FPSCR.
struct state {
    u32 r[15], cpsr, fpscr, pad;
    u64 d[32];
};
struct seen {
    u64 probe, state, private;
    struct regs regs;
    u64 cookie, floats[8];
};
// `arm32/machine.rs` reads it.
struct out {
    u64 hits, slots, returns, signals, cells[PROBES];
    struct seen first;
    struct round {
        struct state state;
        u32 sp, pad;
        unsigned char stack[ABOVE];
    } rounds[ROUNDS];
} out;

struct entry buckets[8192] __attribute__((section(".lookup")));
char descs[PROBES * DESC_LEN] __attribute__((section(".descs"))) = {1};
// Sites that are traps, and where they go on.
struct {
    u32 site, detour;
} traps[128] __attribute__((section(".traps"))) = {{1}};
asm(".section .generated,\"awx\"\n .skip 0x14000\n .text\n");
static u64 self;
static u32 wanted, real_return, steps, offered;
static volatile u32 redirect;
struct state in asm("in"), result asm("result");
u32 saved asm("saved");
unsigned char stack[STACK] asm("stack") __attribute__((aligned(4096)));
u32 other(void);

void *memcpy(void *to, const void *from, u32 len) {
    for (u32 i = 0; i < len; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}

void *memset(void *to, int value, u32 len) {
    for (u32 i = 0; i < len; i++)
        ((volatile char *)to)[i] = value;
    return to;
}

static int call(int number, int a, int b, int c, int d) {
    register int r7 asm("r7") = number, r0 asm("r0") = a, r1 asm("r1") = b, r2 asm("r2") = c, r3 asm("r3") = d;
    asm volatile("svc #0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2), "r"(r3) : "memory");
    return r0;
}

static void leave(int status) {
    call(248, status, 0, 0, 0);
}

// All that AAPCS32 lets a function change, but what the thunk does not save: vector registers that are not asked for.
#define CLOBBER()                                                                                            \
    asm volatile("mov r1,#1\n mov r2,#2\n mov r3,#3\n mov r12,#12\n cmp r0,r0\n uadd8 r1,r1,r2\n" VECTORS \
                 ::: "r1", "r2", "r3", "r12", "lr", "cc", "memory")

// The stack is used, too.
static void deep(void) {
    volatile char room[3000];
    for (int i = 0; i < 3000; i += 4)
        *(volatile u32 *)(room + i) = 0x5a5a5a5au;
}

static struct entry *bucket(void) {
    // sidestep_wire::lookup::bucket
    return &buckets[(self * 0x1e3779b1u >> 32) & 8191];
}

AT(".agent_slot") struct entry *agent_slot(u32 private, u64 tp) {
    CHECK(private == 0x12345678u && tp == self && (u32)__builtin_dwarf_cfa() % 8 == 0);
    out.slots++;
    struct entry *entry = bucket();
    if (offered)
        *entry = (struct entry){tp, (u32)out.cells, 0xabcd0, tp};
    deep();
    CLOBBER();
    return offered ? entry : 0;
}

AT(".agent_hit") u64 agent_hit(struct regs *regs, u32 state, u32 private, u32 probe) {
    CHECK((u32)regs % 8 == 0 && (u32)__builtin_dwarf_cfa() % 8 == 0 && probe < PROBES);
    char *hit = (char *)regs;
    if (!out.hits++) {
        out.first = (struct seen){probe, state, private, *regs};
        for (int i = 0; i < 8; i++)
            out.first.floats[i] = *(u64 *)(hit + FLOATS + 8 * i);
    }
    // What a program may write before the thunk looks at it.
    *(u64 *)(hit + COOKIE) = ~0ull;
    CHECK(*(u64 *)(hit + OVERRIDDEN) == 0);
    if (probe == 2)
        real_return = regs->r[14], regs->r[14] = TRAMPOLINE;
    if (probe == 3)
        regs->r[0] = 1000, regs->r[12] = 12, regs->r[4] = 77, regs->r[11] = 28, regs->r[1] = 11;
    if (probe == 4)
        *(u64 *)(hit + OVERRIDDEN) = 1, regs->r[0] = 5;
    if (probe == 5)
        regs->r[15] = redirect;
    deep();
    CLOBBER();
    return probe == 2;
}

AT(".agent_return") u64 agent_return(struct regs *regs, u32 state, u32 private) {
    CHECK(state == 0xabcd0 && private == 0x12345678u);
    // The frame is known by its stack pointer.
    CHECK(regs->r[13] == in.r[13]);
    out.returns++;
    u32 to = real_return;
    deep();
    CLOBBER();
    return to;
}

// Words of `struct ucontext` (asm/ucontext.h, asm/sigcontext.h): r0 to r15, CPSR; d0 and FPSCR.
#define REGISTER(context, number) (*(u32 *)((context) + 32 + 4 * (number)))
#define CPSR(context) REGISTER(context, 16)
#define DOUBLE(context, number) (*(u64 *)((context) + 240 + 8 * (number)))

static void skip(char *context) {
    REGISTER(context, 15) += CPSR(context) & 32 ? 2 : 4;
}

static void handler(int number, void *info, char *context) {
    CHECK(number == 4 && info && context);
    skip(context);
    out.signals += 100;
}

AT(".agent_signal") u64 agent_signal(u32 private, int number, u32 *info, char *context, u64 *back) {
    CHECK(private == 0x12345678u && number == 4 && info[0] == 4 && (u32)__builtin_dwarf_cfa() % 8 == 0);
    CHECK((u32)back % 8 == 0 && *back >> 32 == 0 && (u32)*back != 0);
    out.signals++;
    if (!wanted)
        skip(context);
    deep();
    CLOBBER();
    return wanted;
}

// A function of a program that is not compiled ends here.
static u64 interpreted[6];
static u32 interpreter_sp;
AT(".interpreter") u64 agent_interpret(u32 regs, u32 slots, u64 len, u64 stack_end, u64 stack_len, u32 state) {
    u64 all[6] = {regs, slots, len, stack_end, stack_len, state};
    for (int i = 0; i < 6; i++)
        interpreted[i] = all[i];
    interpreter_sp = (u32)__builtin_dwarf_cfa();
    for (u32 at = stack_end - stack_len; at < stack_end; at += 4)
        *(volatile u32 *)at = ~0u;
    CLOBBER();
    return 4711;
}

// A trap goes on in its detour; one with a record counts.
static int is_trap(char *context) {
    u32 pc = REGISTER(context, 15);
    for (int i = 0; i < 128; i++) {
        if (traps[i].site != pc)
            continue;
        u32 detour = traps[i].detour & ~1;
        if (traps[i].detour & 1)
            out.cells[*(u32 *)(detour + 16) - 1]++, detour += 24;
        REGISTER(context, 15) = detour;
        return 1;
    }
    return 0;
}

// The state at a breakpoint, which is where a site is otherwise.
static void breakpoint(int number, void *info, char *context) {
    (void)number, (void)info;
    if (is_trap(context))
        return;
    for (int i = 0; i < 16; i++)
        out.first.regs.r[i] = REGISTER(context, i);
    out.first.regs.cpsr = CPSR(context), out.first.regs.orig_r0 = ~0u;
    for (int i = 0; i < 8; i++)
        out.first.floats[i] = DOUBLE(context, i);
    call(4, 1, (int)&out, sizeof out, 0);
    leave(0);
}

struct action {
    u32 handler, flags, restorer;
    u32 mask[2];
};

static void on_trap(u32 handler, u32 restorer) {
    struct action action = {handler, 4 | 0x08000000 | (restorer ? 0x04000000 : 0), restorer, {0, 0}};
    CHECK(call(174, 4, (int)&action, 0, 8) == 0 && call(174, 5, (int)&action, 0, 8) == 0);
}

// Nothing is where a handler saves registers: says so as if a breakpoint were there. On a stack of its own.
static void no_stack(int number, void *info, char *context) {
    CHECK(number == 11);
    breakpoint(number, info, context);
}

// `in.sp` is so many bytes above memory that is missing.
static u32 room;
static void no_memory_below(u32 bytes) {
    static char own[0x8000] __attribute__((aligned(16)));
    struct {
        void *at;
        u32 flags, len;
    } alternate = {own, 0, sizeof own};
    CHECK(call(186, (int)&alternate, 0, 0, 0) == 0 && call(91, (int)stack, 4096, 0, 0) == 0);
    struct action action = {(u32)no_stack, 4 | 0x08000000, 0, {0, 0}};
    CHECK(call(174, 11, (int)&action, 0, 8) == 0);
    room = bytes;
}

// A signal at any time, whose handler hits the probe, too.
void run_leaf(void);
extern u32 leaf(u32);
static volatile u32 interrupted;
static void tick(int number) {
    for (int i = 0; i < 3; i++)
        leaf(i);
    interrupted++;
}

static u64 count_with_signals(u32 ticks) {
    struct action action = {(u32)tick, 0x10000000, 0, {0, 0}};
    u32 interval[4] = {0, 200, 0, 200}, none[4] = {0};
    u64 calls = 0;
    CHECK(call(174, 14, (int)&action, 0, 8) == 0 && call(104, 0, (int)interval, 0, 0) == 0);
    for (; interrupted < ticks; calls++)
        leaf(calls);
    call(104, 0, (int)none, 0, 0);
    return calls + 3 * interrupted;
}

// A handler that is a function of the target: of the context and a number, with all vector registers.
static struct regs *native_regs;
static u32 native_data;
AT(".interpreter") void native_function(struct regs *regs, u32 data) {
    CHECK((u32)__builtin_dwarf_cfa() % 8 == 0);
    native_regs = regs, native_data = data;
    deep();
    CLOBBER();
}

#include "functions.h"

#define ADDRESS(register, name) " movw " #register ",#:lower16:" #name "\n movt " #register ",#:upper16:" #name "\n"

// Calls a function with all registers and flags as in `in`, and notes what they are then. The stack is `stack`.
#define RUN(name)                                                                                             \
    ".globl run_" #name "\n.type run_" #name ",%function\nrun_" #name ":\n push {r4-r11,lr}\n"                 \
    ADDRESS(r0, saved) " str sp,[r0]\n" ADDRESS(r0, in)                                                        \
    " add r1,r0,#72\n vldmia r1!,{d0-d15}\n vldmia r1,{d16-d31}\n ldr r1,[r0,#64]\n vmsr fpscr,r1\n"              \
    " ldr r1,[r0,#60]\n msr apsr_nzcvqg,r1\n ldr sp,[r0,#52]\n"                                                 \
    " .irp n,1,2,3,4,5,6,7,8,9,10,11,12\n ldr r\\n,[r0,#(4 * \\n)]\n .endr\n ldr r0,[r0]\n bl " #name "\n"       \
    " str r0,[sp]\n" ADDRESS(r0, result)                                                                        \
    " .irp n,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n str r\\n,[r0,#(4 * \\n)]\n .endr\n ldr r1,[sp]\n str r1,[r0]\n"    \
    " mrs r1,apsr\n str r1,[r0,#60]\n vmrs r1,fpscr\n str r1,[r0,#64]\n"                                       \
    " add r1,r0,#72\n vstmia r1!,{d0-d15}\n vstmia r1,{d16-d31}\n" ADDRESS(r0, saved)                            \
    " ldr sp,[r0]\n pop {r4-r11,pc}\n"

// What is in front of probed functions is read as code of their instruction set.
asm(".section .probed,\"ax\"\n .fpu neon-vfpv4\n" FUNCTIONS ".section .run,\"ax\"\n .arm\n" RUN(plain) RUN(near) RUN(branches) RUN(calls) RUN(odd) RUN(leaf)
        RUN(trapped) RUN(ends) RUN(native) RUN(nothing) ".text\n .arm\n");
AT(".far") u32 far_other(void) {
    return 1717;
}
void run_plain(void), run_near(void), run_branches(void), run_calls(void), run_odd(void), run_trapped(void), run_ends(void),
    run_native(void), run_nothing(void);

static void fill(u32 round) {
    u64 random = 0x9e3779b97f4a7c15ull * (round + 1);
    for (u32 *at = (u32 *)&in; at < (u32 *)(&in + 1); at++) {
        random ^= random >> 12, random ^= random << 25, random ^= random >> 27;
        *at = random >> 16;
    }
    for (int i = room ? 4096 : 0; i < STACK; i++)
        stack[i] = i * 7 + round;
    // Small numbers, since functions count down to 0.
    in.r[0] = round * 3, in.r[1] = 5 + round;
    // Functions may be entered with any multiple of 4 from code of their own.
    in.r[13] = (u32)stack + (room ? 4096 + room : STACK / 2 + round % 2 * 4);
    in.cpsr = (round * 5 + 6) << 28 | round % 2 << 27 | (round * 3 + 5) % 16 << 16, in.fpscr = 0;
}

static void round(void (*run)(void)) {
    struct round *round = &out.rounds[steps];
    fill(steps);
    run();
    round->state = result;
    round->sp = in.r[13];
    unsigned char *from = stack + STACK / 2;
    // Where the result was put on the stack.
    *(u32 *)in.r[13] = 0;
    for (u32 i = 0; i < sizeof round->stack; i++)
        round->stack[i] = from[i];
    // Below the stack pointer is nothing.
    for (u32 i = 0; i < in.r[13] - (u32)from; i++)
        round->stack[i] = 0;
    steps++;
}

asm(".globl _start\n.type _start,%function\n_start:\n mov fp,#0\n mov lr,#0\n b start\n");
AT(".text") void start(void) {
    self = (u32)&self;
    CHECK(call(0x0f0005, (int)&self, 0, 0, 0) == 0); // set_tls
    offered = 1;
    redirect = (u32)&other;
    on_trap((u32)&breakpoint, 0);
    CHECKS
    CHECK(call(4, 1, (int)&out, sizeof out, 0) == sizeof out);
    leave(0);
}
