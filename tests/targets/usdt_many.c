/* 50,000 sites of static probes: "run N" hits each N times. */
#include "serve.h"

long many(long a);

static long run(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += many(i);
    return sum;
}

static const struct command commands[] = {{"run", run}, {NULL, NULL}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
