/* A function whose exits are not known calls what looks at its return address: later a library. */
#include "serve.h"
#include <dlfcn.h>
#include <stdint.h>

typedef long look_function(const uintptr_t *slot, uintptr_t start, uintptr_t end);

static long leads_elsewhere(const uintptr_t *slot, uintptr_t start, uintptr_t end)
{
    return *slot < start || *slot >= end;
}

/* Bytes of code of a function that calls `odd`, at most, and where it begins. */
enum { CODE = 256 };
static volatile uintptr_t caller;

static char library[4096];
static look_function *look = leads_elsewhere;
static volatile int loads;
static volatile long found, zero;

/* The return address is above the saved frame pointer. */
static __attribute__((noinline)) void look_at(const uintptr_t *frame)
{
    if (loads) {
        void *handle = dlopen(library, RTLD_NOW);
        look = handle ? (look_function *)dlsym(handle, "leads_elsewhere") : NULL;
        loads = 0;
    }
    found += look(frame + 1, caller, caller + CODE);
}

PROBED long odd(long x)
{
    char *to = (char *)(x & 1 ? &&one : &&two) + zero;
    look_at(__builtin_frame_address(0));
    goto *to;
one:
    return x + 1;
two:
    return x + 2;
}

/* A call by a jump: what is in front of the return address is no call. */
PROBED long jump_to_odd(long x)
{
    long result;
#ifdef __x86_64__
    __asm__ volatile("mov %%rsp, %%rbx\n\tsub $128, %%rsp\n\tand $-16, %%rsp\n\t"
                     "lea 1f(%%rip), %%rax\n\tpush %%rax\n\tjmp odd\n\t.fill 16, 1, 0x90\n1:\tmov %%rbx, %%rsp"
                     : "=a"(result), "+D"(x)
                     :
                     : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
#else
    __asm__ volatile("mov %%esp, %%edi\n\tand $-16, %%esp\n\tsub $12, %%esp\n\tpush %1\n\tcall 2f\n2:\tpop %%eax\n\t"
                     "add $1f-2b, %%eax\n\tpush %%eax\n\tjmp odd\n\t.fill 16, 1, 0x90\n1:\tmov %%edi, %%esp"
                     : "=a"(result)
                     : "S"(x)
                     : "edi", "ecx", "edx", "memory", "cc");
#endif
    return result;
}

/* Code of a language that has a stack of its own, as Haskell: functions go on by jumps, to what is on that stack. What
 * is on top of the processor's stack is no return address, though it looks like one. Nothing describes the frame. */
void continues(void);
#ifdef __x86_64__
#define WORD ".quad"
#define ON_TOP "(%rbp)"
#else
#define WORD ".long"
#define ON_TOP "(%ebp)"
#endif
__asm__(".globl continues\n\t.type continues, @function\ncontinues:\n\ttest %edi, %edi\n\tjns 1f\n\tud2\n1:\tjmp *" ON_TOP
        "\n\t.size continues, .-continues\n\t.pushsection .data\n\t.balign 8\n\t" WORD " 1b\n\t.popsection");

/* What the processor's stack has on top is as it was: then 0. */
PROBED long continue_once(void)
{
    long changed;
#ifdef __x86_64__
    __asm__ volatile("mov %%rsp, %%rbx\n\tsub $128, %%rsp\n\tand $-16, %%rsp\n\tpush %%rbp\n\t"
                     "lea 1f(%%rip), %%rax\n\tpush %%rax\n\tmov %%rsp, %%rbp\n\txor %%edi, %%edi\n\t"
                     "call 3f\n3:\tjmp continues\n1:\tpop %%rax\n\tlea 3b(%%rip), %%rcx\n\tsub %%rcx, %%rax\n\t"
                     "mov 8(%%rsp), %%rbp\n\tmov %%rbx, %%rsp"
                     : "=a"(changed)
                     :
                     : "rbx", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "memory", "cc");
#else
    __asm__ volatile("mov %%esp, %%esi\n\tand $-16, %%esp\n\tpush %%ebp\n\tcall 2f\n2:\tpop %%eax\n\t"
                     "add $1f-2b, %%eax\n\tpush %%eax\n\tmov %%esp, %%ebp\n\txor %%edi, %%edi\n\t"
                     "call 3f\n3:\tjmp continues\n1:\tpop %%eax\n\tcall 2f\n2:\tpop %%ecx\n\tadd $3b-2b, %%ecx\n\t"
                     "sub %%ecx, %%eax\n\tmov 4(%%esp), %%ebp\n\tmov %%esi, %%esp"
                     : "=a"(changed)
                     :
                     : "esi", "edi", "ecx", "edx", "memory", "cc");
#endif
    return changed;
}

/* So many calls: how many return addresses led elsewhere than into the function `from`. */
PROBED long rounds(long n, long (*call)(long), void *from)
{
    found = 0;
    caller = (uintptr_t)from;
    for (volatile long i = 0; i < n; i++)
        if (call(i) != i + (i & 1 ? 1 : 2))
            return -1;
    return found;
}

static long walk(long n) { return rounds(n, odd, rounds); }
static long jump(long n) { return rounds(n, jump_to_odd, jump_to_odd); }

static long go_on(long n)
{
    long changed = 0;
    for (long i = 0; i < n; i++)
        changed += continue_once() != 0;
    return changed;
}

static long come(long n)
{
    loads = 1;
    return walk(n);
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "walk", walk }, { "come", come }, { "jump", jump }, { "go_on", go_on }, { 0 } };
    const char *name = strrchr(argv[0], '/');
    snprintf(library, sizeof library, "%.*s/greenlet.so", name ? (int)(name - argv[0]) : 1, name ? argv[0] : ".");
    return serve(argc, argv, table);
}
