/* Functions that nobody calls from elsewhere: compilers for 32-bit x86 pass them arguments as they like. */
#include "serve.h"

/* It stays a function, and may be called in any way. */
#define LOCAL static __attribute__((noinline, noclone))

struct pair { int first, second; };

LOCAL long four(long a, const struct pair *p, long c, long d) { return a * 3 + p->first * c - d + p->second; }
LOCAL long long wide(long long a, char c) { return a * c; }
PROBED long long outer(long long a) { return a + 5000000000ll; }

static long run(long n)
{
    struct pair pair = { 2, 3 };
    long wrong = 0;
    for (long i = 0; i < n; i++) {
        wrong += four(i, &pair, 7, 9) != i * 3 + 8;
        wrong += wide(i + (1ll << 33), 'c') != 99 * (i + (1ll << 33));
        wrong += outer(i) != i + 5000000000ll;
    }
    return wrong;
}

/* Other values, so that none is a constant. */
static long other(long n)
{
    struct pair pair = { (int)n, 5 };
    return four(n, &pair, n + 1, n + 2) + (long)wide(n, (char)n);
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "run", run }, { "other", other }, { 0 } };
    return serve(argc, argv, table);
}
