# A static program without any library: it has no signal restorer and no `syscall; ret`.
# write("ready\n"), read until the end of the input, exit with the bytes read.
        .globl _start
_start: mov $1, %eax
        mov $1, %edi
        lea text(%rip), %rsi
        mov $6, %edx
        syscall
        xor %ebx, %ebx
1:      xor %eax, %eax
        xor %edi, %edi
        lea -64(%rsp), %rsi
        mov $1, %edx
        syscall
        test %rax, %rax
        jle 2f
        inc %ebx
        jmp 1b
2:      js 3f
        mov $231, %eax
        mov %ebx, %edi
        syscall
3:      ud2
text:   .ascii "ready\n"
