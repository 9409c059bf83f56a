// The functions of the benchmark, by their first instruction.

        .macro  function name
        .p2align 5
        .globl  \name
        .type   \name, @function
\name:
        .endm
        .macro  end name
        .size   \name, . - \name
        .endm

        .text
        function f_nop
        nop
        movl    %edi, %eax
        addl    $1, %eax
        ret
        end f_nop

        function f_nop5
        .byte   0x0f, 0x1f, 0x44, 0x00, 0x00
        movl    %edi, %eax
        ret
        end f_nop5

        function f_push
        pushq   %rbp
        movq    %rsp, %rbp
        leal    1(%rdi), %eax
        popq    %rbp
        ret
        end f_push

        function f_ret
        ret
        end f_ret
        .p2align 5

        function f_endbr64
        endbr64
        pushq   %rbp
        movq    %rsp, %rbp
        leal    1(%rdi), %eax
        popq    %rbp
        ret
        end f_endbr64

        function f_sub
        subq    $24, %rsp
        leal    1(%rdi), %eax
        addq    $24, %rsp
        ret
        end f_sub

        function f_mov
        movq    (%rdi), %rax
        addq    $1, %rax
        ret
        end f_mov

        .section .note.GNU-stack, "", @progbits
