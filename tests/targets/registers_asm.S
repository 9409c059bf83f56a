// Functions that begin with all registers and flags known, and write down what they have behind the probed instruction.
// `site_in` and `site_out` hold words in the order of struct pt_regs: 15 registers; then rsp and the flags, and of the
// latter also 16 words of red zone. In 32-bit code the words of registers that it has not are 0, and the zone is a frame.
#include "states.h"
#ifdef __i386__
#define IN_ZONE 0
#else
#define IN_ZONE -128
#endif

        .set    RSP, 15 * WORD
        .set    FLAGS, 16 * WORD
        .set    ZONE, 17 * WORD

        .macro  each action, at, base
#ifndef __i386__
        \action %r15, 0*WORD + \at, \base
        \action %r14, 1*WORD + \at, \base
        \action %r13, 2*WORD + \at, \base
        \action %r12, 3*WORD + \at, \base
        \action %r11, 6*WORD + \at, \base
        \action %r10, 7*WORD + \at, \base
        \action %r9,  8*WORD + \at, \base
        \action %r8,  9*WORD + \at, \base
#endif
        \action %rbp, 4*WORD + \at, \base
        \action %rbx, 5*WORD + \at, \base
        \action %rax, 10*WORD + \at, \base
        \action %rcx, 11*WORD + \at, \base
        \action %rdx, 12*WORD + \at, \base
        \action %rsi, 13*WORD + \at, \base
        \action %rdi, 14*WORD + \at, \base
        .endm
        .macro  load reg, at, base
        mov     AT(\at + \base), \reg
        .endm
        .macro  store reg, at, base
        mov     \reg, AT(\at + \base)
        .endm
// Five bytes each; in 32-bit code four.
        .macro  push_down reg, at, base
        mov     \reg, \at(\base)
        .endm

// 80 bytes; 36 in 32-bit code.
        .macro  red_zone
#ifdef __i386__
        lea     -16*WORD(%esp), %esp
#endif
        each    push_down, IN_ZONE, %rsp
        mov     %rsp, IN_ZONE + 15*WORD(%rsp)
        .endm

// Flags stay as they are until they are pushed, and that is behind all reads of the red zone.
        .macro  write_down zone=0
        each    store, 0, site_out
        .set    word, 0
        .rept   16
        mov     IN_ZONE + word(%rsp), %rax
        mov     %rax, AT(site_out + ZONE + word)
        .set    word, word + WORD
        .endr
#ifdef __i386__
        lea     \zone*WORD(%esp), %esp
#endif
        mov     %rsp, AT(site_out + RSP)
        pushf
        pop     AT(site_out + FLAGS)
        ret
        .endm

// After these nobody needs the values before.
        .macro  kill
        movl    $7, %eax
#ifndef __i386__
        xorl    %r11d, %r11d
        xorl    %r10d, %r10d
#endif
        xorl    %ecx, %ecx
        xorl    %edx, %edx
        .endm

        .text
        .macro  save
        push    %rbx
        push    %rbp
#ifdef __i386__
        push    %esi
        push    %edi
#else
        push    %r12
        push    %r13
        push    %r14
        push    %r15
        sub     $8, %rsp
#endif
        .endm
        .macro  leave_saved
        cld
#ifdef __i386__
        pop     %edi
        pop     %esi
#else
        add     $8, %rsp
        pop     %r15
        pop     %r14
        pop     %r13
        pop     %r12
#endif
        pop     %rbp
        pop     %rbx
        ret
        .endm

// void site_call(function): all registers and flags from site_in.
        function site_call
        save
#ifdef __i386__
        mov     20(%esp), %eax
        mov     %eax, callee
#else
        mov     %rdi, callee(%rip)
#endif
        lea     -WORD(%rsp), %rax
        mov     %rax, AT(site_in + RSP)
        push    AT(site_in + FLAGS)
        popf
        each    load, 0, site_in
        call    *AT(callee)
        leave_saved
        .size   site_call, . - site_call

        function at_entry
        write_down
        .size   at_entry, . - at_entry

        function at_dead_entry
        kill
        write_down
        .size   at_dead_entry, . - at_dead_entry

// The probed instruction is behind the red zone.
        function at_middle
        red_zone
        write_down 16
        .size   at_middle, . - at_middle

        function at_dead_middle
        red_zone
        kill
        write_down 16
        .size   at_dead_middle, . - at_dead_middle

// void site_return(void): calls a function that returns with all registers and flags from `site_in`, and writes down what
// is there then.
        function site_return
        save
        mov     %rsp, AT(site_in + RSP)
        call    returns_all
        .globl  returned_to
returned_to:
        each    store, 0, site_out
        mov     %rsp, AT(site_out + RSP)
        pushf
        pop     AT(site_out + FLAGS)
        leave_saved
        .size   site_return, . - site_return

        function returns_all
        push    AT(site_in + FLAGS)
        popf
        each    load, 0, site_in
        ret
        .size   returns_all, . - returns_all

// Answers with its argument.
        function allowed
        mov     %rdi, %rax
        ret
        .size   allowed, . - allowed

        .bss
        .p2align 6
        .globl  site_in, site_out
site_in:
        .zero   17 * WORD
site_out:
        .zero   33 * WORD
callee: .zero   WORD
        .section .note.GNU-stack, "", @progbits
