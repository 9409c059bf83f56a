// A 32-bit program that plays the agent's part: `short/main.rs` puts generated code into it. Exits with 0, or the line of what is wrong.
typedef unsigned int u32;
typedef unsigned long long u64;

// sidestep_wire::{Regs, LookupEntry}
struct regs {
    u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss;
};
struct entry {
    u64 key, cells, state, owner;
};

#define AT(name) __attribute__((section(name), used, noinline))
#define CHECK(what)              \
    do {                         \
        if (!(what))             \
            leave(__LINE__);     \
    } while (0)

extern char probed, probed_ret4, punned, trapped, behind_trap;
u32 registers[8] asm("registers"), results[8] asm("results"), flags_in asm("flags_in"), flags_out asm("flags_out");
u32 target asm("target");
struct entry buckets[8192] __attribute__((section(".lookup")));
char descs[8 * DESC_LEN] __attribute__((section(".descs"))) = {1};
asm(".section .generated,\"awx\"\n .skip 0x10000,0xcc\n .text\n");
static u64 cells[8];
static u32 self;
static struct regs seen;
static u32 hits, slots, returns, signals, last_probe, last_state, last_private, real_return, slot, kept, wanted;
static u32 (*replacement)(void);

static int call(int number, int a, int b, int c, int d) {
    int result;
    asm volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d) : "memory");
    return result;
}

static void leave(int status) {
    call(1, status, 0, 0, 0);
}

AT(".agent_slot") struct entry *agent_slot(u32 private, u64 tp) {
    CHECK(private == 0x12345678 && tp == (u32)&self);
    slots++;
    // sidestep_wire::lookup::bucket
    struct entry *entry = &buckets[(tp * 0x1e3779b1ull >> 32) & 8191];
    *entry = (struct entry){tp, (u32)cells, 0xabcd0, tp};
    return entry;
}

AT(".agent_hit") u64 agent_hit(struct regs *regs, u32 state, u32 private, u32 probe) {
    CHECK((u32)regs % 8 == 0 && (u32)__builtin_dwarf_cfa() % 16 == 0);
    seen = *regs;
    hits++;
    last_probe = probe, last_state = state, last_private = private;
    if (probe == 2) {
        slot = regs->rsp;
        real_return = *(u32 *)(u32)regs->rsp;
        *(u32 *)(u32)regs->rsp = TRAMPOLINE;
    }
    if (probe == 3)
        regs->rax = 1000, regs->rsi = 77;
    if (probe == 4)
        *(u64 *)((char *)regs + OVERRIDDEN) = 1, regs->rax = 5;
    if (probe == 5)
        regs->rip = (u32)replacement;
    return 0;
}

AT(".agent_return") u64 agent_return(struct regs *regs, u32 state, u32 private) {
    CHECK(state == 0xabcd0 && private == 0x12345678);
    seen = *regs;
    kept = *(u32 *)slot;
    returns++;
    return real_return;
}

static void handler(int number, void *info, void *context) {
    CHECK(number == 5 && info && context);
    signals += 100;
}

AT(".agent_signal") u64 agent_signal(u32 private, int number, u32 *info, char *context) {
    CHECK(private == 0x12345678 && number == 5 && info[0] == 5);
    signals++;
    // `struct ucontext`: the instruction pointer is behind the trap.
    CHECK(*(char **)(context + 20 + 14 * 4) == &behind_trap);
    return wanted;
}

// Calls `target` with all registers and flags as in `registers` and `flags_in`, and notes what they are then.
asm(".globl run\nrun:\n pushal\n mov %esp,saved\n"
    "mov registers+4,%ecx\n mov registers+8,%edx\n mov registers+12,%ebx\n mov registers+20,%ebp\n"
    "mov registers+24,%esi\n mov registers+28,%edi\n pushl flags_in\n popf\n mov registers,%eax\n call *target\n"
    "mov %eax,results\n mov %ecx,results+4\n mov %edx,results+8\n mov %ebx,results+12\n mov %esp,results+16\n"
    "mov %ebp,results+20\n mov %esi,results+24\n mov %edi,results+28\n pushf\n popl flags_out\n"
    "cld\n mov saved,%esp\n popal\n ret\n .comm saved,4\n"
    ".section .probed,\"ax\"\n.globl probed\nprobed:\n push %ebp\n mov %esp,%ebp\n lea 3(%eax,%ecx),%eax\n pop %ebp\n ret\n"
    ".p2align 4\n .globl probed_ret4\nprobed_ret4:\n mov %eax,%edx\n sub %ecx,%edx\n ret $4\n"
    ".p2align 4\n .globl trapped\ntrapped:\n int3\n.globl behind_trap\nbehind_trap:\n mov $9,%eax\n ret\n"
    ".p2align 4\n .globl punned\npunned:\n xor %edx,%edx\n1: mov $0x6000,%eax\n inc %edx\n cmp $3,%edx\n jne 1b\n ret\n"
    ".p2align 4\n .globl other\nother:\n mov $4242,%eax\n ret\n.text\n");
void run(void);
u32 other(void);

// Everything is kept but what the function and the probe change.
static void check_kept(u32 eax, u32 esi) {
    CHECK(results[0] == eax && results[6] == esi);
    for (int i = 1; i < 8; i++)
        CHECK(i == 4 || i == 6 || results[i] == registers[i]);
    CHECK(((flags_out ^ flags_in) & 0xcd5) == 0);
}

static void check_context(u32 probe) {
    CHECK(last_probe == probe && last_state == 0xabcd0 && last_private == 0x12345678);
    CHECK(seen.rax == registers[0] && seen.rcx == registers[1] && seen.rdx == registers[2] && seen.rbx == registers[3]);
    CHECK(seen.rbp == registers[5] && seen.rsi == registers[6] && seen.rdi == registers[7]);
    CHECK(seen.rsp == results[4] - 4 && seen.cs == 0x23 && seen.ss == 0x2b && seen.r8 == 0);
    CHECK((seen.eflags & 0xcd5) == (flags_in & 0xcd5) && seen.rip == (u32)&probed);
}

void _start(void) {
    // struct user_desc: any entry, the word that `%gs:0` is, 32-bit, limit in pages, usable.
    struct {
        u32 entry, base, limit, bits;
    } segment = {-1, (u32)&self, 0xfffff, 1 | 1 << 4 | 1 << 6};
    self = (u32)&self;
    CHECK(call(243, (int)&segment, 0, 0, 0) == 0);
    asm volatile("mov %0, %%gs" : : "r"(segment.entry << 3 | 3));
    for (int i = 0; i < 8; i++)
        registers[i] = 0x81234560u + 0x1010101u * i;
    u32 sum = registers[0] + registers[1] + 3;
    flags_in = 0x202 | 1 | 1 << 6 | 1 << 11;

    for (int i = 0; i < 8; i++)
        *(u64 *)(descs + i * DESC_LEN + DESC_SITE) = (u32)&probed;
    target = (u32)&probed;
    CHECKS
    leave(0);
}
