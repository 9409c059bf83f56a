// Functions that begin with each kind of first instruction that compilers write. Argument in rdi, result n + 1 in rax, in both
// widths. With unwind information, since stacks are walked through them.
#include "widths.h"

        .macro  function name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .cfi_startproc
        .endm
        .macro  end name
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text

        function lead_push
        push    %rbx
        .cfi_adjust_cfa_offset 8
        mov     %rdi, %rbx
        lea     1(%rbx), %rax
        pop     %rbx
        .cfi_adjust_cfa_offset -8
        ret
        end lead_push

        function lead_sub
        sub     $24, %rsp
        .cfi_adjust_cfa_offset 24
        mov     %rdi, 8(%rsp)
        mov     8(%rsp), %rax
        inc     %rax
        add     $24, %rsp
        .cfi_adjust_cfa_offset -24
        ret
        end lead_sub

        function lead_mov
        mov     %rdi, %rax
        add     $0x101, %rax
        sub     $0x100, %rax
        ret
        end lead_mov

        function lead_nop
        nop
        lea     0x101(%rdi), %rax
        sub     $0x100, %rax
        ret
        end lead_nop

        function lead_nop5
        .byte   0x0f, 0x1f, 0x44, 0, 0          // nopl 0(%rax,%rax,1)
        lea     0x101(%rdi), %rax
        sub     $0x100, %rax
        ret
        end lead_nop5

        function lead_endbr
        endbr64
        lea     0x101(%rdi), %rax
        sub     $0x100, %rax
        ret
        end lead_endbr

        function lead_xor
        xor     %eax, %eax
        add     %rdi, %rax
        add     $0x101, %rax
        sub     $0x100, %rax
        ret
        end lead_xor

        function lead_test
        test    %rdi, %rdi
        lea     0x101(%rdi), %rax
        lea     -0x100(%rax), %rax
        ret
        end lead_test

// Five bytes and more: one instruction is the whole jump.
        function lead_long
        mov     $0x101, %eax
        add     %rdi, %rax
        sub     $0x100, %rax
        ret
        end lead_long

#ifdef __x86_64__
        function lead_push2
        push    %r12
        .cfi_adjust_cfa_offset 8
        mov     %rdi, %r12
        lea     1(%r12), %rax
        pop     %r12
        .cfi_adjust_cfa_offset -8
        ret
        end lead_push2
#endif

// Nobody can see behind the first instruction what was in front of it: it loads through a pointer. And a loop comes back to the
// second instruction of the other one.
        function pinned_load
        mov     (%rsi), %rax
        lea     0x101(%rdi), %rax
        sub     $0x100, %rax
        ret
        end pinned_load

        function pinned_loop
        xor     %eax, %eax
1:      add     $1, %rax
        cmp     %rdi, %rax
        jle     1b
        ret
        end pinned_loop

        .section .note.GNU-stack, "", @progbits
