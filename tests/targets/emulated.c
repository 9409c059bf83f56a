/* Runs the instructions of emulated_asm.S from random registers, flags and stacks. Each answer is a digest of what they left
 * behind: the same in the same process, with and without probes. */
#include "serve.h"
#include <pthread.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __i386__
#define REG_RIP REG_EIP
#define REG_RSP REG_ESP
enum { RSP = 7, FLAGS, WORDS };
/* A signal may come at any moment, and its frame begins at the stack pointer. */
enum { KEPT_BELOW = 0 };
#else
enum { RSP = 15, FLAGS, WORDS };
enum { KEPT_BELOW = 8 };
#endif

/* CF, PF, AF, ZF, SF, DF, OF. */
#define ARITHMETIC 0xcd5ul
#define ALWAYS 0x202ul
#define SINGLE_STEP 0x100ul

extern unsigned long state_in[WORDS], state_out[WORDS];
extern void (*const cases[])(void), (*const old_cases[])(void);
void run_case(void (*function)(void));

#define STACK 65536
static _Alignas(4096) char stack[STACK];

static uint64_t digest;
static volatile long traps, steps, ticks;

static void add(uint64_t word) { digest = (digest ^ word) * 0x100000001b3ull; }

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

/* Above the interrupted stack pointer, and what is certainly kept below it. */
static void one(void (*function)(void), uint64_t *random, uint64_t flags, uint64_t depth)
{
    for (int word = 0; word < RSP; word++)
        state_in[word] = (unsigned long)next(random);
    state_in[RSP] = (unsigned long)stack + depth;
    state_in[FLAGS] = (next(random) & ARITHMETIC) | ALWAYS | flags;
    unsigned long *top = (unsigned long *)state_in[RSP];
    for (int word = -KEPT_BELOW; word < 16; word++)
        top[word] = (unsigned long)next(random);
    run_case(function);
    for (int word = 0; word < WORDS; word++)
        add(state_out[word]);
    for (int word = -KEPT_BELOW; word < 16; word++)
        if (KEPT_BELOW || top + word >= (unsigned long *)state_out[RSP])
            add(top[word]);
}

static long result(void) { return (long)(digest >> 1 & LONG_MAX); }

/* n rounds of all these cases, with stack pointers all over two pages. */
static long check_all(void (*const list[])(void), long n)
{
    uint64_t random = 88172645463325252ull;
    digest = 0xcbf29ce484222325ull;
    for (long i = 0; i < n; i++)
        for (int c = 0; list[c]; c++)
            one(list[c], &random, 0, STACK - 16384 + 8 * (next(&random) % 1024));
    return result();
}

static long check(long n) { return check_all(cases, n); }

/* What only 32-bit code has. */
static long old(long n) { return check_all(old_cases, n); }

static void on_tick(int sig) { ticks += sig == SIGALRM; }

/* The same while a timer fires a thousand times a second. */
static long storm(long n)
{
    struct sigaction sa = { .sa_handler = on_tick };
    struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
    sigaction(SIGALRM, &sa, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    long answer = check(n);
    setitimer(ITIMER_REAL, &never, NULL);
    return answer;
}

static void on_trap(int sig, siginfo_t *info, void *context)
{
    unsigned long *regs = (unsigned long *)((ucontext_t *)context)->uc_mcontext.gregs;
    traps += sig == SIGTRAP;
    if (info->si_code == TRAP_TRACE) {
        steps++;
        add(regs[REG_RIP]);
        add((uintptr_t)info->si_addr);
        add((uint64_t)regs[REG_TRAPNO] << 32 | regs[REG_ERR]);
        add(regs[REG_RSP]);
    }
}

static void handle(int flags)
{
    struct sigaction sa = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | flags };
    sigaction(SIGTRAP, &sa, NULL);
}

static long install(long n)
{
    handle(0);
    return n;
}

/* With breakpoints of the program's own in between. */
static long mixed(long n)
{
    uint64_t all = 0;
    traps = 0;
    for (long i = 0; i < n; i++) {
        __asm__ volatile("int3");
        all ^= (uint64_t)check(1);
    }
    return traps == n ? (long)(all + (uint64_t)n) : -1;
}

static void *on_other_stack(void *n)
{
    stack_t other = { .ss_size = 1 << 16 };
    other.ss_sp = mmap(NULL, other.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigaltstack(&other, NULL);
    handle(SA_ONSTACK);
    return (void *)check((long)n);
}

/* In a thread whose signals are handled on a stack of their own. */
static long altstack(long n)
{
    pthread_t thread;
    void *answer;
    pthread_create(&thread, NULL, on_other_stack, (void *)n);
    pthread_join(thread, &answer);
    return (long)answer;
}

/* In a child, whose hits are not counted. */
static long child(long n)
{
    int status, ends[2];
    long answer = -1;
    pipe(ends);
    if (fork() == 0) {
        answer = check(n);
        _exit(write(ends[1], &answer, sizeof answer) != sizeof answer);
    }
    if (read(ends[0], &answer, sizeof answer) != sizeof answer || wait(&status) < 0 || status)
        answer = -1;
    close(ends[0]);
    close(ends[1]);
    return answer;
}

/* In single steps: the digest is also of all addresses that the handler is shown. The last case has instructions that are not
 * emulated. */
static long step(long n)
{
    uint64_t random = 2463534242ull;
    digest = 0xcbf29ce484222325ull;
    handle(0);
    steps = 0;
    for (long i = 0; i < n; i++)
        for (int c = 0; cases[c + 1]; c++)
            one(cases[c], &random, SINGLE_STEP, STACK - 2048);
    add((uint64_t)steps);
    return steps > 10 * n ? result() : -1;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "check", check }, { "storm", storm }, { "install", install }, { "mixed", mixed }, { "altstack", altstack },
        { "child", child }, { "step", step },   { "old", old }, { 0 },
    };
    return serve(argc, argv, table);
}
