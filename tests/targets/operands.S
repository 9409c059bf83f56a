/* Static probes with operands of every form that notes have. `operands(n)` sets the registers from n, and each probe is hit once.
 * `args` of a probe: what its note says. */
        .macro probe name, args
990:    nop
        .pushsection .note.stapsdt, "", "note"
        .balign 4
        .4byte 992f-991f, 994f-993f, 3
991:    .asciz "stapsdt"
992:    .balign 4
#ifdef __x86_64__
993:    .8byte 990b, 0, 0
#else
993:    .4byte 990b, 0, 0
#endif
        .asciz "forms"
        .asciz "\name"
        .asciz "\args"
994:    .balign 4
        .popsection
        .endm

        .section .note.GNU-stack, "", @progbits
        .data
        .balign 64
        .globl numbers
        .type numbers, @object
        .size numbers, 64
numbers:
        .8byte -2, 0x1122334455667788, 30, 40
        .4byte -50, 60
        .2byte -70, 80
        .byte -90, 100, 0, 0
        .8byte 0x4008000000000000, 0x3fc00000

        .text
        .globl operands
        .type operands, @function
#ifdef __x86_64__
operands:
        push %rbp
        mov %rsp, %rbp
        push %rbx
        push %r12
        push %r13
        sub $40, %rsp
        lea numbers(%rip), %rbx
        movq %rdi, -40(%rbp)
        movl $-5, -48(%rbp)
        mov $2, %ecx
        mov $0x8182838485868788, %rax
        mov %rax, %r12
        mov %edi, %r13d
        neg %r13
        movsd 48(%rbx), %xmm1
        movss 56(%rbx), %xmm7
        xor %edx, %edx
        mov $0xc3, %dh
        xor %r8d, %r8d
        probe registers, "8@%rdi 8@%rax 4@%eax -4@%eax 2@%ax -2@%ax 1@%al -1@%al 1@%dh -1@%dh -8@%r13 -4@%r13d"
        probe halves, "-2@%r12w 1@%r12b -1@%r12b 4@%r12d 2@%r13w -1@%dil 8@%r12"
        probe constants, "8@$42 -4@$-7 4@$-7 -1@$255 1@$255 -8@$-9223372036854775808 8@$0x10"
        probe memory, "-8@(%rbx) 4@8(%rbx) 8@8(%rbx) -4@32(%rbx) -2@40(%rbx) 2@40(%rbx) -1@44(%rbx) 1@44(%rbx)"
        probe stack, "8@-40(%rbp) -4@-48(%rbp) 4@-48(%rbp)"
        probe indices, "8@(%rbx,%rcx,8) -4@32(%rbx,%r8,4) 4@28(%rbx,%rcx,4) -2@36(%rbx,%rcx,2) 1@43(%rbx,%rcx) -8@-16(%rbx,%rcx,8)"
        probe symbols, "-8@numbers(%rip) 4@numbers+8(%rip) 8@16+numbers(%rip) -8@numbers 1@44+numbers+1(%rip)"
        probe floats, "8f@%xmm1 4f@%xmm7 8f@48(%rbx) 4f@56(%rbx) 8@%xmm1"
        probe unreadable, "8@(%r8) -4@8(%r8,%rcx,8) 8@%rdi"
        probe only, "8@(,%rcx,8) 12@%rdi 8@%rdi"
        probe twelve, "8@$0 8@$1 8@$2 8@$3 8@$4 8@$5 8@$6 8@$7 8@$8 8@$9 8@%rdi -4@-48(%rbp)"
        mov %rdi, %rax
        add $40, %rsp
        pop %r13
        pop %r12
        pop %rbx
        pop %rbp
        ret
#else
operands:
        push %ebp
        mov %esp, %ebp
        push %ebx
        push %esi
        push %edi
        sub $40, %esp
        call 1f
1:      pop %ebx
        add $_GLOBAL_OFFSET_TABLE_ + (. - 1b), %ebx
        lea numbers@GOTOFF(%ebx), %esi
        mov 8(%ebp), %edi
        mov %edi, -40(%ebp)
        movl $-5, -48(%ebp)
        mov $2, %ecx
        mov $0x85868788, %eax
        movsd 48(%esi), %xmm1
        movss 56(%esi), %xmm7
        xor %edx, %edx
        mov $0xc3, %dh
        probe registers, "4@%edi 4@%eax -4@%eax 2@%ax -2@%ax 1@%al -1@%al 1@%dh -1@%dh"
        probe constants, "8@$42 -4@$-7 4@$-7 -1@$255 1@$255 -8@$-9223372036854775808 8@$0x10"
        probe memory, "-8@(%esi) 4@8(%esi) 8@8(%esi) -4@32(%esi) -2@40(%esi) 2@40(%esi) -1@44(%esi) 1@44(%esi)"
        probe stack, "4@-40(%ebp) -4@-48(%ebp) 4@-48(%ebp)"
        probe indices, "8@(%esi,%ecx,8) 4@28(%esi,%ecx,4) -2@36(%esi,%ecx,2) 1@43(%esi,%ecx) -8@-16(%esi,%ecx,8)"
        probe symbols, "-8@numbers 4@numbers+8 -8@numbers@GOTOFF(%ebx) 4@8+numbers@GOTOFF(%ebx)"
        probe floats, "8f@%xmm1 4f@%xmm7 8f@48(%esi) 4f@56(%esi)"
        probe unreadable, "4@-2(%ecx) -4@8(%ecx,%ecx,8) 4@%edi"
        probe only, "4@(,%ecx,8) 12@%edi 4@%edi"
        probe twelve, "4@$0 4@$1 4@$2 4@$3 4@$4 4@$5 4@$6 4@$7 4@$8 4@$9 4@%edi -4@-48(%ebp)"
        mov %edi, %eax
        add $40, %esp
        pop %edi
        pop %esi
        pop %ebx
        pop %ebp
        ret
#endif
        .size operands, . - operands
