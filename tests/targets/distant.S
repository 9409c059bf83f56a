/* `first` ends by a jump to `last`, which is 3,000 functions behind it. */
#ifdef __aarch64__
#define ONE mov w0, #1
#define JUMP b
#else
#define ONE movl $1, %eax
#define JUMP jmp
#endif

    .altmacro
    .macro function name
    .balign 1024
    .globl \name
    .protected \name
    .type \name, %function
\name:
    .cfi_startproc
    ONE
    .endm
    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm
    .macro between n
    function between_\n
    ret
    end between_\n
    .endm

    .text
    function first
    JUMP last
    end first
    .set i, 0
    .rept 3000
    between %i
    .set i, i + 1
    .endr
    function last
    ret
    end last
    .section .note.GNU-stack,"",%progbits
