/* A thousand functions, or ten, that three threads call all the time, with a signal now and then whose handler calls
 * them, too. */
#include "serve.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#define RESULT(n, x) (((x) ^ (n)) * 3 + ((x) >> 1))
#define F(n) PROBED long many##n(long x) { return RESULT(n, x); }
#define NAME(n) many##n,
#define TEN(m, n) m(n##0) m(n##1) m(n##2) m(n##3) m(n##4) m(n##5) m(n##6) m(n##7) m(n##8) m(n##9)
#define HUNDRED(m, n) TEN(m, n##0) TEN(m, n##1) TEN(m, n##2) TEN(m, n##3) TEN(m, n##4) \
    TEN(m, n##5) TEN(m, n##6) TEN(m, n##7) TEN(m, n##8) TEN(m, n##9)
#define THOUSAND(m, n) HUNDRED(m, n##0) HUNDRED(m, n##1) HUNDRED(m, n##2) HUNDRED(m, n##3) HUNDRED(m, n##4) \
    HUNDRED(m, n##5) HUNDRED(m, n##6) HUNDRED(m, n##7) HUNDRED(m, n##8) HUNDRED(m, n##9)
#ifdef TEN_THOUSAND
#define FIRST 10000
#define ALL(m) THOUSAND(m, 10) THOUSAND(m, 11) THOUSAND(m, 12) THOUSAND(m, 13) THOUSAND(m, 14) \
    THOUSAND(m, 15) THOUSAND(m, 16) THOUSAND(m, 17) THOUSAND(m, 18) THOUSAND(m, 19)
#else
#define FIRST 1000
#define ALL(m) THOUSAND(m, 1)
#endif
ALL(F)

static long (*const all[])(long) = { ALL(NAME) };
enum { COUNT = sizeof all / sizeof *all, THREADS = 3 };

static volatile int stop;
static volatile long wrong, rounds;
static pthread_t threads[THREADS];

static void call(long i, long x)
{
    if (all[i](x) != RESULT(FIRST + i, x))
        __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
}

static void *run(void *arg)
{
    for (long x = (long)arg; !stop; x++) {
        for (long i = 0; i < COUNT; i++)
            call(i, x);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void on_signal(int sig)
{
    for (long i = 0; i < COUNT; i += 7)
        call(i, sig);
}

static long start(long n)
{
    struct sigaction sa = { .sa_handler = on_signal };
    /* What a program may block while its handler runs. */
    sigfillset(&sa.sa_mask);
    sigaction(SIGUSR1, &sa, NULL);
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, run, (void *)i))
            return -1;
    return n;
}

static long signals(long n)
{
    for (long i = 0; i < n; i++)
        pthread_kill(threads[i % THREADS], SIGUSR1);
    return n;
}

/* The answer is the number of wrong results. */
static long finish(long n)
{
    stop = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return wrong + n;
}

/* Each of the functions so many times, while no threads run. */
static long calls(long n)
{
    for (long x = 0; x < n; x++)
        for (long i = 0; i < COUNT; i++)
            call(i, x);
    return wrong + n;
}

static long progress(long n) { return rounds + n; }

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "start", start }, { "finish", finish }, { "signals", signals }, { "calls", calls }, { "rounds", progress }, { 0 },
    };
    return serve(argc, argv, table);
}
