/* A program with helpers that share its descriptors, and are no threads of it: no stop of the program stops them. They put a
 * file in the place of each memory that is made for a session.
 *     exchange FILE */
#define _GNU_SOURCE
#include "serve.h"
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { HELPERS = 2, FROM = 3, TO = 10 };

PROBED long worked(long n) { return n + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += worked(i);
    return sum;
}

static int helper(void *file)
{
    char name[32], to[64];
    int own = *(int *)file;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;)
        for (int fd = FROM; fd < TO; fd++) {
            snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
            ssize_t len = readlink(name, to, sizeof to - 1);
            if (len > 0 && (to[len] = 0, strstr(to, "memfd:sidestep")))
                dup2(own, fd);
        }
    return 0;
}

static const struct command commands[] = { { "work", work }, { 0 } };

int main(int argc, char **argv)
{
    static char stacks[HELPERS][65536];
    char *none[] = { argv[0], NULL };
    int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    int own = fcntl(fd, F_DUPFD, 20);
    if (own < 0)
        return 3;
    close(fd);
    for (int i = 0; i < HELPERS; i++)
        clone(helper, stacks[i] + sizeof stacks[i], CLONE_FILES | SIGCHLD, &own);
    return serve(1, none, commands);
}
