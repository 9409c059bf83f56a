/* What the kernel's own tests of probes are about: a call that stays inside for a while, many functions, stacks. */
#include "serve.h"
#include <pthread.h>
#include <unistd.h>

int pipes[4] __attribute__((visibility("hidden")));

/* read(2): the system call is the second instruction, at +5. In 32-bit code its arguments are where the kernel wants them. */
#ifdef __i386__
void plain_read(void);
asm(".globl plain_read\n.type plain_read, @function\n.p2align 4\n"
    "plain_read: movl $3, %eax\n\tint $0x80\n\tnop\n\tret\n.size plain_read, . - plain_read\n");

static long read_plainly(int fd, void *to, long len)
{
    long result;
    asm volatile("call plain_read" : "=a"(result) : "b"(fd), "c"(to), "d"(len) : "memory");
    return result;
}
#else
long plain_read(int fd, void *to, long len);
asm(".globl plain_read\n.type plain_read, @function\n.p2align 4\n"
    "plain_read: movl $0, %eax\n\tsyscall\n\tnop\n\tret\n.size plain_read, . - plain_read\n");

static long read_plainly(int fd, void *to, long len) { return plain_read(fd, to, len); }
#endif

/* Of negative numbers it waits to be let go. */
PROBED long consumed(long n)
{
    char c;
    if (n < 0 && read_plainly(pipes[0], &c, 1) != 1)
        return 0;
    return n * 2;
}

/* Instructions of all kinds, most of them between branches. */
long straight(long *at, long n);
#ifdef __i386__
asm(".globl straight\n.type straight, @function\n.p2align 4\n"
    "straight: push %ebx\n\tpush %esi\n\tpush %edi\n\tmov 16(%esp), %edx\n\tmov (%edx), %ebx\n\tmov %edx, %ecx\n"
    "\txchg %ecx, %eax\n\tadd 4(%eax), %ebx\n\tpushf\n\tpop %edx\n\tpush %edx\n\tstc\n\tpopf\n\tlock incl 16(%esp)\n"
    "\tmov $3, %ecx\n\tmov %eax, %esi\n\tlea 8(%eax), %edi\n\tcld\n\trep movsl\n\tcmp %esi, %ebx\n\tsetl %al\n"
    "\tmovd %ebx, %xmm1\n\tpaddd %xmm1, %xmm1\n\tmovd %xmm1, %eax\n\tenter $16, $0\n\tmov -4(%ebp), %edx\n\tleave\n"
    "\tpop %edi\n\tpop %esi\n\tpop %ebx\n\tret\n.size straight, . - straight\n");
#else
asm(".globl straight\n.type straight, @function\n.p2align 4\n"
    "straight: push %rbx\n\tmov %rsp, -8(%rsp)\n\tmov %rdi, -16(%rsp)\n\tmov (%rdi), %rbx\n\tmov -16(%rsp), %rcx\n"
    "\txchg %rcx, %r11\n\tlea pipes(%rip), %r10\n\tadd 8(%r11), %rbx\n\tpushf\n\tpop %rdx\n\tpush %rdx\n\tstc\n\tpopf\n"
    "\txor %eax, %eax\n\tlock incl pipes+8(%rip)\n\tmov $3, %ecx\n\tmov %r11, %rsi\n\tlea 16(%r11), %rdi\n\tcld\n\trep movsq\n"
    "\tcmp %rsi, %rbx\n\tsetl %al\n\tmovq %rbx, %xmm1\n\tpaddq %xmm1, %xmm1\n\tmovq %xmm1, %rax\n\tenter $16, $0\n"
    "\tmov -8(%rbp), %rdx\n\tleave\n\tpop %rbx\n\tret\n.size straight, . - straight\n");
#endif

/* Two functions of one name: the other one is in suites_twin.c. */
PROBED static long twin(long n) { return n + 5; }
long other_twin(long n);

/* Calls a function n times. */
static long sum_of(long (*function)(long), long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += function(i);
    return sum;
}

static long own_twins(long n) { return sum_of(twin, n); }
static long other_twins(long n) { return sum_of(other_twin, n); }

PROBED long outer(long n) { return consumed(n) + 1; }
PROBED long outermost(long n) { return outer(n) + 1; }
PROBED void elsewhere(void) {}

/* many_00 to many_ff */
#define SIXTEEN(of, t)                                                                                                 \
    of(t##0) of(t##1) of(t##2) of(t##3) of(t##4) of(t##5) of(t##6) of(t##7)                                            \
    of(t##8) of(t##9) of(t##a) of(t##b) of(t##c) of(t##d) of(t##e) of(t##f)
#define ALL(of)                                                                                                        \
    SIXTEEN(of, 0) SIXTEEN(of, 1) SIXTEEN(of, 2) SIXTEEN(of, 3) SIXTEEN(of, 4) SIXTEEN(of, 5) SIXTEEN(of, 6)           \
    SIXTEEN(of, 7) SIXTEEN(of, 8) SIXTEEN(of, 9) SIXTEEN(of, a) SIXTEEN(of, b) SIXTEEN(of, c) SIXTEEN(of, d)           \
    SIXTEEN(of, e) SIXTEEN(of, f)
#define DEFINE(d) PROBED long many_##d(long n) { return n + 0x##d; }
#define CALL(d) sum += many_##d(n);
ALL(DEFINE)

static long many(long n)
{
    long sum = 0;
    ALL(CALL)
    return sum;
}

static long calls(long n) { return sum_of(consumed, n); }

static pthread_t inside[64];
static long entered;

static void *enter_one(void *arg)
{
    __atomic_add_fetch(&entered, 1, __ATOMIC_RELAXED);
    return (void *)consumed((long)arg);
}

/* Threads 1 to n wait inside. */
static long enter(long n)
{
    entered = 0;
    for (long i = 1; i <= n; i++)
        pthread_create(&inside[i], NULL, enter_one, (void *)-i);
    while (__atomic_load_n(&entered, __ATOMIC_RELAXED) != n)
        usleep(100);
    /* Between the count and the read there is the probe. */
    usleep(20000);
    return n;
}

static long leave(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        if (write(pipes[1], "x", 1) != 1)
            return 1;
    for (long i = 1; i <= n; i++) {
        void *result;
        pthread_join(inside[i], &result);
        sum += (long)result;
    }
    return sum;
}

/* How many bytes a read of 100 finds. */
static long piped(long n)
{
    char bytes[100];
    memset(bytes, 0, sizeof bytes);
    return write(pipes[1], bytes, n) == n ? read_plainly(pipes[0], bytes, sizeof bytes) : -1;
}

static long straights(long n)
{
    long wrong = 0;
    for (long i = 0; i < n; i++) {
        long words[8] = {i, 7, 0, 1, 2, 3, 4, 5};
        wrong += straight(words, i) != 2 * (i + 7) || words[2] != i || words[3] != 7 || words[4] != i;
    }
    return wrong;
}

static long deep(long n) { return outermost(n); }

static const struct command commands[] = {
    {"many", many}, {"calls", calls}, {"enter", enter}, {"leave", leave}, {"deep", deep}, {"piped", piped},
    {"straight", straights}, {"own_twins", own_twins}, {"other_twins", other_twins}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    if (pipe(pipes))
        return 1;
    elsewhere();
    return serve(argc, argv, commands);
}
