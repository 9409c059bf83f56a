/* A library of functions that return ANSWER, each 16 bytes, and one that adds up their results. */
        .text
        .altmacro
        .macro function n
        .globl  f\n
        .type   f\n, @function
f\n:    mov     $ANSWER, %eax
        ret
        .size   f\n, . - f\n
        .p2align 4
        .endm
        .set    i, 0
        .rept   3000
        function %i
        .set    i, i + 1
        .endr

        .macro sum n
        call    f\n
        add     %eax, %ebx
        .endm
        .globl  all
        .type   all, @function
all:    push    %rbx
        xor     %ebx, %ebx
        .set    i, 0
        .rept   3000
        sum     %i
        .set    i, i + 1
        .endr
        mov     %ebx, %eax
        pop     %rbx
        ret
        .size   all, . - all
        .section .note.GNU-stack, "", @progbits
