/* Functions that end by a tail call. One has two instructions, of which another function has the
   second one, too: the jump at its entry needs the bytes of its exit. */
#include "serve.h"
#include <unistd.h>

__attribute__((noinline, used)) long inner(long x) { return x * 3 + 1; }

long crowded(long unused, long x);

#ifdef __x86_64__
__asm__(".pushsection .text.crowded,\"ax\",@progbits\n.globl crowded\n.type crowded,@function\n"
        "crowded: mov %rsi,%rdi\n1: .byte 0xe9\n .long inner-(.+4)\n.size crowded,.-crowded\n"
        /* Another function has the same exit, so no jump goes over it. */
        ".globl also\n.type also,@function\nalso: mov %rdx,%rdi\n jmp 1b\n.size also,.-also\n.popsection");
#else
__attribute__((noinline)) long crowded(long unused, long x)
{
    (void)unused;
    return inner(x);
}
#endif

long loops(long x);

/* A return right behind the jump of a loop, and right in front of another function, whose first bytes lead a jump at
   the return into the program itself. */
#ifdef __x86_64__
__asm__(".pushsection .text.loops,\"ax\",@progbits\n.globl loops\n.type loops,@function\n"
        "loops: mov %rdi,%rax\n1: add $2,%rax\n sub $1,%rdi\n jne 1b\n ret\n.size loops,.-loops\n"
        ".globl behind\n.type behind,@function\nbehind: add %al,(%rax)\n add %al,(%rax)\n ret\n.size behind,.-behind\n.popsection");
#else
__attribute__((noinline)) long loops(long x)
{
    long sum = x;
    for (; x; x--) {
        __asm__("" : "+r"(sum));
        sum += 2;
    }
    return sum;
}
#endif

/* Rounds of loops: one more in each call. */
static long rounds(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        sum += loops(i);
    return sum;
}

/* So many calls; the sum of their results. */
static long crowd(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += crowded(0, i);
    return sum;
}

__attribute__((noinline)) long waits(long x)
{
    usleep(2000);
    return x;
}

static volatile long led;

__attribute__((noinline, optimize("optimize-sibling-calls"))) long leads(long x)
{
    led += x;
    return waits(2 * x);
}

static const struct command commands[] = { { "crowd", crowd }, { "rounds", rounds }, { "wait", leads }, { NULL, NULL } };

int main(int argc, char **argv) { return serve(argc, argv, commands); }
