/* A system call that could block signals, and a jump to it: no guard fits in front of it. Nobody calls it. */
	.text
	.globl unguarded
	.type unguarded, @function
unguarded:
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
	.size unguarded, . - unguarded

	.section .note.GNU-stack, "", @progbits
