// The instructions that a trap handler does by itself, and some that it does not: short functions without a loop of their own that
// know nothing of each other, for emulated.c. They begin with all registers and flags from `state_in` and end in `leave_case`.
// `state_in` and `state_out` hold 15 registers, then rsp and the flags.

        .set    RSP, 15 * 8
        .set    FLAGS, 16 * 8

        .macro  function name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .endm

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
        \action %r15, 0*8, \base
        \action %r14, 1*8, \base
        \action %r13, 2*8, \base
        \action %r12, 3*8, \base
        \action %rbp, 4*8, \base
        \action %rbx, 5*8, \base
        \action %r11, 6*8, \base
        \action %r10, 7*8, \base
        \action %r9,  8*8, \base
        \action %r8,  9*8, \base
        \action %rax, 10*8, \base
        \action %rcx, 11*8, \base
        \action %rdx, 12*8, \base
        \action %rsi, 13*8, \base
        \action %rdi, 14*8, \base
        .endm
        .macro  load reg, at, base
        movq    \at + \base(%rip), \reg
        .endm
        .macro  store reg, at, base
        movq    \reg, \at + \base(%rip)
        .endm

        .section .data.rel.ro, "aw"
        .p2align 3
        .globl  cases
cases:

        .text
// void run_case(function)
        function run_case
        pushq   %rbx
        pushq   %rbp
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rdi, callee(%rip)
        movq    %rsp, own_sp(%rip)
        each    load, state_in
        pushq   state_in + FLAGS(%rip)
        popfq
        movq    state_in + RSP(%rip), %rsp
        jmp     *callee(%rip)
        .size   run_case, . - run_case

        function leave_case
        each    store, state_out
        movq    %rsp, state_out + RSP(%rip)
        movq    own_sp(%rip), %rsp
        pushfq
        popq    state_out + FLAGS(%rip)
        pushq   $0x202
        popfq
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbp
        popq    %rbx
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
        push    %r12
        push    $-3
        push    $0x12345678
        pop     %r8
        pop     %rdi
        pop     %r13
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
        mov     %r9d, %ecx
        mov     $0x1234, %esi
        movabs  $0x123456789abcdef0, %r11
        mov     $-5, %rdx
        mov     %r15, %r14
        done    case_mov

        case    case_lea
        lea     8(%rdi, %rsi, 4), %rax
        lea     -100(%r9), %r9
        lea     (%r13, %r12, 8), %ecx
        lea     (%edi, %esi), %rdx
        lea     case_mov(%rip), %rbx
        lea     0x40(, %r8, 2), %r8
        done    case_lea

        case    case_sum
        add     $8, %rax
        sub     $0x7fffffff, %rcx
        add     $-1, %r10
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
2:      lea     3f(%rip), %rax
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
        lea     case_returns(%rip), %rcx
        call    *%rcx
        push    %rax
        push    %rbx
        call    case_drops
        done    case_call

// Their copies run.
        case    case_other
        xor     %eax, %eax
        mov     (%rsp), %rcx
        mov     %rcx, -16(%rsp)
        push    8(%rsp)
        pop     -32(%rsp)
        inc     %rdx
        movl    $7, 16(%rsp)
        done    case_other

        .section .data.rel.ro, "aw"
        .quad   0

        .bss
        .p2align 6
        .globl  state_in, state_out
state_in:
        .zero   17 * 8
state_out:
        .zero   17 * 8
callee: .zero   8
own_sp: .zero   8
        .section .note.GNU-stack, "", @progbits
