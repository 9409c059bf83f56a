// 1000 functions with 50 sites of static probes each: many(a) calls them all, and gives how often it has added 1.
        .macro  probe name, args
990:    nop
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte  992f-991f, 994f-993f, 3
991:    .asciz  "stapsdt"
992:    .balign 4
993:    .8byte  990b, 0, 0
        .asciz  "many"
        .asciz  "\name"
        .asciz  "\args"
994:    .balign 4
        .popsection
        .endm

        .macro  ten
        probe   p0, "8@%rdi -4@%eax"
        addq    $1, %rax
        probe   p1, "-4@%eax 8@%rdi"
        addq    $1, %rax
        probe   p2, "8@%rdi 8@%rdi"
        addq    $1, %rax
        probe   p3, "8@$1 8@%rdi"
        addq    $1, %rax
        probe   p4, "8@%rdi 8@%rax"
        addq    $1, %rax
        probe   p5, "8@%rdi 4@%eax"
        addq    $1, %rax
        probe   p6, "8@%rdi 2@%ax"
        addq    $1, %rax
        probe   p7, "8@%rdi 1@%al"
        addq    $1, %rax
        probe   p8, "8@%rdi 8@%rax 8@$3"
        addq    $1, %rax
        probe   p9, "4@%edi 8@%rax 8@$3"
        addq    $1, %rax
        .endm

        .text
        .globl  many
        .type   many, @function
many:
        xorl    %eax, %eax
        .irp    a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        .irp    b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        .irp    c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        call    many_\a\b\c
        .endr
        .endr
        .endr
        ret
        .size   many, . - many

        .irp    a, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        .irp    b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        .irp    c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
        .type   many_\a\b\c, @function
        .p2align 4
many_\a\b\c:
        ten
        ten
        ten
        ten
        ten
        ret
        .size   many_\a\b\c, . - many_\a\b\c
        .endr
        .endr
        .endr

        .section .note.GNU-stack, "", @progbits
