/* A leaf function that keeps a word below the stack pointer, while its jump table alone leads to a part of it that lies
   elsewhere, as compilers move away what is rarely executed. `zone ROUNDS` prints a sum. */
#include <stdio.h>
#include <stdlib.h>

long leaf(long kind, long x);
__asm__(".text\n.globl leaf\n.type leaf,@function\nleaf:\n .cfi_startproc\n mov %rsi,-8(%rsp)\n and $3,%edi\n"
        " lea 3f(%rip),%rdx\n movslq (%rdx,%rdi,4),%rax\n add %rdx,%rax\n jmp *%rax\n"
        "1: mov -8(%rsp),%rax\n add $1,%rax\n ret\n .cfi_endproc\n.size leaf,.-leaf\n"
        ".section .text.unlikely,\"ax\"\n.balign 16\n.globl leaf_part\nleaf_part:\n .cfi_startproc\n"
        " mov -8(%rsp),%rax\n lea 1(%rax,%rax),%rax\n2: mov -8(%rsp),%rdx\n lea 3(%rdx,%rdx,2),%rax\n ret\n .cfi_endproc\n"
        ".section .rodata\n.balign 4\n3: .long 1b-3b, leaf_part-3b, 2b-3b, 1b-3b\n.text\n");

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 0, sum = 0;
    for (volatile long i = 0; i < n; i++)
        sum = sum * 31 + leaf(i % 5, i);
    printf("%ld\n", sum);
    return 0;
}
