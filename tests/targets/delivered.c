/* Threads that open a signal which waits for them, so that it is delivered inside the guard of that call: the set has
 * SIGTRAP, too, and so Sidestep makes the call for them. The handlers compute for two fifths of the time, so some thread is
 * always in one. `start N` starts N threads. `rounds 0`: what they have done. `finish 0` ends them, and says how often a
 * mask or a result was wrong. */
#include "serve.h"
#include <pthread.h>
#include <signal.h>
#include <time.h>

enum { THREADS = 16, MS = 1000000 };

static pthread_t threads[THREADS];
static long count, rounds, wrong;
static int ends;
static __thread volatile int handled;

PROBED long step(long x)
{
    return x * 3 + 1;
}

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

/* For a time that the thread has a CPU. */
static void compute(long long time)
{
    for (long long begin = now(); now() - begin < time;)
        for (long i = 0; i < 100; i++)
            if (step(i) != i * 3 + 1)
                __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
}

static void on_signal(int sig)
{
    compute(8 * MS);
    handled = sig;
}

static void *opens_signals(void *arg)
{
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGTRAP);
    while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
        handled = 0;
        pthread_sigmask(SIG_BLOCK, &set, 0);
        pthread_kill(pthread_self(), SIGUSR1);
        if (handled)
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        pthread_sigmask(SIG_UNBLOCK, &set, &old);
        if (handled != SIGUSR1 || !sigismember(&old, SIGUSR1) || !sigismember(&old, SIGTRAP))
            __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
        compute(12 * MS);
        __atomic_fetch_add(&rounds, 1, __ATOMIC_RELAXED);
    }
    return arg;
}

static long start(long n)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigaction(SIGUSR1, &action, 0);
    for (count = 0; count < n && count < THREADS; count++)
        pthread_create(&threads[count], 0, opens_signals, 0);
    return count;
}

static long rounds_done(long n)
{
    (void)n;
    return __atomic_load_n(&rounds, __ATOMIC_RELAXED);
}

static long finish(long n)
{
    (void)n;
    __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
    for (long i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    return wrong;
}

static const struct command commands[] = {
    { "start", start }, { "rounds", rounds_done }, { "finish", finish }, { NULL, NULL }
};

int main(int argc, char **argv) { return serve(argc, argv, commands); }
