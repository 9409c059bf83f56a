/* Functions of many types, for handlers that are written with the same signature. */
#include "serve.h"
#include <limits.h>

/* Uses all of a `long`, as far as it has more bits than an `int`. */
#define LARGE ((LONG_MAX >> 22) + 1)

struct item {
    int id;
    short kind;
    char name[10];
    long weights[3];
    const struct item *next;
};

PROBED int add(int a, char *text, long b, unsigned char c, short d, unsigned e)
{
    return a + (int)strlen(text) + (int)b + c + d + (int)e;
}

PROBED long weigh(const struct item *item, int which)
{
    return item->weights[which] + item->next->weights[0];
}

PROBED const char *name_of(const struct item *item) { return item->name; }
PROBED void nothing(void) {}

/* More than fit into registers. */
PROBED long eight(long a, long b, long c, long d, long e, long f, int g, const char *h)
{
    return a + b + c + d + e + f + g + h[0];
}

/* Numbers with a point, between others. */
PROBED double mixed(int a, double x, long b, float y, double z) { return a + x * b + y - z; }
PROBED float halved(float x) { return x / 2; }

/* Which code it has is decided at the start of the program. The code that decides is what its symbol names. */
static long doubled(long x) { return 2 * x; }
static void *choose(void) { return doubled; }
long chosen(long x) __attribute__((ifunc("choose")));

static long run(long n)
{
    static const struct item second = {2, 20, "second", {200, 0, 0}, NULL};
    static const struct item first = {1, 10, "first", {100, 101, 102}, &second};
    char text[] = "abcdef";
    long wrong = 0;
    for (long i = 0; i < n; i++) {
        wrong += add(-5, text, LARGE, 250, -3, 7) != -5 + 6 + (int)LARGE + 250 - 3 + 7;
        wrong += weigh(&first, 1) != 301;
        wrong += strcmp(name_of(&first), "first") != 0;
        wrong += eight(1, 2, 3, 4, 5, 6, -7, "h") != 21 - 7 + 'h';
        wrong += mixed(3, 1.5, 4, -0.25f, 1e100) != 3 + 1.5 * 4 - 0.25f - 1e100;
        wrong += halved(-5) != -2.5f;
        wrong += chosen(i) != 2 * i;
        nothing();
    }
    return wrong;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {{"run", run}, {0}};
    return serve(argc, argv, table);
}
