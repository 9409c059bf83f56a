/* A process on its parent's memory that goes on beside it (CLONE_VM without CLONE_THREAD): it executes the same code. */
#include "leaf.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[65536] __attribute__((aligned(16)));
static volatile int over;
static volatile long rounds;
static pid_t child;

/* It has its parent's thread pointer, so it uses nothing of the C library but names of calls. */
static int beside(void *arg)
{
    int wrong = 0;
    (void)arg;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (long i = 0; !over; i++, rounds++)
        wrong |= leaf(i) != 3 * i + 1;
    syscall(SYS_exit_group, wrong);
    return 0;
}

static long begin(long n)
{
    over = 0;
    child = clone(beside, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
    return child > 0 ? n : -1;
}

/* It goes on. */
static long goes(long n)
{
    for (long last = rounds; rounds < last + n;) {
        int status;
        if (waitpid(child, &status, WNOHANG) != 0)
            return -1;
    }
    return n;
}

/* The status that it ends with. */
static long end(long n)
{
    int status;
    (void)n;
    over = 1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "begin", begin }, { "goes", goes }, { "end", end }, { "work", work }, { 0 },
    };
    return serve(argc, argv, table);
}
