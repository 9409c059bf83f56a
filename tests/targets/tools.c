/* What the tools look for: calls from two places, sleeps, leaks. With frame pointers. */
#include "serve.h"
#include <unistd.h>

PROBED long inner(long n, const char *text) { return n + text[0]; }

PROBED long left(long n) { return inner(n, "left") + 1; }
PROBED long right(long n) { return inner(n, "right") + 2; }

/* 3 calls by one way, 5 by the other, n times. */
static long calls(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++) {
        for (int k = 0; k < 3; k++)
            sum += left(k) & 1;
        for (int k = 0; k < 5; k++)
            sum += right(k) & 1;
    }
    return sum;
}

PROBED long nap(long ms)
{
    usleep(ms * 1000);
    return 2 * ms;
}

/* Every other one is long. */
static long naps(long n)
{
    for (long i = 0; i < n; i++)
        nap(i % 2 ? 60 : 0);
    return n;
}

static void *volatile kept[1000];
static int keeps;

PROBED void *keep(void *p) { return kept[keeps++] = p; }
PROBED void leak_small(long size) { keep(malloc(size)); }
PROBED void leak_zeroed(long size) { keep(calloc(3, size)); }
PROBED void leak_grown(long size) { keep(realloc(malloc(size), 10 * size)); }
PROBED void leak_aligned(long size)
{
    void *p;
    if (posix_memalign(&p, 64, size))
        exit(3);
    keep(p);
}
PROBED void leak_large(long size) { keep(malloc(size)); }
PROBED void no_leak(long size) { free(realloc(malloc(size), 2 * size)); }

/* Answers how many bytes of ours are not free. */
static long leaks(long n)
{
    for (long i = 0; i < n; i++) {
        leak_small(100);
        leak_zeroed(20);
        leak_grown(70);
        leak_aligned(300);
        no_leak(999);
        no_leak(1 << 20);
    }
    leak_large(1 << 20);
    return n * (100 + 3 * 20 + 10 * 70 + 300) + (1 << 20);
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "calls", calls }, { "naps", naps }, { "leaks", leaks }, { 0 } };
    return serve(argc, argv, table);
}
