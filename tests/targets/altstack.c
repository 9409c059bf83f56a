/* Threads that share one alternate signal stack, which is meant for the handler of a fault that ends
 * the program: `share N` starts four such threads, each of which calls `leaf` N times. `own N`: each
 * has a stack of its own. A thread gets its stack when it has begun. */
#include "serve.h"
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

enum { THREADS = 4, SIZE = 1 << 16 };

static char stacks[THREADS][SIZE];
static long rounds, sums[THREADS];
static int is_shared;

PROBED long leaf(long x)
{
    return x * 3 + 1;
}

static void *work(void *number)
{
    long n = (long)number, sum = 0;
    stack_t stack = {.ss_sp = stacks[is_shared ? 0 : n], .ss_size = SIZE};
    stack_t none = {.ss_flags = SS_DISABLE};
    if (sigaltstack(&stack, 0) != 0)
        exit(3);
    for (long i = 0; i < rounds; i++)
        sum += leaf(i);
    sums[n] = sum;
    sigaltstack(&none, 0);
    return 0;
}

static void fault(int signal)
{
    (void)signal;
    _exit(4);
}

/* The sum of what the threads have got. */
static long all(long n, int shared)
{
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_ONSTACK};
    pthread_t threads[THREADS];
    long sum = 0;
    rounds = n;
    is_shared = shared;
    sigaction(SIGSEGV, &action, 0);
    for (long i = 0; i < THREADS; i++)
        pthread_create(threads + i, 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], 0);
        sum += sums[i];
    }
    return sum;
}

/* Threads that are there when somebody attaches: they call `leaf` until `stop`. */
static volatile int go_on;
static pthread_t running[THREADS];

static void *spin(void *number)
{
    stack_t stack = {.ss_sp = stacks[0], .ss_size = SIZE};
    long n = (long)number, sum = 0, i = 0;
    sigaltstack(&stack, 0);
    /* 0 if all results are right. A `long` may have 32 bits. */
    for (; go_on; i = (i + 1) & 0xffff)
        sum += leaf(i) ^ (i * 3 + 1);
    sums[n] = sum;
    return 0;
}

static long share(long n)
{
    return all(n, 1);
}

static long own(long n)
{
    return all(n, 0);
}

static long start(long n)
{
    struct sigaction action = {.sa_handler = fault, .sa_flags = SA_ONSTACK};
    sigaction(SIGSEGV, &action, 0);
    go_on = 1;
    for (long i = 0; i < THREADS; i++)
        pthread_create(running + i, 0, spin, (void *)i);
    return n;
}

static long stop(long n)
{
    go_on = 0;
    for (int i = 0; i < THREADS; i++) {
        pthread_join(running[i], 0);
        n += sums[i];
    }
    return n;
}

int main(int argc, char **argv)
{
    static const struct command commands[] = {
        {"share", share}, {"own", own}, {"start", start}, {"stop", stop}, {0, 0}};
    return serve(argc, argv, commands);
}
