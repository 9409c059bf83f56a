/* Calls of functions written in assembler, which are the same for both widths: arguments in rdi, rsi, rdx, result in rax. */
#pragma once

#ifdef __i386__
/* No convention of C has these registers for arguments there. The stack is aligned as for any call. */
long call_with(void *function, long rdi, long rsi, long rdx);
__asm__(".pushsection .text\n\t.local call_with\n\t.type call_with, @function\ncall_with:\n\t"
        ".cfi_startproc\n\tpush %ebp\n\t.cfi_def_cfa_offset 8\n\t.cfi_offset ebp, -8\n\t"
        "mov %esp, %ebp\n\t.cfi_def_cfa_register ebp\n\t"
        "push %ebx\n\t.cfi_offset ebx, -12\n\tpush %esi\n\t.cfi_offset esi, -16\n\tpush %edi\n\t.cfi_offset edi, -20\n\t"
        "and $-16, %esp\n\tmov 12(%ebp), %edi\n\tmov 16(%ebp), %esi\n\tmov 20(%ebp), %edx\n\tcall *8(%ebp)\n\t"
        "lea -12(%ebp), %esp\n\tpop %edi\n\tpop %esi\n\tpop %ebx\n\tpop %ebp\n\t.cfi_def_cfa esp, 4\n\tret\n\t.cfi_endproc\n\t"
        ".size call_with, . - call_with\n\t.popsection");
#else
static inline long call_with(void *function, long rdi, long rsi, long rdx)
{
    return ((long (*)(long, long, long))function)(rdi, rsi, rdx);
}
#endif
