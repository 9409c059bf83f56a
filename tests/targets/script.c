/* What scripts look at: integers, strings, more arguments than registers, recursion. */
#include "serve.h"

PROBED int add(int a, int b) { return a + b; }
PROBED long size(unsigned long bytes) { return bytes * 2; }
PROBED int named(const char *name, long n) { return name ? (int)strlen(name) + (int)n : -1; }
PROBED long nine(long a, long b, long c, long d, long e, long f, long g, long h, long i)
{
    return a + b + c + d + e + f + g + h + i;
}
PROBED long down(long n) { return n ? down(n - 1) + 1 : 0; }
PROBED long words(const int *array, long n) { return array[n]; }
PROBED long outer(long n) { return add(n, 1) + 1; }

static long adds(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += add(i, -2 * i);
    return sum;
}

static long sizes(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += size(i);
    return sum;
}

static long names(long n)
{
    static const char *all[] = {"alpha", "beta", "gamma", "", "a name that is longer than the others"};
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += named(all[i % 5], i);
    return sum;
}

static long null(long n) { return named(NULL, n); }
static long nines(long n) { return nine(n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8); }
static long outers(long n) { return outer(n); }
static long array(long n)
{
    static const int all[] = {10, -20, 30, 40};
    return words(all, n);
}

static const struct command commands[] = {
    {"adds", adds}, {"sizes", sizes}, {"names", names}, {"nines", nines}, {"down", down}, {"outers", outers},
    {"array", array}, {"null", null}, {}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
