/* Plain calls: a leaf, a recursion, a function with seven arguments, a string. Built dynamic, static and with musl. */
#include "leaf.h"
#include "serve.h"
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

PROBED long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

/* Odd numbers recurse through another function, so two probed functions alternate on the stack. */
PROBED long odd(long n);
PROBED long even(long n) { return n == 0 ? 1 : odd(n - 1); }
PROBED long odd(long n) { return n == 0 ? 0 : even(n - 1) + 0 * fib(1); }

PROBED long seven(long a, long b, long c, long d, long e, long f, long g) { return a + b + c + d + e + f + g; }
PROBED long text(const char *s, int n) { return (long)strlen(s) + n; }
PROBED double real(double x, double y) { return x * y + 0.5; }

static void *work_thread(void *n) { return (void *)work((long)(intptr_t)n); }

static long threads(long n)
{
    pthread_t t[64];
    long sum = 0;
    for (int i = 0; i < 64; i++)
        if (pthread_create(&t[i], NULL, work_thread, (void *)n))
            exit(3);
    for (int i = 0; i < 64; i++) {
        void *part;
        pthread_join(t[i], &part);
        sum += (long)part;
    }
    return sum;
}

static long sevens(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += seven(i, 1, 2, 3, 4, 5, 6);
    return sum;
}

static long texts(long n)
{
    char s[32];
    long sum = 0;
    for (long i = 0; i < n; i++) {
        snprintf(s, sizeof s, "line %ld", i);
        sum += text(s, -1);
    }
    return sum;
}

static long reals(long n)
{
    double sum = 0;
    for (long i = 0; i < n; i++)
        sum = real(1.0, sum);
    return (long)(2 * sum);
}

/* All of the first 4 GiB, as V8 reserves it for its sandbox. */
static long low(long n)
{
    (void)n;
    char *wanted = (char *)0x10000;
    return mmap(wanted, ((uint64_t)4 << 30) - 0x10000, PROT_NONE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == wanted;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "work", work },   { "fib", fib },     { "even", even },   { "threads", threads },
        { "seven", sevens }, { "text", texts }, { "real", reals }, { "low", low },
        { 0 },
    };
    return serve(argc, argv, table);
}
