/* Probes of another process: this program once more, which calls `work` and says how it ends by its exit status. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidestep.h"

enum { CALLS = 1000, STATUS = 3 };

__attribute__((noipa)) unsigned work(unsigned number) { return number * 3 + 1; }

/* Works when it is told to by a byte, and says so by another one. */
static int child(void)
{
    char order;
    while (read(STDIN_FILENO, &order, 1) == 1) {
        for (unsigned i = 0; i < (unsigned char)order * 100u; i++)
            if (work(i) != i * 3 + 1)
                return 1;
        if (write(STDOUT_FILENO, &order, 1) != 1)
            return 1;
    }
    return STATUS;
}

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, sidestep_error());
        exit(1);
    }
}

static void tell(const int to[2], const int from[2], char hundreds)
{
    check(write(to[1], &hundreds, 1) == 1 && read(from[0], &hundreds, 1) == 1, "the child");
}

static void report(const char *what, sidestep_session *session, int status)
{
    struct sidestep_info info;
    check(sidestep_list(session, &info, 1) == 1 && strcmp(info.name, "work") == 0, "the list");
    printf("%s: %d of %d, status %d\n", what, (int)info.hits, CALLS, status);
    check(sidestep_detach(session) == 0, "the end");
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return child();
    int to[2], from[2], status;
    char self[4096] = { 0 };
    check(readlink("/proc/self/exe", self, sizeof self - 1) > 0, argv[0]);
    const char *const again[] = { self, "child", NULL };
    struct sidestep_probe probe = { .place = "work" };

    /* What it has to do is there before it starts. */
    check(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0, "pipes");
    check(write(to[1], &(char){ CALLS / 100 }, 1) == 1, "pipes");
    int out = dup(STDOUT_FILENO);
    dup2(to[0], STDIN_FILENO);
    dup2(from[1], STDOUT_FILENO);
    sidestep_session *session = sidestep_spawn(again, &probe, 1);
    dup2(out, STDOUT_FILENO);
    check(session != NULL, "a command");
    char done;
    check(read(from[0], &done, 1) == 1, "the command");
    check(close(to[1]) == 0, "a pipe");
    check(sidestep_wait(session, &status) == 0, "its end");
    report("started", session, status);

    int attach_to[2], attach_from[2];
    check(pipe2(attach_to, O_CLOEXEC) == 0 && pipe2(attach_from, O_CLOEXEC) == 0, "pipes");
    pid_t pid = fork();
    if (pid == 0) {
        dup2(attach_to[0], STDIN_FILENO);
        dup2(attach_from[1], STDOUT_FILENO);
        execv(self, (char *const *)again);
        _exit(127);
    }
    tell(attach_to, attach_from, 0);
    session = sidestep_attach(pid);
    check(session && sidestep_register(session, &probe, 1) == 0, "a process");
    tell(attach_to, attach_from, 3);
    check(sidestep_disable(session, 0) == 0, "disable");
    tell(attach_to, attach_from, 3);
    check(sidestep_enable(session, 0) == 0, "enable");
    tell(attach_to, attach_from, 4);
    close(attach_to[1]);
    check(waitpid(pid, &status, 0) == pid && WIFEXITED(status), "its end");
    report("attached", session, WEXITSTATUS(status));
    return 0;
}
