// Functions whose first bytes are hard to replace. Each says what a jump of five bytes would break. Argument in edi, result in
// eax, in both widths. short_a64.h has functions of these names for arm64.
#ifdef __aarch64__
#include "short_a64.h"
#else
#include "widths.h"

        .macro  function name
        .globl  \name
        .type   \name, @function
\name:
        .endm
        .macro  end name
        .size   \name, . - \name
        .endm

        .text

// A branch back to +2: sum of n, n-1, ... 1.
        .p2align 4
        function loop_at_2
        xorl    %eax, %eax
1:      add     %rdi, %rax
        dec     %rdi
        jnz     1b
        ret
        end loop_at_2

// A branch back to +4, out of a longer function: the region of five bytes ends behind it. 2n.
        .p2align 4
        function loop_at_4
        mov     %rdi, %rax
#ifdef __i386__
        nop
#endif
        nop
1:      inc     %rax
        dec     %rdi
        jnz     1b
        ret
        end loop_at_4

// Three bytes, and the next function begins at once.
        .p2align 4
        function three_bytes
        movl    %edi, %eax
        ret
        end three_bytes
        function behind_three
        leal    1(%rdi), %eax
        ret
        end behind_three

// One ret, and the next function begins at once.
        .p2align 4
        function only_ret
        ret
        end only_ret
        function behind_ret
        leal    2(%rdi), %eax
        ret
        end behind_ret

// One ret with padding behind it.
        .p2align 4
        function ret_padded
        ret
        end ret_padded
        .p2align 4

// The call ends the region: a thread in the callee comes back behind it.
        function call_near
        push    %rbx
        call    park
        incl    %eax
        pop     %rbx
        ret
        end call_near

// The call is inside of the region: a thread in the callee comes back into the middle.
        .p2align 4
        function call_inside
        push    %rbx
        call    *%rsi
        incl    %eax
        pop     %rbx
        ret
        end call_inside

// The first instruction is a call.
        .p2align 4
        function call_first
        call    *%rsi
        incl    %eax
        ret
        end call_first

// A tail jump of two bytes to the next function.
        .p2align 4
        function jumps_away
        jmp     jumped_to
        end jumps_away
        function jumped_to
        leal    3(%rdi), %eax
        ret
        end jumped_to

// The first instruction is a conditional branch of two bytes, which goes into its own function.
        .p2align 4
        function branch_first
        testl   %edi, %edi
        jz      1f
        leal    4(%rdi), %eax
        ret
1:      movl    $77, %eax
        ret
        end branch_first

// loop and jrcxz have no long form.
        .p2align 4
        function counts_down
        movl    %edi, %ecx
        xorl    %eax, %eax
        jrcxz   2f
1:      incl    %eax
        loop    1b
2:      ret
        end counts_down

// Reads memory relative to its own address.
        .p2align 4
        function reads_rip
#ifdef __i386__
        call    1f
1:      nop     // callgrind takes a `pop` here for a part of the call
        pop     %eax
        movl    forty - 1b(%eax), %eax
#else
        movl    forty(%rip), %eax
#endif
        addl    %edi, %eax
        ret
        end reads_rip

// Keeps its argument in a register that belongs to the caller: n + 1.
        .p2align 4
        function in_rbx
        push    %rbx
        mov     %rdi, %rbx
        lea     1(%rbx), %rax
        pop     %rbx
        ret
        end in_rbx

// Uses the red zone of a leaf (32-bit code has none: a word of the stack), and the flags across its first instructions.
        .p2align 4
        function red_zone
        endbr64
#ifdef __i386__
        push    %edi
        cmpl    $5, %edi
        pop     %eax
#else
        movl    %edi, -4(%rsp)
        cmpl    $5, %edi
        movl    -4(%rsp), %eax
#endif
        jae     1f
        addl    $100, %eax
1:      ret
        end red_zone

        .section .rodata
        .p2align 2
forty:  .long   40
#endif
        .section .note.GNU-stack, "", @progbits
