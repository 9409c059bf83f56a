/* User-level threads that a timer's signal preempts: the handler switches to the next stack, so the frame of the signal
   lies on a stack that no thread is on. `rounds N` waits until each has computed N times. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>

#include "serve.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define THREADS 4
#define SIZE 0x20000

#ifdef __x86_64__
#define R "%r"
#define TAKE "mov %rdi,%rbx\nmov %rsi,%rcx\n"
#define KEEP "push %rbx\npush %rsi\n"
#define LEAVE "pop %rcx\npop %rbx\nret\n"
#else
#define R "%e"
#define TAKE "mov 12(%esp),%ebx\nmov 16(%esp),%ecx\n"
#define KEEP "push %ebx\npush %esi\n"
#define LEAVE "pop %esi\npop %ebx\nret\n"
#endif

/* Adds n / by, (n - 1) / by, ... 1 / by. A thread in `step` nearly always stands right behind the division. */
long turn(long n, long by);
__asm__(".text\n.globl turn\n.type turn,@function\nturn:\n" KEEP TAKE "xor %esi,%esi\n"
        "1: mov " R "bx," R "ax\nxor %edx,%edx\ncall step\ndec " R "bx\njnz 1b\nmov " R "si," R "ax\n" LEAVE
        ".size turn,.-turn\n"
        ".globl step\n.type step,@function\nstep:\ndiv " R "cx\nadd " R "ax," R "si\nadd $1," R "si\nret\n"
        ".size step,.-step\n.globl step_end\nstep_end:\n");

static ucontext_t contexts[THREADS];
static volatile int current;
static volatile long done[THREADS];
static volatile int wrong;

static void tick(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    int from = current;
    current = (from + 1) % THREADS;
    swapcontext(&contexts[from], &contexts[current]);
}

static void body(int self)
{
    long want = 0;
    for (long i = 1; i <= 2000; i++)
        want += i / 7 + 1;
    for (;;) {
        if (turn(2000, 7) != want)
            wrong = 1;
        done[self]++;
    }
}

static void *carry(void *unused)
{
    static char fixed[SIZE];
    for (int i = 0; i < THREADS; i++) {
        getcontext(&contexts[i]);
        char *stack = i == 0 ? fixed : i == 1 ? malloc(SIZE) : mmap(0, SIZE, PROT_READ | PROT_WRITE,
                                                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        contexts[i].uc_stack.ss_sp = stack;
        contexts[i].uc_stack.ss_size = SIZE;
        sigdelset(&contexts[i].uc_sigmask, SIGALRM);
        makecontext(&contexts[i], (void (*)(void))body, 1, i);
    }
    struct sigaction action = { .sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGALRM, &action, 0);
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM };
    event.sigev_notify_thread_id = syscall(SYS_gettid);
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, &event, &timer);
    struct itimerspec every = { { 0, 500000 }, { 0, 500000 } };
    timer_settime(timer, 0, &every, 0);
    setcontext(&contexts[0]);
    return unused;
}

static long rounds(long n)
{
    long goal[THREADS];
    for (int i = 0; i < THREADS; i++)
        goal[i] = done[i] + n;
    for (int i = 0; i < THREADS; i++)
        while (done[i] < goal[i])
            usleep(1000);
    return wrong;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "rounds", rounds }, { 0 } };
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarm, 0);
    pthread_t thread;
    pthread_create(&thread, 0, carry, 0);
    return serve(argc, argv, table);
}
