/* A thread for each instruction of a call, in the code of probes, too: another process steps so far, and sends a signal. (For each
 * 61st one in 32-bit code, where the agent does all.) The handler calls so deep that all memory for the calls that are
 * watched is used up in the middle, or it leaves the call for ever. Prints how many calls there were. */
#define _GNU_SOURCE
#include "leaf.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

enum { DEPTH = 600 };

#ifdef __x86_64__
#define IP rip
#else
#define IP eip
#endif

/* What both processes see. */
static volatile struct {
    int tid, go, over;
} *shared;
static __thread sigjmp_buf before;
static int leaves;
static long outer_calls, left_calls, deep_calls;

PROBED long deep(long n)
{
    deep_calls++;
    return n == 0 ? 0 : deep(n - 1) + 1;
}

PROBED long outer(long n) { return leaf(n) + 1; }
__attribute__((noipa)) void behind(void) { asm volatile(""); }

static void interrupted(int sig)
{
    (void)sig;
    if (deep(DEPTH) != DEPTH)
        _exit(3);
    if (leaves)
        siglongjmp(before, 1);
}

static void *one(void *unused)
{
    (void)unused;
    if (sigsetjmp(before, 1) == 0) {
        shared->tid = (int)syscall(SYS_gettid);
        while (!shared->go)
            ;
        if (outer(7) != leaf(7) + 1)
            _exit(4);
        behind();
        outer_calls++;
    } else {
        left_calls++;
    }
    for (int i = 0; i < 3; i++)
        outer_calls += outer(i) == leaf(i) + 1;
    return NULL;
}

static uintptr_t ip_of(pid_t tid)
{
    struct user_regs_struct regs;
    return ptrace(PTRACE_GETREGS, tid, NULL, &regs) == 0 ? regs.IP : 0;
}

static void stop(pid_t tid)
{
    int status;
    if (waitpid(tid, &status, __WALL) != tid || !WIFSTOPPED(status))
        _exit(5);
}

/* Lets the thread go so many instructions into the call. False: the call is over before. */
static int step(pid_t tid, long instructions)
{
    if (ptrace(PTRACE_SEIZE, tid, NULL, NULL) || ptrace(PTRACE_INTERRUPT, tid, NULL, NULL))
        _exit(6);
    stop(tid);
    shared->go = 1;
    long done = -1;
    while (done < instructions) {
        uintptr_t ip = ip_of(tid);
        if (ip == (uintptr_t)behind)
            break;
        if (done >= 0 || ip == (uintptr_t)outer)
            done++;
        if (done == instructions)
            break;
        if (ptrace(PTRACE_SINGLESTEP, tid, NULL, NULL))
            _exit(7);
        stop(tid);
    }
    int in_time = done == instructions;
    shared->over = !in_time;
    if (ptrace(PTRACE_DETACH, tid, NULL, (void *)(uintptr_t)(in_time ? SIGUSR1 : 0)))
        _exit(8);
    return in_time;
}

static void stepper(long stride)
{
    for (long at = 0;; at += stride) {
        while (!shared->tid)
            sched_yield();
        pid_t tid = shared->tid;
        shared->tid = 0;
        if (!step(tid, at))
            break;
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    leaves = argc > 1 && strcmp(argv[1], "leave") == 0;
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    signal(SIGUSR1, interrupted);
    pid_t child = fork();
    if (child == 0)
        stepper(sizeof(long) == 8 ? 1 : 61);
    long signals = 0;
    for (; !shared->over; signals++) {
        pthread_t thread;
        shared->go = 0;
        if (pthread_create(&thread, NULL, one, NULL))
            return 9;
        pthread_join(thread, NULL);
    }
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        return 10;
    printf("%ld signals, %ld calls, %ld left, %ld deep\n", signals, outer_calls, left_calls, deep_calls);
    return 0;
}
