/* Threads that compute and check, and threads that wait in the kernel, while probes come and go. */
#include "serve.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

PROBED long leaf(long x) { return x * 3 + 1; }
PROBED long mix(long a, long b) { return (a ^ (b << 3)) + leaf(a & 7); }
PROBED long tree(long n) { return n < 2 ? 1 : tree(n - 1) + tree(n - 2) + (mix(n, 1) & 0); }
PROBED double real(double x) { return x * 1.5 + 0.25; }
PROBED long bytes(char *p, long n) { memset(p, (int)n, 64); return p[n & 63]; }

static volatile int stop;
static volatile long wrong, rounds;
static int pipes[2];

static void *compute(void *arg)
{
    char buffer[64];
    for (long i = (long)arg; !stop; i++) {
        long bad = leaf(i) != i * 3 + 1;
        bad += mix(i, 5) != (i ^ 40) + (i & 7) * 3 + 1;
        bad += tree(7) != 21;
        bad += real((double)(i & 1023)) != (double)(i & 1023) * 1.5 + 0.25;
        bad += bytes(buffer, i & 63) != (i & 63);
        if (bad)
            __atomic_add_fetch(&wrong, bad, __ATOMIC_RELAXED);
        __atomic_add_fetch(&rounds, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Sleeps must take their time and end without an error. */
static void *sleeper(void *arg)
{
    (void)arg;
    while (!stop) {
        struct timespec ms = { 0, 20000000 }, a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        int r = clock_nanosleep(CLOCK_MONOTONIC, 0, &ms, NULL);
        clock_gettime(CLOCK_MONOTONIC, &b);
        long us = (b.tv_sec - a.tv_sec) * 1000000 + (b.tv_nsec - a.tv_nsec) / 1000;
        if (r != 0 || us < 20000)
            __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Blocked in read until the end. */
static void *reader(void *arg)
{
    char c = 0;
    (void)arg;
    if (read(pipes[0], &c, 1) != 1 || c != 'x')
        __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    return NULL;
}

static pthread_t threads[8];

static long start(long n)
{
    void *(*const run[8])(void *) = { compute, compute, compute, compute, compute, sleeper, sleeper, reader };
    if (pipe(pipes))
        return -1;
    for (long i = 0; i < 8; i++)
        if (pthread_create(&threads[i], NULL, run[i], (void *)i))
            return -1;
    return n;
}

/* The answer is the number of wrong results. */
static long finish(long n)
{
    stop = 1;
    if (write(pipes[1], "x", 1) != 1)
        return -1;
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    return wrong + n;
}

static long progress(long n) { return rounds + n; }

/* Memory whose end takes the kernel a while: so many MiB, one small page after the other. */
static long fill(long mib)
{
    size_t size = (size_t)mib << 20;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    madvise(memory, size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < size; at += 4096)
        memory[at] = 1;
    return mib;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "start", start }, { "finish", finish }, { "rounds", progress }, { "fill", fill }, { 0 },
    };
    return serve(argc, argv, table);
}
