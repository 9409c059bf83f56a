/* A program that LLVM's XRay instruments while it runs: `patch` and `unpatch` change the start and the exits of the
   functions. `entries` and `exits` are XRay's own counts. */
#include "serve.h"

int __xray_patch(void);
int __xray_unpatch(void);
int __xray_set_handler(void (*handler)(int function, int type));

#define INSTRUMENTED __attribute__((noinline, xray_always_instrument))

static volatile long counts[2];

__attribute__((xray_never_instrument)) static void handler(int function, int type)
{
    (void)function;
    counts[type != 0]++;
}

INSTRUMENTED long leaf(long x) { return x * 3 + 1; }

INSTRUMENTED long outer(long x)
{
    long y = leaf(x);
    __asm__ volatile("" : "+r"(y));
    return y + 1;
}

__attribute__((xray_never_instrument)) static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += outer(i);
    return sum;
}

/* 1: done. */
static long patch(long n) { return n ? __xray_patch() : __xray_unpatch(); }
static long entries(long n) { return counts[0] + n; }
static long exits(long n) { return counts[1] + n; }

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "work", work }, { "patch", patch }, { "entries", entries }, { "exits", exits }, { 0 },
    };
    __xray_set_handler(handler);
    return serve(argc, argv, table);
}
