// A load that may throw (-fnon-call-exceptions): what its landing pad reads is dead on the other way.
#include <csignal>
#include <cstdio>
#include <cstdlib>

static void raise_it(int) { throw 1; }

__attribute__((noinline)) long get(const long *p, long otherwise)
{
    try {
        return *p;
    } catch (int) {
        return otherwise;
    }
}

int main(int argc, char **argv)
{
    struct sigaction action = {};
    action.sa_handler = raise_it;
    action.sa_flags = SA_NODEFER;
    sigaction(SIGSEGV, &action, nullptr);
    long n = argc > 1 ? atol(argv[1]) : 2000, sum = 0, there = 5;
    for (long i = 0; i < n; i++)
        sum = sum * 31 + get(i % 3 ? &there : nullptr, i);
    printf("%ld\n", sum);
    return 0;
}
