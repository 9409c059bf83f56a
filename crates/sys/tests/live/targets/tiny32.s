# As tiny.s, in 32-bit code.
        .globl _start
_start: mov $4, %eax
        mov $1, %ebx
        mov $text, %ecx
        mov $6, %edx
        int $0x80
        xor %esi, %esi
1:      mov $3, %eax
        xor %ebx, %ebx
        lea -64(%esp), %ecx
        mov $1, %edx
        int $0x80
        test %eax, %eax
        jle 2f
        inc %esi
        jmp 1b
2:      js 3f
        mov $252, %eax
        mov %esi, %ebx
        int $0x80
3:      ud2
text:   .ascii "ready\n"
        .section .note.GNU-stack, "", @progbits
