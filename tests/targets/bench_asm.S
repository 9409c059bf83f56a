// The functions of the benchmark, by their first instruction. f_mov and f_usdt_stack are not called in 32-bit code: that has no
// red zone.
#include "widths.h"
#ifdef __i386__
#define WORD    4
#define ADDRESS .4byte
#define TWO     "4@%edx -4@%ecx"
#else
#define WORD    8
#define ADDRESS .8byte
#define TWO     "8@%rdx -4@%ecx"
#endif

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
        push    %rbp
        mov     %rsp, %rbp
        leal    1(%rdi), %eax
        pop     %rbp
        ret
        end f_push

        function f_ret
        ret
        end f_ret
        .p2align 5

        function f_endbr64
        endbr64
        push    %rbp
        mov     %rsp, %rbp
        leal    1(%rdi), %eax
        pop     %rbp
        ret
        end f_endbr64

        function f_sub
        sub     $24, %rsp
        leal    1(%rdi), %eax
        add     $24, %rsp
        ret
        end f_sub

        function f_mov
        movq    (%rdi), %rax
        add     $1, %rax
        ret
        end f_mov

        // Those of the kernel's own benchmark, and a push that it single-steps.
        function f_bare_nop
        nop
        ret
        end f_bare_nop
        .p2align 5

        function f_bare_nop5
        .byte   0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        end f_bare_nop5
        .p2align 5

        function f_push_memory
        push    (%rsp)
        lea     WORD(%rsp), %rsp
        ret
        end f_push_memory
        .p2align 5

        // A static probe at this nop.
        .macro  probe name, args, nop:vararg
990:    \nop
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte  992f-991f, 994f-993f, 3
991:    .asciz  "stapsdt"
992:    .balign 4
993:    ADDRESS 990b, 0, 0
        .asciz  "bench"
        .asciz  "\name"
        .asciz  "\args"
994:    .balign 4
        .popsection
        .endm

        function f_usdt
        movl    $1, %edx
        movl    $2, %ecx
        probe short, TWO, nop
        ret
        end f_usdt

        function f_usdt5
        movl    $1, %edx
        movl    $2, %ecx
        probe long, TWO, .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        end f_usdt5

#ifdef __i386__
        function f_usdt_frame
        .cfi_startproc
        sub     $20, %rsp
        .cfi_def_cfa_offset 24
        movl    $1, (%rsp)
        movl    $2, 8(%rsp)
        probe frame, "4@(%esp) -4@8(%esp)", .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        add     $20, %rsp
        .cfi_def_cfa_offset 4
        ret
        .cfi_endproc
        end f_usdt_frame

        function f_usdt_stack
        ret
        end f_usdt_stack
#else
        function f_usdt_frame
        .cfi_startproc
        subq    $24, %rsp
        .cfi_def_cfa_offset 32
        movq    $1, (%rsp)
        movl    $2, 8(%rsp)
        probe frame, "8@(%rsp) -4@8(%rsp)", .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        addq    $24, %rsp
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        end f_usdt_frame

        function f_usdt_stack
        movq    $1, -16(%rsp)
        movl    $2, -24(%rsp)
        probe stack, "8@-16(%rsp) -4@-24(%rsp)", .byte 0x0f, 0x1f, 0x44, 0x00, 0x00
        ret
        end f_usdt_stack
#endif

        .section .note.GNU-stack, "", @progbits
