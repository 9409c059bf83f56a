/* Waits for its commands in a frame that covers what earlier calls, and their signals, have left on the stack. */
#include "leaf.h"

/* Calls the leaf n times, each time at another depth. */
PROBED static long deeper(long levels)
{
    volatile char frame[64];
    frame[0] = 0;
    return frame[0] + (levels ? deeper(levels - 1) : work(10));
}

PROBED static long depths(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += deeper(i);
    return sum;
}

PROBED static char *next(char *line, int len)
{
    char covers[32 << 10];
    __asm__ volatile("" : : "r"(covers) : "memory");
    char *got = fgets(line, len, stdin);
    __asm__ volatile("" : : "r"(covers) : "memory");
    return got;
}

int main(void)
{
    static char line[128];
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (next(line, sizeof line))
        printf("%ld\n", depths(atol(strchr(line, ' '))));
    return 0;
}
