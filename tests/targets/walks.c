// Looks at its own stack while functions are entered and left: what it finds must not depend on who watches.
#include <execinfo.h>
#include <setjmp.h>
#include <stdio.h>

static jmp_buf caught;

__attribute__((noinline)) int inner(void) {
    void *frames[64];
    int depth = backtrace(frames, 64);
    __asm__ volatile("");
    return depth;
}

__attribute__((noinline)) int middle(void) {
    int depth = inner();
    __asm__ volatile("");
    return depth + 1;
}

__attribute__((noinline)) int outer(void) {
    int depth = middle();
    __asm__ volatile("");
    return depth + 1;
}

__attribute__((noinline)) void leaves(int depth) {
    if (depth == 0) longjmp(caught, 1);
    leaves(depth - 1);
    __asm__ volatile("");
}

__attribute__((noinline)) int twice(int n) {
    return 2 * n;
}

// Ends by a jump to another function, whose result is its own.
__attribute__((noinline)) int jumps(int n) {
    return twice(n + 1);
}

int main(void) {
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += outer();
    for (int i = 0; i < 20; i++)
        if (!setjmp(caught)) leaves(10);
    for (int i = 0; i < 50; i++) sum += jumps(i);
    printf("%d\n", sum);
    return 0;
}
