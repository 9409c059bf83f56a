/* A system call that could block signals, and a jump to it: on x86, no guard fits in front of it. On Arm, one fits
   everywhere. Nobody calls it. */
	.text
	.globl unguarded
#if defined __arm__
	.type unguarded, %function
#else
	.type unguarded, @function
#endif
unguarded:
#if defined __aarch64__
	mov x8, #135
1:	svc #0
	cbnz x0, 1b
	ret
#elif defined __arm__
	mov r7, #175
1:	svc #0
	cmp r0, #0
	bne 1b
	bx lr
#else
	xor %eax, %eax
#ifdef __i386__
	mov $175, %al
1:	int $0x80
#else
	mov $14, %al
1:	syscall
#endif
	test %eax, %eax
	jne 1b
	ret
#endif
	.size unguarded, . - unguarded

#if defined __arm__
	.section .note.GNU-stack, "", %progbits
#else
	.section .note.GNU-stack, "", @progbits
#endif
