// Looks at its own stack, or lets a debugger look: what is found must not depend on who watches.
// backtrace() loads libgcc_s at the first call.
#include "serve.h"

#include <execinfo.h>
#include <unistd.h>

static long look;

PROBED long inner(long n)
{
    void *frames[64];
    long sum = 0;
    if (look) { // the debugger looks until there is a line to read
        char line[16];
        return read(0, line, sizeof line) > 0 ? n : -1;
    }
    int depth = backtrace(frames, 64);
    // Those of this program in the order in which they are, and how many there are.
    for (int i = 0; i < depth; i++)
        if (labs((long)frames[i] - (long)inner) < 1 << 20)
            sum = (sum * 31 + (long)frames[i] - (long)inner) % 1000000007;
    return sum * 64 + depth;
}

PROBED long middle(long n)
{
    long sum = n > 0 ? middle(n - 1) : inner(n);
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

PROBED long outer(long n)
{
    long sum = middle(n);
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

static long walks(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += outer(i % 8);
    return sum;
}

static long stops(long n)
{
    look = 1;
    long result = outer(n);
    look = 0;
    return result;
}

static const struct command table[] = {{"walks", walks}, {"stops", stops}, {}};

int main(int argc, char **argv)
{
    return serve(argc, argv, table);
}
