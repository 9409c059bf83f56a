// The functions of short_asm.S for arm64, with the same answers: what stands first is what is hard to relocate there, and
// branches lead to the instruction behind it. Argument in x0, result in w0.
        .macro  function name
        .p2align 4
        entry   \name
        .endm
        .macro  entry name
        .globl  \name
        .type   \name, %function
\name:
        .endm
        .macro  end name
        .size   \name, . - \name
        .endm

        .text

// A branch back to the second instruction: sum of n, n-1, ... 1.
        function loop_at_2
        mov     x1, xzr
1:      add     x1, x1, x0
        subs    x0, x0, #1
        b.ne    1b
        mov     x0, x1
        ret
        end loop_at_2

// A branch back to the third one. 2n.
        function loop_at_4
        mov     x1, x0
        nop
1:      add     x1, x1, #1
        sub     x0, x0, #1
        cbnz    x0, 1b
        mov     x0, x1
        ret
        end loop_at_4

// The next function begins at once.
        function three_bytes
        mov     w0, w0
        ret
        end three_bytes
        entry behind_three
        add     w0, w0, #1
        ret
        end behind_three

// One ret, and the next function begins at once.
        function only_ret
        ret
        end only_ret
        entry behind_ret
        add     w0, w0, #2
        ret
        end behind_ret

// One ret with padding behind it.
        function ret_padded
        ret
        end ret_padded
        .p2align 4

// A direct call.
        function call_near
        stp     x29, x30, [sp, #-16]!
        bl      park
        add     w0, w0, #1
        ldp     x29, x30, [sp], #16
        ret
        end call_near

// A call of a register.
        function call_inside
        stp     x29, x30, [sp, #-16]!
        blr     x1
        add     w0, w0, #1
        ldp     x29, x30, [sp], #16
        ret
        end call_inside

// The first instruction keeps the return address, which no call can do without.
        function call_first
        str     x30, [sp, #-16]!
        blr     x1
        add     w0, w0, #1
        ldr     x30, [sp], #16
        ret
        end call_first

// A tail jump to the next function.
        function jumps_away
        b       jumped_to
        end jumps_away
        entry jumped_to
        add     w0, w0, #3
        ret
        end jumped_to

// The first instruction is a conditional branch, which goes into its own function.
        function branch_first
        cbz     w0, 1f
        add     w0, w0, #4
        ret
1:      mov     w0, #77
        ret
        end branch_first

// The first instruction is a branch of the shortest reach, and the loop leads back to it. n, which is counted in a second
// argument that is 0.
        function counts_down
1:      tbnz    w0, #31, 2f
        sub     w0, w0, #1
        add     w1, w1, #1
        b       1b
2:      sub     w0, w1, #1
        ret
        end counts_down

// Reads memory relative to its own address.
        function reads_rip
        ldr     w1, forty
        add     w0, w0, w1
        ret
        end reads_rip

// Keeps its argument in a register that belongs to the caller: n + 1.
        function in_rbx
        str     x19, [sp, #-16]!
        mov     x19, x0
        add     x0, x19, #1
        ldr     x19, [sp], #16
        ret
        end in_rbx

// Begins with a landing pad, and uses a word of the stack, and the flags across its first instructions.
        function red_zone
        bti     c
        cmp     w0, #5
        str     w0, [sp, #-16]!
        ldr     w0, [sp], #16
        b.hs    1f
        add     w0, w0, #100
1:      ret
        end red_zone

        .section .rodata
        .p2align 2
forty:  .long   40
