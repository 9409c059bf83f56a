/* Two functions that do not use all that they take: one that anybody may call, and one whose callers are all here. */
#include <stdio.h>

__attribute__((noinline)) long anybody(const char *unused, int factor, long n)
{
    __asm__ volatile("" ::"r"(n));
    return n;
}

static __attribute__((noinline)) long here(const char *unused, int factor, long n)
{
    __asm__ volatile("" ::"r"(n));
    return n;
}

int main(void)
{
    long sum = 0;
    for (int i = 1; i < 4; i++)
        sum += anybody("unused", 5 * i, 10 * i) + here("unused", i, i);
    printf("%ld\n", sum);
    return 0;
}
