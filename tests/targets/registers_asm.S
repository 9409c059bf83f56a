// Functions that begin with all registers and flags known, and write down what they have behind the probed instruction.
// `site_in` and `site_out` hold words in the order of struct pt_regs: 15 registers; then rsp and the flags, and of the
// latter also 16 words of red zone.

        .set    RSP, 15 * 8
        .set    FLAGS, 16 * 8
        .set    ZONE, 17 * 8

        .macro  function name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .endm

        .macro  each action, at, base
        \action %r15, 0*8 + \at, \base
        \action %r14, 1*8 + \at, \base
        \action %r13, 2*8 + \at, \base
        \action %r12, 3*8 + \at, \base
        \action %rbp, 4*8 + \at, \base
        \action %rbx, 5*8 + \at, \base
        \action %r11, 6*8 + \at, \base
        \action %r10, 7*8 + \at, \base
        \action %r9,  8*8 + \at, \base
        \action %r8,  9*8 + \at, \base
        \action %rax, 10*8 + \at, \base
        \action %rcx, 11*8 + \at, \base
        \action %rdx, 12*8 + \at, \base
        \action %rsi, 13*8 + \at, \base
        \action %rdi, 14*8 + \at, \base
        .endm
        .macro  load reg, at, base
        movq    \at + \base(%rip), \reg
        .endm
        .macro  store reg, at, base
        movq    \reg, \at + \base(%rip)
        .endm
// Five bytes each.
        .macro  push_down reg, at, base
        movq    \reg, \at(\base)
        .endm

        .macro  red_zone
        each    push_down, -128, %rsp
        movq    %rsp, -8(%rsp)
        .endm

// Flags stay as they are until they are pushed, and that is behind all reads of the red zone.
        .macro  write_down
        each    store, 0, site_out
        movq    %rsp, site_out + RSP(%rip)
        .set    word, 0
        .rept   16
        movq    -128 + word(%rsp), %rax
        movq    %rax, site_out + ZONE + word(%rip)
        .set    word, word + 8
        .endr
        pushfq
        popq    site_out + FLAGS(%rip)
        ret
        .endm

// After these nobody needs the values before.
        .macro  kill
        movl    $7, %eax
        xorl    %r11d, %r11d
        xorl    %r10d, %r10d
        xorl    %ecx, %ecx
        xorl    %edx, %edx
        .endm

        .text
// void site_call(function): all registers and flags from site_in.
        function site_call
        pushq   %rbx
        pushq   %rbp
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        subq    $8, %rsp
        movq    %rdi, callee(%rip)
        leaq    -8(%rsp), %rax
        movq    %rax, site_in + RSP(%rip)
        pushq   site_in + FLAGS(%rip)
        popfq
        each    load, 0, site_in
        call    *callee(%rip)
        cld
        addq    $8, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbp
        popq    %rbx
        ret
        .size   site_call, . - site_call

        function at_entry
        write_down
        .size   at_entry, . - at_entry

        function at_dead_entry
        kill
        write_down
        .size   at_dead_entry, . - at_dead_entry

// The probed instruction is at +80.
        function at_middle
        red_zone
        write_down
        .size   at_middle, . - at_middle

        function at_dead_middle
        red_zone
        kill
        write_down
        .size   at_dead_middle, . - at_dead_middle

// void site_return(void): calls a function that returns with all registers and flags from `site_in`, and writes down what
// is there then.
        function site_return
        pushq   %rbx
        pushq   %rbp
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        subq    $8, %rsp
        movq    %rsp, site_in + RSP(%rip)
        call    returns_all
        .globl  returned_to
returned_to:
        each    store, 0, site_out
        movq    %rsp, site_out + RSP(%rip)
        pushfq
        popq    site_out + FLAGS(%rip)
        cld
        addq    $8, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbp
        popq    %rbx
        ret
        .size   site_return, . - site_return

        function returns_all
        pushq   site_in + FLAGS(%rip)
        popfq
        each    load, 0, site_in
        ret
        .size   returns_all, . - returns_all

        .bss
        .p2align 6
        .globl  site_in, site_out
site_in:
        .zero   17 * 8
site_out:
        .zero   33 * 8
callee: .zero   8
        .section .note.GNU-stack, "", @progbits
