/* Two user-level threads, one of them on the stack of `main`, which a timer's signal preempts: the handler switches to the
 * other stack, so the frame of the interrupted one lies on a stack that no thread is on. Both compute the same again and again. A wrong result ends the
 * program, and so do ten seconds without a result. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>

enum { STACK = 1 << 18, PAGE = 1 << 12, STEPS = 20000 };

static ucontext_t at[2];
static volatile int now;
/* Results of both, and how many there were when the timer saw a new one, with its signals since. */
static volatile long results, seen, silent;

/* Divisions, so that most of the time is spent at one instruction in the middle of the function. */
__attribute__((noipa)) long turn(long steps, long by)
{
    long sum = 0;
    for (long i = steps; i > 0; i--)
        sum += i / by + 1;
    return sum;
}

static void tick(int signal)
{
    int from = now;
    (void)signal;
    silent = results == seen ? silent + 1 : 0;
    seen = results;
    if (silent > 2000)
        abort();
    now = !from;
    swapcontext(&at[from], &at[!from]);
}

static void body(void)
{
    long wanted = turn(STEPS, 7);
    for (;;) {
        if (turn(STEPS, 7) != wanted)
            abort();
        results++;
    }
}

int main(void)
{
    getcontext(&at[1]);
    /* With a page that nobody may use on both sides. */
    char *stack = mmap(0, STACK + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + PAGE, STACK, PROT_READ | PROT_WRITE);
    at[1].uc_stack.ss_sp = stack + PAGE;
    at[1].uc_stack.ss_size = STACK;
    makecontext(&at[1], body, 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval often = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, 0);
    body();
}
