// Functions whose techniques are known: see tests/scenario/coverage.rs. No code runs.

        .macro  function name
        .p2align 4, 0xcc
        .globl  \name
        .type   \name, @function
\name:
        .cfi_startproc
        .endm
        .macro  end name
        .cfi_endproc
        .size   \name, . - \name
        .endm

        .text

// A long nop, then an instruction of one byte with padding behind it.
        function _start
        nopl    8(%rax,%rax,1)
        ret
        end _start

// One instruction of five bytes, one with padding behind it.
        function jump
        movl    $1, %eax
        ret
        end jump

// Several short ones.
        function several
        pushq   %rbp
        movq    %rsp, %rbp
        subq    $16, %rsp
        movl    $1, %eax
        movl    $2, %eax
        leave
        ret
        end several

// A breakpoint of its own cannot be probed.
        function breakpoint
        movl    $1, %eax
        int3
        movl    $2, %eax
        ret
        end breakpoint

// Two instructions, bytes that are none and would be skipped, and one instruction.
        function holds_data
        movl    $1, %eax
        jmp     1f
        .byte   0x06, 0x06
1:      ret
        end holds_data

// No function: a table.
        .p2align 4, 0xcc
        .quad   0x1122334455667788, 0x1122334455667788

// A label without type and size is no function either; unwind information describes it.
        .p2align 4, 0xcc
unnamed:
        .cfi_startproc
        movl    $3, %eax
        ret
        .cfi_endproc
