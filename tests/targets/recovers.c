// Threads that fault all the time, as programs do that make an exception out of a fault: a handler skips the
// instruction. SIGSEGV is blocked while it runs, and it runs for most of the time. Answers each line with the number of
// faults so far, and ends at the end of its input.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

/* Where a thread goes on, and the size of the instruction that faults. */
#ifdef __aarch64__
#define IP(context) ((context)->uc_mcontext.pc)
enum { FAULTING = 4 };
#elif defined __arm__
#define IP(context) ((context)->uc_mcontext.arm_pc)
enum { FAULTING = 4 };
#elif defined __x86_64__
#define IP(context) ((context)->uc_mcontext.gregs[REG_RIP])
enum { FAULTING = 2 };
#else
#define IP(context) ((context)->uc_mcontext.gregs[REG_EIP])
enum { FAULTING = 2 };
#endif

enum { THREADS = 4 };

static atomic_long faults;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    for (volatile int i = 0; i < 20000; i++) {
    }
    atomic_fetch_add(&faults, 1);
    IP((ucontext_t *)context) += FAULTING;
}

__attribute__((noinline)) void leaf(void) { __asm__ volatile(""); }

static void *work(void *arg) {
    for (;;) {
        leaf();
        int *nowhere = NULL;
#ifdef __aarch64__
        __asm__ volatile("ldr %0, [%0]" : "+r"(nowhere) : : "memory");
#elif defined __arm__
        __asm__ volatile("ldr.w %0, [%0]" : "+r"(nowhere) : : "memory");
#elif defined __x86_64__
        __asm__ volatile("movl (%%rax), %%eax" : "+a"(nowhere) : : "memory");
#else
        __asm__ volatile("movl (%%eax), %%eax" : "+a"(nowhere) : : "memory");
#endif
    }
    return arg;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO;
    if (sigaction(SIGSEGV, &action, NULL) != 0)
        return 1;
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, NULL) != 0)
            return 1;
    }
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        printf("%ld\n", atomic_load(&faults));
        fflush(stdout);
    }
    exit(0);
}
