// The instructions that a trap handler does by itself, and some that it does not: short functions without a loop of their own that
// know nothing of each other, for emulated.c. They begin with all registers and flags from `state_in` and end in `leave_case`.
// `state_in` and `state_out` hold 15 registers, in 32-bit code 7, then rsp and the flags.
#include "states.h"
#ifdef __i386__
#define COUNT   7
#define quad    long
#else
#define COUNT   15
#endif

        .set    RSP, COUNT * WORD
        .set    FLAGS, RSP + WORD

        .macro  case name
        function \name
        .endm
        .macro  done name
        jmp     leave_case
        .size   \name, . - \name
        .section .data.rel.ro, "aw"
        .quad   \name
        .text
        .endm

        .macro  each action, base
#ifndef __i386__
        \action %r15, 7*WORD, \base
        \action %r14, 8*WORD, \base
        \action %r13, 9*WORD, \base
        \action %r12, 10*WORD, \base
        \action %r11, 11*WORD, \base
        \action %r10, 12*WORD, \base
        \action %r9,  13*WORD, \base
        \action %r8,  14*WORD, \base
#endif
        \action %rbp, 0*WORD, \base
        \action %rbx, 1*WORD, \base
        \action %rax, 2*WORD, \base
        \action %rcx, 3*WORD, \base
        \action %rdx, 4*WORD, \base
        \action %rsi, 5*WORD, \base
        \action %rdi, 6*WORD, \base
        .endm
        .macro  load reg, at, base
        mov     AT(\at + \base), \reg
        .endm
        .macro  store reg, at, base
        mov     \reg, AT(\at + \base)
        .endm

        .section .data.rel.ro, "aw"
        .p2align 3
        .globl  cases
cases:

        .text
// void run_case(function)
        function run_case
        push    %rbx
        push    %rbp
#ifdef __i386__
        push    %esi
        push    %edi
        mov     20(%esp), %eax
        mov     %eax, callee
#else
        push    %r12
        push    %r13
        push    %r14
        push    %r15
        mov     %rdi, callee(%rip)
#endif
        mov     %rsp, AT(own_sp)
        each    load, state_in
        push    AT(state_in + FLAGS)
        popf
        mov     AT(state_in + RSP), %rsp
        jmp     *AT(callee)
        .size   run_case, . - run_case

        function leave_case
        each    store, state_out
        mov     %rsp, AT(state_out + RSP)
        mov     AT(own_sp), %rsp
        pushf
        pop     AT(state_out + FLAGS)
        push    $0x202
        popf
#ifdef __i386__
        pop     %edi
        pop     %esi
#else
        pop     %r15
        pop     %r14
        pop     %r13
        pop     %r12
#endif
        pop     %rbp
        pop     %rbx
        ret
        .size   leave_case, . - leave_case

// Called by the others.
        function case_returns
        ret
        .size   case_returns, . - case_returns

        function case_drops
        ret     $16
        .size   case_drops, . - case_drops

        case    case_push
        push    %rax
        push    %rsp
        push    %rbp
        push    $-3
        push    $0x12345678
        pop     %rsi
        pop     %rdi
        pop     %rdx
        done    case_push

        case    case_stack_pointer
        push    %rsp
        pop     %rsp
        done    case_stack_pointer

        case    case_pop
        pop     %rbx
        pop     %rcx
        done    case_pop

        case    case_frame
        endbr64
        push    %rbp
        mov     %rsp, %rbp
        sub     $0x18, %rsp
        push    %rbx
        pop     %rdx
        add     $0x18, %rsp
        sub     $40, %rsp
        leave
        done    case_frame

        case    case_mov
        mov     %rdi, %rax
        mov     %ebp, %ecx
        mov     $0x1234, %esi
        mov     $-5, %rdx
#ifndef __i386__
        movabs  $0x123456789abcdef0, %r11
        mov     %r9d, %edi
        mov     %r15, %r14
#endif
        done    case_mov

        case    case_lea
        lea     8(%rdi, %rsi, 4), %rax
        lea     -100(%rbp), %rbp
        lea     (%rdx, %rcx, 8), %ecx
        lea     AT(case_mov), %rbx
        lea     0x40(, %rsi, 2), %rsi
#ifndef __i386__
        lea     (%edi, %esi), %rdx
        lea     -100(%r9), %r9
        lea     (%r13, %r12, 8), %ecx
        lea     0x40(, %r8, 2), %r8
#endif
        done    case_lea

        case    case_sum
        add     $8, %rax
        sub     $0x7fffffff, %rcx
        add     $-1, %rbx
        sub     $-128, %rdx
        done    case_sum

        case    case_nop
        nop
        .byte   0x66, 0x90
        nopl    (%rax)
        nopw    0x200(%rax, %rax, 1)
        endbr64
        done    case_nop

        case    case_jump
        jmp     1f
        ud2
1:      jmp     2f
        .nops   200
2:      lea     AT(3f), %rax
        jmp     *%rax
        ud2
3:      done    case_jump

        .irp    cc, o, no, b, ae, e, ne, be, a, s, ns, p, np, l, ge, le, g
        case    case_j\cc
        j\cc    1f
        lea     1(%rax), %rax
1:      j\cc    2f
        lea     2(%rax), %rax
        jmp     2f
        .nops   200
2:      done    case_j\cc
        .endr

        .irp    count, loop, loope, loopne
        case    case_\count
        mov     $3, %ecx
1:      lea     1(%rax), %rax
        \count  1b
        done    case_\count
        .endr

        case    case_count_is_zero
        jrcxz   1f
        lea     1(%rax), %rax
        mov     $0, %ecx
        jrcxz   1f
        ud2
1:      jecxz   2f
        lea     2(%rax), %rax
2:      done    case_count_is_zero

        case    case_call
        call    case_returns
        lea     AT(case_returns), %rcx
        call    *%rcx
        push    %rax
        push    %rbx
        call    case_drops
        done    case_call

// Their copies run.
        case    case_other
        xor     %eax, %eax
        mov     (%rsp), %rcx
#ifndef __i386__
        mov     %rcx, -16(%rsp)
#endif
        push    8(%rsp)
        pop     32(%rsp)
        inc     %rdx
        movl    $7, 16(%rsp)
        done    case_other

        .section .data.rel.ro, "aw"
        .quad   0
        .globl  old_cases
old_cases:
        .text
#ifdef __i386__
#include "old_asm.h"
#endif
        .section .data.rel.ro, "aw"
        .quad   0

        .bss
        .p2align 6
        .globl  state_in, state_out
state_in:
        .zero   (COUNT + 2) * WORD
state_out:
        .zero   (COUNT + 2) * WORD
callee: .zero   WORD
own_sp: .zero   WORD
        .section .note.GNU-stack, "", @progbits
