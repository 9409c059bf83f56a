/* What the kernel's own tests of probes are about: a call that stays inside for a while, many functions, stacks. */
#include "serve.h"
#include <pthread.h>
#include <unistd.h>

static int pipes[2];

/* Of negative numbers it waits to be let go. */
PROBED long consumed(long n)
{
    char c;
    if (n < 0 && read(pipes[0], &c, 1) != 1)
        return 0;
    return n * 2;
}

PROBED long outer(long n) { return consumed(n) + 1; }
PROBED long outermost(long n) { return outer(n) + 1; }
PROBED void elsewhere(void) {}

/* many_00 to many_ff */
#define SIXTEEN(of, t)                                                                                                 \
    of(t##0) of(t##1) of(t##2) of(t##3) of(t##4) of(t##5) of(t##6) of(t##7)                                            \
    of(t##8) of(t##9) of(t##a) of(t##b) of(t##c) of(t##d) of(t##e) of(t##f)
#define ALL(of)                                                                                                        \
    SIXTEEN(of, 0) SIXTEEN(of, 1) SIXTEEN(of, 2) SIXTEEN(of, 3) SIXTEEN(of, 4) SIXTEEN(of, 5) SIXTEEN(of, 6)           \
    SIXTEEN(of, 7) SIXTEEN(of, 8) SIXTEEN(of, 9) SIXTEEN(of, a) SIXTEEN(of, b) SIXTEEN(of, c) SIXTEEN(of, d)           \
    SIXTEEN(of, e) SIXTEEN(of, f)
#define DEFINE(d) PROBED long many_##d(long n) { return n + 0x##d; }
#define CALL(d) sum += many_##d(n);
ALL(DEFINE)

static long many(long n)
{
    long sum = 0;
    ALL(CALL)
    return sum;
}

static long calls(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += consumed(i);
    return sum;
}

static pthread_t inside[64];
static long entered;

static void *enter_one(void *arg)
{
    __atomic_add_fetch(&entered, 1, __ATOMIC_RELAXED);
    return (void *)consumed((long)arg);
}

/* Threads 1 to n wait inside. */
static long enter(long n)
{
    entered = 0;
    for (long i = 1; i <= n; i++)
        pthread_create(&inside[i], NULL, enter_one, (void *)-i);
    while (__atomic_load_n(&entered, __ATOMIC_RELAXED) != n)
        usleep(100);
    /* Between the count and the read there is the probe. */
    usleep(20000);
    return n;
}

static long leave(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        if (write(pipes[1], "x", 1) != 1)
            return 1;
    for (long i = 1; i <= n; i++) {
        void *result;
        pthread_join(inside[i], &result);
        sum += (long)result;
    }
    return sum;
}

static long deep(long n) { return outermost(n); }

static const struct command commands[] = {
    {"many", many}, {"calls", calls}, {"enter", enter}, {"leave", leave}, {"deep", deep}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    if (pipe(pipes))
        return 1;
    elsewhere();
    return serve(argc, argv, commands);
}
