/* A function that calls nothing, and a command that calls it n times. */
#pragma once
#include "serve.h"

PROBED long leaf(long x) { return x * 3 + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += leaf(i);
    return sum;
}
