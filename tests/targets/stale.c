/* What is left of a signal frame: under the frame of a call that waits, and where the next signal's frame is. */
#include "leaf.h"
#include <signal.h>
#include <unistd.h>

/* Nothing that runs between two commands uses as much of the stack. */
enum { UNUSED = 16 << 10, COVERED = 3 * UNUSED };

/* Calls the leaf n times, below what reading and writing lines uses of the stack. */
PROBED static long below(long n)
{
    volatile char unused[UNUSED];
    unused[0] = 0;
    return unused[0] + work(n);
}

PROBED static char *next(char *line, int len)
{
    char covered[COVERED];
    __asm__ volatile("" : : "r"(covered) : "memory");
    char *got = fgets(line, len, stdin);
    __asm__ volatile("" : : "r"(covered) : "memory");
    return got;
}

/* Sends a signal to a process. */
long sends(long pid, long number);
#ifdef __x86_64__
__asm__(".pushsection .text.sends,\"ax\",@progbits\n.globl sends\n.type sends,@function\n"
        "sends: mov $62,%eax\n.globl sent\n.type sent,@function\nsent: syscall\n ret\n"
        ".size sent,.-sent\n.size sends,.-sends\n.popsection");
#elif defined __i386__
__asm__(".pushsection .text.sends,\"ax\",@progbits\n.globl sends\n.type sends,@function\n"
        "sends: push %ebx\n mov 8(%esp),%ebx\n mov 12(%esp),%ecx\n mov $37,%eax\n"
        ".globl sent\n.type sent,@function\nsent: int $0x80\n pop %ebx\n ret\n"
        ".size sent,.-sent\n.size sends,.-sends\n.popsection");
#else
PROBED long sent(long pid, long number) { return kill((pid_t)pid, (int)number); }

PROBED long sends(long pid, long number) { return sent(pid, number); }
#endif

static volatile sig_atomic_t handled;

/* Has no information about its signal: the kernel writes none. Says that it runs, and waits for a line. */
static void handler(int number)
{
    (void)number;
    char byte = 0;
    if (write(1, "1\n", 2) != 2)
        return;
    while (read(0, &byte, 1) == 1 && byte != '\n')
        ;
    handled++;
}

static long waits(long flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = (int)flags };
    sigaction(SIGUSR1, &action, NULL);
    handled = 0;
    long result = sends(getpid(), SIGUSR1);
    return 10 * handled + result;
}

int main(void)
{
    static char line[128], alternate[1 << 16];
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    setvbuf(stdin, NULL, _IONBF, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready\n");
    while (next(line, sizeof line)) {
        long n = atol(strchr(line, ' '));
        if (line[0] == 'a')
            printf("%d\n", sigaltstack(&stack, NULL));
        else
            printf("%ld\n", line[0] == 'w' ? waits(n ? SA_ONSTACK : 0) : below(n));
    }
    return 0;
}
