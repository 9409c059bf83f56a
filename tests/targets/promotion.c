/* Functions with several instructions within the bytes of a jump (promotion_asm.S). Threads run them without a pause, under
 * signals whose handler runs them, too; all calls are counted. */
#include "serve.h"
#include "call.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

#ifdef __i386__
#define REG_RIP REG_EIP
#define REG_RDX REG_EDX
#endif

void two(void), ones(void), nested(void), calls_last(void), loads(void);

#define CALL(function, argument, second) call_with(function, (long)(argument), (long)(second), 0)

static int answer(void) { return 41; }

static volatile int stop;
static volatile long wrong, called;
static __thread sigjmp_buf back;

static long check(int i)
{
    int value = i;
    long bad = CALL(two, i, 0) != 2 * i + 4;
    bad += CALL(ones, i, 0) != i + 1;
    bad += CALL(nested, i, 0) != i + 6;
    bad += CALL(calls_last, i, answer) != 42;
    bad += CALL(loads, &value, 0) != i + 2;
    return bad;
}

static void note(long bad, long calls)
{
    if (bad)
        __atomic_add_fetch(&wrong, bad, __ATOMIC_RELAXED);
    __atomic_add_fetch(&called, calls, __ATOMIC_RELAXED);
}

static void tick(int signal) { note(check(signal), 1); }

static void *compute(void *arg)
{
    long calls = 0, bad = 0;
    for (int i = (int)(long)arg; !stop; i = (i + 1) & 0xfffff, calls++)
        bad += check(i);
    note(bad, calls);
    return NULL;
}

static pthread_t threads[8];
static long running;

static long start(long n)
{
    struct itimerval ms = { { 0, 1000 }, { 0, 1000 } };
    struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGPROF, &action, NULL);
    stop = 0;
    for (running = 0; running < n; running++)
        if (pthread_create(&threads[running], NULL, compute, (void *)running))
            return -1;
    return setitimer(ITIMER_PROF, &ms, NULL);
}

/* The answer is the number of wrong results. */
static long finish(long n)
{
    struct itimerval none = { 0 };
    stop = 1;
    for (long i = 0; i < running; i++)
        pthread_join(threads[i], NULL);
    setitimer(ITIMER_PROF, &none, NULL);
    return wrong + n;
}

/* How often each function was called. */
static long calls(long n) { return called + n; }

static long work(long n)
{
    for (long i = 0; i < n; i++)
        note(check((int)i), 1);
    return wrong;
}

static const char *fault_at;

static void faulted(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    fault_at = (const char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    siglongjmp(back, 1);
}

/* Where in the function a fault of its second instruction is seen. */
static long faults(long n)
{
    struct sigaction action = { .sa_sigaction = faulted, .sa_flags = SA_SIGINFO }, old;
    sigaction(SIGSEGV, &action, &old);
    if (!sigsetjmp(back, 1))
        CALL(loads, NULL, 0);
    sigaction(SIGSEGV, &old, NULL);
    return fault_at - (const char *)loads + n;
}

static int repaired;

static void repairs(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RDX] = (long)&repaired;
}

/* The handler returns to the instruction. */
static long repair(long n)
{
    struct sigaction action = { .sa_sigaction = repairs, .sa_flags = SA_SIGINFO }, old;
    sigaction(SIGSEGV, &action, &old);
    repaired = (int)n;
    long seen = CALL(loads, NULL, 0);
    sigaction(SIGSEGV, &old, NULL);
    return seen;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "start", start }, { "finish", finish }, { "calls", calls }, { "work", work }, { "faults", faults },
        { "repair", repair }, { 0 },
    };
    return serve(argc, argv, table);
}
