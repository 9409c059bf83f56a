/* Holds a process at its end, as the kernel does for a moment with one that has much memory.
 *     late_end PID
 * Answers "go" with 1 if the process was held, which goes on then. */
#include "serve.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

static pid_t held;

static long go(long n)
{
    int status;
    (void)n;
    return waitpid(held, &status, __WALL) == held && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8)
        && ptrace(PTRACE_CONT, held, 0, 0) == 0;
}

static const struct command commands[] = { { "go", go }, { 0 } };

int main(int argc, char **argv)
{
    char *none[] = { argv[0], NULL };
    held = argc > 1 ? atoi(argv[1]) : 0;
    if (ptrace(PTRACE_SEIZE, held, 0, (void *)PTRACE_O_TRACEEXIT) != 0)
        return 3;
    return serve(1, none, commands);
}
