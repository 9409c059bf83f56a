/* New processes out of a probed one. */
#include "leaf.h"
#include "serve.h"
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static long status_of(pid_t pid)
{
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Returns twice, in two processes. */
PROBED long forking(void) { return fork(); }

/* n children, each of which calls leaf n times; the answer is the number of children that computed the right sum. */
static long forks(long n)
{
    long good = 0;
    for (long i = 0; i < n; i++) {
        pid_t pid = (pid_t)forking();
        if (pid == 0)
            _exit(work(n) == 3 * n * (n - 1) / 2 + n ? 7 : 8);
        good += status_of(pid) == 7 && leaf(i) == 3 * i + 1;
    }
    return good;
}

PROBED pid_t spawning(void)
{
    char *argv[] = { "sh", "-c", "exit 9", NULL };
    pid_t pid;
    return posix_spawn(&pid, "/bin/sh", NULL, NULL, argv, environ) ? -1 : pid;
}

static long spawns(long n)
{
    long good = 0;
    for (long i = 0; i < n; i++)
        good += status_of(spawning()) == 9;
    return good;
}

/* The child of vfork runs probed code on its parent's memory and stack. */
PROBED pid_t vforking(void)
{
    volatile pid_t pid = vfork();
    if (pid == 0) {
        long x = leaf(1);
        execl("/bin/sh", "sh", "-c", x == 4 ? "exit 5" : "exit 6", (char *)NULL);
        _exit(99);
    }
    return pid;
}

static long vforks(long n)
{
    long good = 0;
    for (long i = 0; i < n; i++)
        good += status_of(vforking()) == 5;
    return good;
}

/* Becomes another program. */
static long becomes(long n)
{
    char number[32];
    snprintf(number, sizeof number, "%ld", n);
    work(10);
    execl("/proc/self/exe", "spawn", "work", number, "3", (char *)NULL);
    return -1;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "work", work },     { "fork", forks },     { "spawn", spawns },
        { "vfork", vforks },  { "exec", becomes },   { 0 },
    };
    return serve(argc, argv, table);
}
