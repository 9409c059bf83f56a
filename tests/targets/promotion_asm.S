/* Functions whose first instructions are so short that a jump covers several of them. No padding is near, which a short jump
 * could lead to. Instructions have the same lengths in both widths. */
#include "widths.h"
#define FUNCTION(name) .globl name; .type name,@function; name:
#define END(name) .size name,.-name

    .text
FUNCTION(before)
    .rept 40
    lea 1(%rdi),%rdi
    .endr
    ret
END(before)

/* +0, +3, +5, +8: the second one is inside the jump. */
FUNCTION(two)
    lea 1(%rdi),%eax
    add %edi,%eax
    add $3,%eax
    ret
END(two)

/* +0, +1, +2, +3, +4, +5, +8: an instruction at each byte of the jump. */
FUNCTION(ones)
    push %rbx
    push %rbp
    pop %rbp
    pop %rbx
    nop
    lea 1(%rdi),%eax
    ret
END(ones)

/* +0, +2, +5, +8, +11: two jumps that overlap, and the third instruction inside the second one. */
FUNCTION(nested)
    mov %edi,%eax
    add $1,%eax
    add $2,%eax
    add $3,%eax
    ret
END(nested)
    /* Where the jump at the `ret` leads: to 15 MB below, where no heap begins, wherever it is put. */
    .long 0xff203040

/* +0, +1, +4, +6: the call is the last one that is displaced. */
FUNCTION(calls_last)
    push %rbx
    {disp8} lea 0(%rdi),%ebx
    call *%rsi
    add $1,%eax
    pop %rbx
    ret
END(calls_last)

/* +0, +3, +5: the second one may fault. */
FUNCTION(loads)
#ifdef __i386__
    {disp8} lea 0(%edi),%edx
#else
    mov %rdi,%rdx
#endif
    mov (%rdx),%eax
    add $2,%eax
    ret
END(loads)

FUNCTION(after)
    .rept 40
    lea 1(%rdi),%rdi
    .endr
    ret
END(after)

    .section .note.GNU-stack,"",@progbits
