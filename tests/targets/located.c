/* Arguments beside structures that are passed by value: in registers, on the stack, and in part. */
#include <stdbool.h>

struct pair {
    long a, b;
};
struct mixed {
    int n;
    char c;
};
struct large {
    long a[4];
};
struct couple {
    long a[2];
};

#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif
#define KEEP __asm__ volatile("" : : : "memory")

APART long behind(struct pair r, int a, int b, int c, int d, int e)
{
    KEEP;
    return r.b + a + b + c + d + e;
}

APART long beside(int a, struct pair r, int b, bool f)
{
    KEEP;
    return r.b + a + b + f;
}

APART long stacked(struct large g, int a, int b, int c, int d, int e, int f, int h)
{
    KEEP;
    return g.a[1] + a + b + c + d + e + f + h;
}

APART double floats(struct pair r, double x, struct mixed m, float y, int b)
{
    KEEP;
    return r.b + x + m.n + y + b;
}

APART long full(int a, int b, int c, int d, int e, struct pair r, int f)
{
    KEEP;
    return r.a + r.b + a + b + c + d + e + f;
}

APART long unused(struct pair r, int a, int gone, int c)
{
    KEEP;
    return r.b + a + c;
}

APART long half(struct couple t, int a)
{
    KEEP;
    return t.a[0] + a;
}

int main(int argc, char **argv)
{
    long sum = 0;
    (void)argv;
    for (int i = argc; i <= 2; i++) {
        struct pair r = {8 * i, 9 * i};
        struct mixed m = {30 + i, 'x'};
        struct large g = {{1, 2, 3, 4}};
        struct couple t = {{12 * i, 13 * i}};
        sum += behind(r, 2, 3, 4, 5, 6 * i) + beside(1, r, 2, i == 1);
        sum += stacked(g, 1, 2, 3, 4, 5, 6, 7 * i) + full(1, 2, 3, 4, 5, r, 6 * i) + unused(r, 1, 2, 3 * i);
        sum += half(t, 1);
        sum += (long)floats(r, 1.5, m, 2.5f, 11 * i);
    }
    return sum == 0;
}
