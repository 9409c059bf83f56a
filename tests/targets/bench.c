/* Times calls of one function: "FUNCTION CALLS" answers picoseconds of this thread's CPU time per call.
 * "trap CALLS" is the floor of any trap probe: a bare int3 with an empty SIGTRAP handler, installed for that round.
 * A function is called once before the round, to have its page and its probe warm. */
#include "serve.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

typedef long function(void *);
function f_nop, f_nop5, f_push, f_ret, f_endbr64, f_sub, f_mov, f_usdt, f_usdt5, f_usdt_stack;

static long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long time_of(function *f, long calls)
{
    /* f_mov reads through the pointer; some probes read a string there. */
    static long cell[8];
    memcpy(cell, "sixteen letters.", 17);
    function *volatile opaque = f;
    f = opaque;
    f(cell);
    long start = now();
    for (long i = 0; i < calls; i++)
        f(cell);
    return (now() - start) * 1000 / calls;
}

static void *worker(void *calls) { return (void *)time_of(f_push, (long)calls); }

/* Two threads at once: what a call of f_push costs each. */
static long pair(long calls)
{
    pthread_t threads[2];
    void *times[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, worker, (void *)calls);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], &times[i]);
    return ((long)times[0] + (long)times[1]) / 2;
}

static void ignore(int sig) { (void)sig; }

static long trap(long calls)
{
    struct sigaction sa = { .sa_handler = ignore }, old;
    sigaction(SIGTRAP, &sa, &old);
    long start = now();
    for (long i = 0; i < calls; i++)
        __asm__ volatile("int3");
    long end = now();
    sigaction(SIGTRAP, &old, NULL);
    return (end - start) * 1000 / calls;
}

/* Two reads of the time stamp counter: what any latency probe needs. */
static long stamps(long calls)
{
    unsigned long sum = 0;
    long start = now();
    for (long i = 0; i < calls; i++) {
        unsigned long a = __builtin_ia32_rdtsc();
        sum += __builtin_ia32_rdtsc() - a;
    }
    __asm__ volatile("" : : "r"(sum));
    return (now() - start) * 1000 / calls;
}

/* As many additions and stores as the processor can do at once: slower while another thread of its core is busy, ours or somebody
 * else's. */
static long calm(long calls)
{
    static volatile long cells[4];
    long a = 0, b = 0, c = 0, d = 0, start = now();
    for (long i = 0; i < calls; i++)
        __asm__ volatile("add $1,%0; add $1,%1; add $1,%2; add $1,%3; add $3,%0; add $3,%1; add $3,%2; add $3,%3\n\t"
                         "mov %0,%4; mov %1,%5; mov %2,%6; mov %3,%7; add $1,%0; add $1,%1; add $1,%2; add $1,%3"
                         : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "=m"(cells[0]), "=m"(cells[1]), "=m"(cells[2]),
                           "=m"(cells[3]));
    return (now() - start) * 1000 / calls;
}

/* Runs on this processor from now on, below 0 on any; fails where there is no such. */
static long cpu(long which)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (long i = 0; i < CPU_SETSIZE; i++)
        if (which < 0 || i == which)
            CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

#define TIMED(name) static long time_##name(long calls) { return time_of(name, calls); }
TIMED(f_nop) TIMED(f_nop5) TIMED(f_push) TIMED(f_ret) TIMED(f_endbr64) TIMED(f_sub) TIMED(f_mov)
TIMED(f_usdt) TIMED(f_usdt5) TIMED(f_usdt_stack)

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "f_nop", time_f_nop },         { "f_nop5", time_f_nop5 }, { "f_push", time_f_push }, { "f_ret", time_f_ret },
        { "f_endbr64", time_f_endbr64 }, { "f_sub", time_f_sub },   { "f_mov", time_f_mov },   { "trap", trap },
        { "f_usdt", time_f_usdt }, { "f_usdt5", time_f_usdt5 }, { "f_usdt_stack", time_f_usdt_stack },
        { "stamps", stamps },            { "pair", pair },        { "calm", calm },     { "cpu", cpu },       { 0 },
    };
    return serve(argc, argv, table);
}
