/* Assembler text for programs of both widths: in 32-bit code, registers by the names that they have there. It has the first
 * eight, and nothing below the stack pointer may be used. */
#ifdef __i386__
#define rax eax
#define rcx ecx
#define rdx edx
#define rbx ebx
#define rsp esp
#define rbp ebp
#define rsi esi
#define rdi edi
#define jrcxz jecxz
#define endbr64 endbr32
#define cqto cltd
#define movq movl
#endif
