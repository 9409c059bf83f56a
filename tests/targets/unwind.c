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

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "jump", jumps }, { "signals", signals }, { "sigjump", sigjumps }, { "coroutines", coroutines }, { 0 },
    };
    return serve(argc, argv, table);
}
