/* A library whose exceptions go through the frames of its caller; with PROGRAM, a program that does that by itself. */
#define THROWN __attribute__((noipa))

extern "C" THROWN long thrower(long n)
{
    if (n % 2)
        throw n;
    return n;
}

extern "C" THROWN long run(long (*through)(long), long n)
{
    long caught = 0;
    for (long i = 0; i < n; i++)
        try {
            through(i);
        } catch (long) {
            caught++;
        }
    return caught;
}

#ifdef PROGRAM
#include "serve.h"

static long (*target)(long) = thrower;
extern "C" THROWN long through(long n) { return target(n); }

static long thrown(long n) { return run(through, n); }

int main(int argc, char **argv)
{
    static const struct command commands[] = {{"thrown", thrown}, {nullptr, nullptr}};
    return serve(argc, argv, commands);
}
#endif
