/* Arguments and a result of all kinds, at every level of optimization. */
#include <unistd.h>

struct point {
    int x, y;
};
struct big {
    long a[4];
};
enum colour { RED, GREEN = 5 };

/* gcc makes copies for known arguments, which have other names. */
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noipa))
#endif

APART long take(const char *text, struct point p, enum colour c, unsigned char small, const struct big *big, double d)
{
    __asm__ volatile("" : : "r"(text), "r"(p.x), "r"(p.y), "r"((int)c), "r"((int)small), "r"(big) : "memory");
    return (long)d;
}

APART struct point give(int x)
{
    struct point p = {x, -x};
    __asm__ volatile("" : "+r"(p.x), "+r"(p.y));
    return p;
}

int main(int argc, char **argv)
{
    struct big big = {{1, 2, 3, 4}};
    (void)argv;
    for (int i = argc; i <= 2; i++) {
        struct point p = give(i);
        take("text", p, i == 1 ? RED : GREEN, 200 + i, &big, 1.5 * i);
    }
    return 0;
}
