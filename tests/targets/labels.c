/* Labels that branches do not lead to: `labels KIND ROUNDS` prints a sum. Built once with plain indirect jumps and once
   with thunks in their place, for which one jump is a direct one. */
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static jmp_buf env;
static volatile int sink;

__attribute__((noinline, cold, noreturn)) void fail(int code)
{
    sink = code;
    longjmp(env, 1);
}

/* The table of the switch leads into the cold part, where one case falls through to the next. */
__attribute__((noinline)) int in_cold(int op, int x)
{
    switch (op & 7) {
    case 0: x = x * 3 + 1; break;
    case 1: x ^= 0x55; break;
    case 2: x -= 7; sink++; break;
    case 3: x <<= 2; break;
    case 4: x += 1; /* fall through */
    case 5: x ^= 2; fail(x);
    case 6: x -= 2; /* fall through */
    case 7: x ^= 9; fail(x);
    }
    return x + op;
}

/* Six labels, of which some fall through to the next. */
#define OPERATIONS \
    op_a: x += 1; \
    op_b: x ^= 5; NEXT; \
    op_c: x *= 3; \
    op_d: x -= 2; NEXT; \
    op_e: x ^= x >> 7; \
    op_f: x = -x; NEXT;

/* Distances from a label, as GCC's manual has them in "Labels as Values", beside a switch. */
__attribute__((noinline)) long distances(const unsigned char *code, long n, long x)
{
    static const int off[] = { &&op_a - &&op_a, &&op_b - &&op_a, &&op_c - &&op_a, &&op_d - &&op_a,
                               &&op_e - &&op_a, &&op_f - &&op_a };
    const unsigned char *end = code + n;
#define NEXT do { if (code == end) return x; goto *(&&op_a + off[*code++]); } while (0)
    switch (n & 7) {
    case 0: x += 3; break;
    case 1: x ^= 77; sink++; break;
    case 2: x *= 5; break;
    case 3: x -= sink; break;
    case 4: x = ~x; break;
    case 5: x <<= 1; sink--; break;
    case 6: x += sink; break;
    }
    NEXT;
    OPERATIONS
#undef NEXT
}

/* A table of labels that is made when it is needed. */
__attribute__((noinline)) long made(const unsigned char *code, long n, long x)
{
    static const volatile short off[] = { &&op_a - &&op_a, &&op_b - &&op_a, &&op_c - &&op_a, &&op_d - &&op_a,
                                          &&op_e - &&op_a, &&op_f - &&op_a };
    static void *to[6];
    const unsigned char *end = code + n;
    if (!to[0])
        for (int i = 0; i < 6; i++)
            to[i] = &&op_a + off[i];
#define NEXT do { if (code == end) return x; goto *to[*code++]; } while (0)
    NEXT;
    OPERATIONS
#undef NEXT
}

/* Runs of equal instructions: entered from another function by its start plus a distance, and by a return. */
long sled(void), into(long skip), back(long skip);
__asm__(".text\n"
        ".globl sled\n.type sled,@function\nsled:\n xor %eax,%eax\n.rept 16\n add $1,%rax\n.endr\n ret\n.size sled,.-sled\n"
        ".globl into\n.type into,@function\ninto:\n xor %eax,%eax\n lea sled(%rip),%rdx\n lea 2(%rdx,%rdi,4),%rdx\n"
        " jmp *%rdx\n.size into,.-into\n"
        ".globl back\n.type back,@function\nback:\n xor %eax,%eax\n lea 1f(%rip),%rdx\n lea (%rdx,%rdi,4),%rdx\n"
        " push %rdx\n ret\n1:.rept 16\n add $1,%rax\n.endr\n ret\n.size back,.-back\n");

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 0, sum = 0;
    unsigned char code[64];
    for (volatile long i = 0; i < n; i++) {
        int len = 8 + i % 13;
        for (int k = 0; k < len; k++)
            code[k] = (i * 7 + k * 5 + (i >> 3)) % 6;
        if (!strcmp(kind, "in_cold"))
            sum = sum * 31 + (setjmp(env) == 0 ? in_cold(i % 11, (int)i) : sink);
        else if (!strcmp(kind, "distances"))
            sum = sum * 31 + distances(code, len, i);
        else if (!strcmp(kind, "made"))
            sum = sum * 31 + made(code, len, i);
        else
            sum = sum * 31 + into(i % 17) * 17 + back(i % 17);
    }
    printf("%ld\n", sum);
    return 0;
}
