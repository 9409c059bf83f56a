/* Data that scripts look at by its name, and signals that they send. */
#include <signal.h>
#include "serve.h"

int counter = 41;
short narrow = 7;
const char *greeting = "hello";
char buffer[32];

PROBED long visit(long n)
{
    return n + counter;
}

static long visits(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += visit(i);
    return sum;
}

// Begins with a push: `n` is kept over the call.
__attribute__((noipa)) long keep(long n)
{
    return visit(n) + n;
}

static long keeps(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += keep(i);
    return sum;
}

static volatile long got;

static void on_signal(int signal)
{
    got += signal;
}

/* The sum of the signals that came, each of them before the call in which it was sent goes on. */
static long signals(long n)
{
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    got = 0;
    for (long i = 0; i < n; i++)
        visit(i);
    return got;
}

static const struct command commands[] = {{"visits", visits}, {"keeps", keeps}, {"signals", signals}, {}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
