/* Frames that do not return in order: longjmp, signal handlers, coroutines. */
#include "serve.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <ucontext.h>

static jmp_buf back;
static sigjmp_buf sigback;
static volatile long ticks;

PROBED long leaf(long x) { return x * 3 + 1; }

PROBED long deep(long depth, long value)
{
    if (depth == 0)
        longjmp(back, (int)value);
    return deep(depth - 1, value) + leaf(depth);
}

/* n jumps over frames of 1 to 10 calls of deep; some frames stay probed below the setjmp. */
PROBED long jump(long value)
{
    volatile long v = value;
    int r = setjmp(back);
    if (r == 0)
        deep(v % 10, v + 1);
    return r;
}

static long jumps(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += jump(i) + leaf(i);
    return sum;
}

static void tick(int sig)
{
    (void)sig;
    if (leaf(ticks) == ticks * 3 + 1)
        ticks++;
}

static void timer(long us)
{
    struct itimerval t = { { 0, us }, { 0, us } };
    setitimer(ITIMER_REAL, &t, NULL);
}

/* Calls leaf until n signals have called it, too: the answer is the number of all calls of leaf. */
static long signals(long n)
{
    struct sigaction sa = { .sa_handler = tick, .sa_flags = SA_RESTART };
    long calls = 0;
    sigaction(SIGALRM, &sa, NULL);
    ticks = 0;
    timer(1000);
    for (; ticks < n; calls++)
        if (leaf(calls) != calls * 3 + 1)
            exit(3);
    timer(0);
    signal(SIGALRM, SIG_IGN);
    return calls + ticks;
}

static volatile long outer_calls;

static void mask(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigprocmask(how, &set, NULL);
}

static void jump_out(int sig)
{
    (void)sig;
    leaf(1);
    siglongjmp(sigback, 1);
}

PROBED long until_signal(void)
{
    /* Not earlier: every jump is to come out of this function. */
    mask(SIG_UNBLOCK);
    for (;;)
        outer_calls += leaf(outer_calls) != 0;
}

/* n times out of a signal handler over the frames of leaf and until_signal. */
static long sigjumps(long n)
{
    struct sigaction sa = { .sa_handler = jump_out };
    volatile long i;
    sigaction(SIGALRM, &sa, NULL);
    mask(SIG_BLOCK);
    for (i = 0; i < n; i++)
        if (sigsetjmp(sigback, 1) == 0) {
            timer(1000);
            until_signal();
        }
    timer(0);
    signal(SIGALRM, SIG_IGN);
    mask(SIG_UNBLOCK);
    return n;
}

enum { COROUTINES = 8 };
static ucontext_t scheduler, coroutine[COROUTINES];
static long todo[COROUTINES], sums[COROUTINES];

/* Leaves in the middle and returns when all others have been in the middle, too: last in is not first out. */
PROBED long step(long who, long x)
{
    swapcontext(&coroutine[who], &scheduler);
    return x + who;
}

static void run(int who)
{
    for (long i = 0; i < todo[who]; i++)
        sums[who] += step(who, i);
    todo[who] = -1;
}

static long coroutines(long n)
{
    static char stacks[COROUTINES][1 << 16];
    long sum = 0, live = COROUTINES;
    for (int i = 0; i < COROUTINES; i++) {
        getcontext(&coroutine[i]);
        coroutine[i].uc_stack.ss_sp = stacks[i];
        coroutine[i].uc_stack.ss_size = sizeof stacks[i];
        coroutine[i].uc_link = &scheduler;
        todo[i] = n;
        sums[i] = 0;
        makecontext(&coroutine[i], (void (*)(void))run, 1, i);
    }
    for (long round = 0; live; round++) {
        int who = (int)((round * 3) % COROUTINES);
        if (todo[who] < 0)
            continue;
        swapcontext(&scheduler, &coroutine[who]);
        live -= todo[who] < 0;
    }
    for (int i = 0; i < COROUTINES; i++)
        sum += sums[i];
    return sum;
}

/* Functions that set the trap flag (0x100) right before their return: a signal comes before the first instruction behind it. */
long returns(long), takes_argument(long);
#ifdef __x86_64__
enum { WORD = 8, FLAGS = REG_EFL };
asm(".text\n.type returns,@function\nreturns: lea 1(%rdi),%rax\n pushf\n orl $0x100,(%rsp)\n popf\n ret\n.size returns,.-returns\n"
    ".type takes_argument,@function\ntakes_argument: lea 2(%rdi),%rax\n pushf\n orl $0x100,(%rsp)\n popf\n ret\n"
    ".size takes_argument,.-takes_argument\n"
    "call_below: push %rbp\n mov %rsp,%rbp\n sub %rdx,%rsp\n call *%rsi\n leave\n ret\n");
#else
enum { WORD = 4, FLAGS = REG_EFL };
asm(".text\n.type returns,@function\nreturns: mov 4(%esp),%eax\n inc %eax\n pushf\n orl $0x100,(%esp)\n popf\n ret\n"
    ".size returns,.-returns\n"
    ".type takes_argument,@function\ntakes_argument: mov 4(%esp),%eax\n add $2,%eax\n pushf\n orl $0x100,(%esp)\n popf\n ret $4\n"
    ".size takes_argument,.-takes_argument\n"
    "call_below: push %ebp\n mov %esp,%ebp\n sub 16(%ebp),%esp\n push 8(%ebp)\n call *12(%ebp)\n leave\n ret\n");
#endif
/* Calls it with the stack so many bytes lower. */
long call_below(long x, long (*function)(long), long bytes);

PROBED void wipe(void)
{
    char room[2048];
    memset(room, 0xcc, sizeof room);
    asm volatile("" : : "r"(room) : "memory");
}

/* Leaves frames behind, of which nothing is on the stack any more when it returns. */
PROBED long leave(volatile long depth)
{
    if (setjmp(back) == 0)
        deep(depth, 1);
    wipe();
    return depth;
}

static void returned(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[FLAGS] &= ~0x100;
    ticks++;
    if (leave(ticks % 7) != ticks % 7)
        exit(3);
}

/* n calls each, with the stack at all places that differ to the kernel, which puts frames of signals at multiples of 64; with the
 * handler on this stack and on another one in turn. */
static long interrupted(long n)
{
    static char stack[1 << 16];
    stack_t alternate = { .ss_sp = stack, .ss_size = sizeof stack };
    long sum = 0;
    ticks = 0;
    sigaltstack(&alternate, NULL);
    for (long i = 0; i < n; i++) {
        struct sigaction sa = { .sa_sigaction = returned, .sa_flags = SA_SIGINFO | (i % 2 ? SA_ONSTACK : 0) };
        sigaction(SIGTRAP, &sa, NULL);
        sum += call_below(i, returns, i / 2 * WORD % 64) + call_below(i, takes_argument, i / 2 * WORD % 64);
    }
    signal(SIGTRAP, SIG_DFL);
    return sum + ticks;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "jump", jumps }, { "signals", signals }, { "sigjump", sigjumps }, { "coroutines", coroutines },
        { "interrupted", interrupted }, { 0 },
    };
    return serve(argc, argv, table);
}
