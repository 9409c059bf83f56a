/* Functions whose instructions fault at known offsets, for displaced.c: those of 64-bit code, then those of 32-bit code if they
 * are others. No symbol but the function's own may be inside. */
#include "widths.h"
#ifdef __i386__
#define ALIGN 12 /* of the stack, for a call */
#else
#define ALIGN 8
#endif
	.text
.macro function name
	.p2align 4
	.globl \name
	.type \name, @function
\name:
	.cfi_startproc
.endm
.macro end name
	.cfi_endproc
	.size \name, . - \name
.endm

function do_load /* 0 */
	mov (%rdi), %rax
	lea 1(%rax), %rax
	ret
end do_load

function do_load_inside /* 1 */
	push %rbx
	mov (%rdi), %rax
	pop %rbx
	inc %rax
	ret
end do_load_inside

function do_store_long /* 0, one instruction */
	movq $6, (%rdi)
	mov (%rdi), %rax
	inc %rax
	ret
end do_store_long

function do_store_inside /* 1 */
	push %rbx
	mov %rsi, (%rdi)
	pop %rbx
	mov (%rdi), %rax
	inc %rax
	ret
end do_store_inside

function do_divide /* 4, 3 */
	push %rdi
	pop %rax
	cqto
	idiv %rsi
	ret
end do_divide

function do_undefined /* 0 */
	ud2
	mov %rdi, %rax
	inc %rax
	ret
end do_undefined

function do_undefined_inside /* 1, and nothing behind */
	push %rbx
	ud2
end do_undefined_inside
	.fill 13, 1, 0xcc

function do_breakpoint /* 1 */
	push %rbx
	int3
	pop %rbx
	mov %rdi, %rax
	inc %rax
	ret
end do_breakpoint

function do_icebreakpoint /* 1 */
	push %rbx
	.byte 0xf1
	pop %rbx
	mov %rdi, %rax
	inc %rax
	ret
end do_icebreakpoint

function do_call_memory /* 4, 3 */
	sub $ALIGN, %rsp
	call *(%rdi)
	add $ALIGN, %rsp
	ret
end do_call_memory

function do_call_register /* 4, 3 */
	sub $ALIGN, %rsp
	call *%rdi
	add $ALIGN, %rsp
	ret
end do_call_register

function do_push_elsewhere /* 3, 2 */
	xchg %rdi, %rsp
	push %rsi
	pop %rax
	xchg %rdi, %rsp
	inc %rax
	ret
end do_push_elsewhere

function do_copy /* 3, 2 */
	mov %rdx, %rcx
	rep movsb
	mov $7, %eax
	ret
end do_copy

#ifdef UNGUARDED
/* A system call that blocks signals, and an address inside the instruction in front of it. */
function unguarded
#ifdef __i386__
	mov $1f, %eax
	.byte 0xb8
1:	.long 175
	int $0x80
#else
	lea 1f(%rip), %rax
	.byte 0xb8
1:	.long 14
	syscall
#endif
	ret
end unguarded
#endif

	.section .note.GNU-stack, "", @progbits
