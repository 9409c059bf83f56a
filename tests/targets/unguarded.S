/* A system call that could block signals, and no guard fits in front of it: a jump leads there on x86, and on Arm it is
   between an exclusive load and its store. Nobody calls it. */
	.text
	.globl unguarded
#if defined __arm__
	.type unguarded, %function
#else
	.type unguarded, @function
#endif
unguarded:
#if defined __aarch64__
1:	ldxr w1, [sp]
	mov x8, #135
	svc #0
	stxr w2, w1, [sp]
	cbnz w2, 1b
	ret
#elif defined __arm__
1:	ldrex r1, [sp]
	mov r7, #175
	svc #0
	strex r2, r1, [sp]
	cmp r2, #0
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
