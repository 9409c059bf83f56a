/* A user-level thread that a signal preempts inside a probe, and that stays so until it is told to go on. `park N` makes
   it, in the N-th way of those below; 1: it is there now. `resume` lets it end; what its calls have given wrongly.
   `drop` unmaps its stack, on which the frame of the signal stays. */
#define _GNU_SOURCE
#include "leaf.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

#ifdef __x86_64__
#define IP REG_RIP
#else
#define IP REG_EIP
#endif
#define SIZE 0x40000

enum { CONTEXT, JUMP, BLOCK, WAYS };

static ucontext_t scheduler, context, *user;
static sigjmp_buf scheduler_jump, user_jump;
static volatile int parked, go;
static volatile long wrong;
static long way;
static char *stack;

PROBED long slow(long x) { return x + 2; }

/* What is in no object that the loader knows is the probe's. */
static void preempt(int signal, siginfo_t *info, void *interrupted)
{
    Dl_info known;
    (void)signal, (void)info;
    if (parked || dladdr((void *)((ucontext_t *)interrupted)->uc_mcontext.gregs[IP], &known))
        return;
    parked = 1;
    if (way != JUMP)
        swapcontext(user, &scheduler);
    else if (!sigsetjmp(user_jump, 1))
        siglongjmp(scheduler_jump, 1);
}

static void run(void)
{
    while (!go)
        wrong += slow(1) - 3;
    if (way == JUMP)
        siglongjmp(scheduler_jump, 1);
}

static void tick(long microseconds)
{
    struct itimerval every = { { 0, microseconds }, { 0, microseconds } };
    setitimer(ITIMER_REAL, &every, NULL);
}

static long park(long n)
{
    way = n % WAYS;
    parked = go = wrong = 0;
    struct sigaction action = { .sa_sigaction = preempt, .sa_flags = SA_SIGINFO | SA_RESTART };
    sigaction(SIGALRM, &action, NULL);
    stack = (char *)mmap(NULL, SIZE + 0x2000, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 0x1000;
    mprotect(stack, SIZE, PROT_READ | PROT_WRITE);
    /* Some keep what they know of a thread at the low end of its stack. */
    user = way == BLOCK ? (ucontext_t *)stack : &context;
    getcontext(user);
    user->uc_stack.ss_sp = stack;
    user->uc_stack.ss_size = SIZE;
    user->uc_link = &scheduler;
    makecontext(user, run, 0);
    tick(700);
    if (way != JUMP)
        swapcontext(&scheduler, user);
    else if (!sigsetjmp(scheduler_jump, 1))
        setcontext(user);
    tick(0);
    return parked;
}

static long resume(long n)
{
    go = 1;
    if (way != JUMP)
        swapcontext(&scheduler, user);
    else if (!sigsetjmp(scheduler_jump, 1))
        siglongjmp(user_jump, 1);
    /* Nobody knows the thread any more. */
    memset(user, 0, sizeof *user);
    memset(user_jump, 0, sizeof user_jump);
    user = NULL;
    return wrong + n;
}

static long drop(long n) { return munmap(stack - 0x1000, SIZE + 0x2000) + n; }

static const struct command commands[] = {
    { "park", park }, { "resume", resume }, { "drop", drop }, { "work", work }, { NULL, NULL },
};

int main(int argc, char **argv) { return serve(argc, argv, commands); }
