/* Instructions that store to a stack at its end: what a handler on another stack is told of the fault. */
#include "serve.h"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef __x86_64__
#define WORD "8"
#define SP REG_RSP
#define IP REG_RIP
#else
#define WORD "4"
#define SP REG_ESP
#define IP REG_EIP
#endif

/* Each is a function whose first, or second, instruction pushes a word. */
#define FUNCTION(name, code) \
    ".globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" code ".cfi_endproc\n.size " #name ", . - " #name "\n"
__asm__(".pushsection .text\n.p2align 4\n"
        FUNCTION(callee, "ret\nnop\nnop\nnop\nnop\n")
#ifdef __x86_64__
        FUNCTION(pushes, "push %rbx\n.cfi_adjust_cfa_offset 8\nmov %rdi, %rbx\nlea 7(%rbx), %rax\npop %rbx\n"
                         ".cfi_adjust_cfa_offset -8\nret\n")
        FUNCTION(second, "mov %rdi, %rax\npush %rbx\n.cfi_adjust_cfa_offset 8\nmov %rax, %rbx\nlea 7(%rbx), %rax\npop %rbx\n"
                         ".cfi_adjust_cfa_offset -8\nret\n")
        FUNCTION(calls, "call callee\nlea 7(%rdi), %rax\nret\n")
        FUNCTION(calls_by_register, "lea callee(%rip), %rax\ncall *%rax\nlea 7(%rdi), %rax\nret\n")
        /* at_end(function, n, sp): with that stack pointer. */
        FUNCTION(at_end, "push %rbp\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %rbp, 0\nmov %rsp, %rbp\n.cfi_def_cfa_register %rbp\n"
                         "mov %rdi, %rax\nmov %rsi, %rdi\nmov %rdx, %rsp\njmp *%rax\n")
#else
        FUNCTION(pushes, "push %ebx\n.cfi_adjust_cfa_offset 4\nmov %eax, %ebx\nlea 7(%ebx), %eax\npop %ebx\n"
                         ".cfi_adjust_cfa_offset -4\nret\n")
        FUNCTION(second, "mov %eax, %edx\npush %ebx\n.cfi_adjust_cfa_offset 4\nmov %edx, %ebx\nlea 7(%ebx), %eax\npop %ebx\n"
                         ".cfi_adjust_cfa_offset -4\nret\n")
        FUNCTION(calls, "call callee\nlea 7(%eax), %eax\nret\n")
        FUNCTION(calls_by_register, "mov $callee, %edx\ncall *%edx\nlea 7(%eax), %eax\nret\n")
        FUNCTION(at_end, "push %ebp\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %ebp, 0\nmov %esp, %ebp\n.cfi_def_cfa_register %ebp\n"
                         "mov 8(%ebp), %edx\nmov 12(%ebp), %eax\nmov 16(%ebp), %esp\njmp *%edx\n")
#endif
        ".popsection");

typedef long __attribute__((regparm(1))) (*function)(long);
long __attribute__((regparm(1))) pushes(long), second(long), calls(long), calls_by_register(long);
long at_end(function f, long n, char *sp);

static const struct {
    function function;
    /* Where the instruction is that stores. */
    int offset;
} all[] = {
    { pushes, 0 },
#ifdef __x86_64__
    { second, 3 },
    { calls, 0 },
    { calls_by_register, 7 },
#else
    { second, 2 },
    { calls, 0 },
    { calls_by_register, 5 },
#endif
};
enum { COUNT = sizeof all / sizeof *all };

static char alternate[1 << 16];
static sigjmp_buf back;
static char *end;
static volatile long right, which;

static void on_fault(int sig, siginfo_t *info, void *context)
{
    const greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t ip = (uintptr_t)all[which].function + all[which].offset;
    right += sig == SIGSEGV && info->si_code == SEGV_ACCERR && info->si_addr == end - sizeof(void *)
             && (uintptr_t)r[IP] == ip && (uintptr_t)r[SP] == (uintptr_t)end;
    siglongjmp(back, 1);
}

/* How many of all were told right, n times each. */
static long fall(long n)
{
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    char *pages = mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    end = pages + 4096;
    mprotect(end, 4096, PROT_READ | PROT_WRITE);
    sigaltstack(&stack, NULL);
    sigaction(SIGSEGV, &action, NULL);
    right = 0;
    for (volatile long i = 0; i < n; i++)
        for (which = 0; which < COUNT; which++)
            if (!sigsetjmp(back, 1))
                at_end(all[which].function, 1, end);
    signal(SIGSEGV, SIG_DFL);
    munmap(pages, 8192);
    return right;
}

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        for (int k = 0; k < COUNT; k++)
            sum += all[k].function(i) == i + 7;
    return sum;
}

static const struct command commands[] = { { "fall", fall }, { "work", work }, { NULL, NULL } };

int main(int argc, char **argv) { return serve(argc, argv, commands); }
