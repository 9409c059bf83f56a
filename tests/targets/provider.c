/* Probes of our own header, in C and in C++. `provider N` hits each N times, and says how often the arguments of the lazy one were
 * computed. */
#include <sidestep/sdt.h>
#include <stdio.h>
#include <stdlib.h>

SIDESTEP_SEMAPHORE(provider, lazy);

enum color { RED = 1, BLUE = -7 };

static int computed;

static long expensive(long n)
{
    computed++;
    return n * 2;
}

__attribute__((noinline)) static void hit(long a, int b, unsigned short c, const char *text, double d, float e, enum color k)
{
    char array[] = "array";

    SIDESTEP_PROBE(provider, none);
    SIDESTEP_PROBE(provider, two, a, b);
    SIDESTEP_PROBE(provider, kinds, c, text, k, (signed char)b, array, 5);
    SIDESTEP_PROBE(provider, floats, d, e);
    SIDESTEP_PROBE(provider, twelve, a, b, a + 1, b + 2, c, a * 3, b * 4, a - 5, 8, a ^ 9, b | 10, text);
    SIDESTEP_PROBE_IF_ENABLED(provider, lazy, expensive(a));
}

int main(int argc, char **argv)
{
    int i, n = argc > 1 ? atoi(argv[1]) : 1;

    for (i = 0; i < n; i++)
        hit(i, -i, i, "text", i * 1.5, i * 0.25f, BLUE);
    printf("%d\n", computed);
    return 0;
}
