/* Functions that return structures: 32-bit ones take the address of the result off the stack when they return.
   argv: how many rounds. Prints how often each was entered, and whether all results were right. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

struct numbers {
    long a[6];
};

static jmp_buf out;
static volatile long made, wide, forwarded, left;

/* Calls itself, so that several are active. */
__attribute__((noinline)) struct numbers make(long n) {
    made++;
    if (n <= 0)
        return (struct numbers){{n, 1, 2, 3, 4, 5}};
    struct numbers below = make(n - 1);
    below.a[0] += n;
    return below;
}

/* More arguments, all of which the caller takes off, but for the result's address. */
__attribute__((noinline)) struct numbers make_wide(long a, long b, struct numbers c) {
    wide++;
    c.a[0] += a + b;
    return c;
}

/* A tail call through a pointer: there is no return to see in it. */
struct numbers forward(long n, struct numbers (*to)(long));
#ifdef __i386__
__asm__(".text\n.type forward, @function\nforward: jmp *12(%esp)\n nop\n nop\n nop\n.size forward, . - forward");
#else
__asm__(".text\n.type forward, @function\nforward: jmp *%rdx\n nop\n nop\n nop\n.size forward, . - forward");
#endif

/* In some rounds it never returns. */
__attribute__((noinline)) struct numbers leave(long n) {
    left++;
    struct numbers got = make(1);
    if (n % 3 == 0)
        longjmp(out, 1);
    return got;
}

int main(int argc, char **argv) {
    volatile long rounds = argc > 1 ? atol(argv[1]) : 10, bad = 0;
    for (volatile long i = 0; i < rounds; i++) {
        struct numbers ten = make(4), sum = make_wide(1, 2, ten);
        bad += ten.a[0] != 10 || ten.a[5] != 5 || sum.a[0] != 13 || sum.a[4] != 4;
        ten = forward(4, make);
        forwarded++;
        bad += ten.a[0] != 10 || ten.a[3] != 3;
        if (setjmp(out) == 0) {
            ten = leave(i);
            bad += ten.a[0] != 1 || i % 3 == 0;
        } else {
            bad += i % 3 != 0;
        }
    }
    printf("make %ld\nmake_wide %ld\nforward %ld\nleave %ld\n", made, wide, forwarded, left);
    return bad != 0;
}
