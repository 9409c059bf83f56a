// Instructions that only 32-bit code has, or that are others there, for emulated_asm.S. All that a function here has is executed
// once when it is called; nothing is left below the stack pointer.

// Short forms, where 64-bit code has prefixes.
        case    old_short_forms
        inc     %eax
        dec     %ecx
        inc     %edi
        dec     %ebp
        .byte   0x66
        inc     %edx
        .byte   0xd6 // salc
        push    %bx
        pop     %si
        done    old_short_forms

        case    old_all_registers
        pusha
        popa
        pushaw
        popaw
        pushf
        pop     %eax
        pushfw
        popfw
        push    %ecx
        push    $0x246
        popf
        pop     %edx
        done    old_all_registers

// Decimal arithmetic.
        case    old_decimals
        daa
        das
        mov     %bh, %al
        aaa
        mov     %dl, %al
        aas
        aam
        aad
        aam     $7
        aad     $13
        done    old_decimals

        case    old_frames
        enter   $16, $0
        leave
        enter   $8, $1
        add     $12, %esp
        pop     %ebp
        push    %ebx
        mov     %esp, %ebx
        push    %esp
        pop     %eax
        mov     %ebx, %esp
        pop     %ebx
        done    old_frames

// `c4` and `c5` are VEX prefixes only in front of what would be a register, and 62 one of EVEX.
        case    old_segments
        push    %cs
        pop     %eax
        push    %ss
        pop     %ecx
        push    %es
        push    $1234
        les     (%esp), %esi
        lds     (%esp), %edi
        pop     %edx
        pop     %es
        push    %fs
        pop     %fs
        mov     %ds, %ebx
        push    $0x7fffffff
        push    $0
        mov     $5, %eax
        bound   %eax, (%esp)
        pop     %eax
        pop     %eax
        mov     %gs:0, %edx
        mov     %ss:(%esp), %ecx
        mov     %cs:case_mov, %esi
        mov     %es:state_in, %edi
        arpl    %ax, %cx
        xor     %eax, %eax
        into
        done    old_segments

// Addresses of 16 bits.
        case    old_addresses
        mov     $0x1230, %ebx
        lea     4(%bx, %si), %eax
        lea     0x1234, %dx
        lea     (%di), %ecx
        mov     $state_in, %ebx
        mov     $3, %al
        xlat
        done    old_addresses

// Learn their own addresses.
        case    old_own_address
        call    1f
1:      pop     %ebx
        call    2f
2:      pop     %eax
        sub     %ebx, %eax
        call    old_thunk
        add     $old_own_address, %ecx
        done    old_own_address

        function old_thunk
        mov     (%esp), %ecx
        ret
        .size   old_thunk, . - old_thunk

        function old_drops
        ret     $8
        .size   old_drops, . - old_drops

        case    old_calls
        push    %eax
        push    %ebx
        call    old_drops
        push    %ecx
        push    $old_drops
        push    $1f
        pop     %edx
        sub     $4, %esp
        call    *4(%esp)
        push    $1f
        jmp     *(%esp)
1:      pop     %eax
        pop     %eax
        done    old_calls

        case    old_far
        ljmp    $0x23, $1f
1:      push    %cs
        push    $2f
        lret
2:      pushf
        push    %cs
        push    $3f
        iret
3:      push    $0x23
        push    $4f
        ljmp    *(%esp)
4:      pop     %eax
        pop     %edx
        done    old_far

        case    old_branches
        mov     $0x10001, %ecx
        addr16  loop 1f
1:      jcxz    2f
2:      mov     $1, %ecx
        loop    3f
3:      jecxz   4f
        inc     %eax
4:      jcxz    5f
5:      done    old_branches

// getpid: as programs call the kernel, with all other registers as they were.
        case    old_calls_of_the_kernel
        mov     $20, %eax
        int     $0x80
        mov     %eax, %ebx
        mov     $20, %eax
        call    *%gs:0x10
        sub     %eax, %ebx
        done    old_calls_of_the_kernel
