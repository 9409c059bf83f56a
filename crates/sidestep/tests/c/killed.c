/* What becomes of a program that probes itself when somebody ends in the middle. `ptrace` is defined here, where the library finds it
 * before the C library's: so the controller can be killed right before or behind any of its calls, and the program can end there.
 *
 * killed controller FIRST STEP [LAST]   the controller is killed at every STEP-th call; the program goes on and starts a new session
 * killed program FIRST STEP [LAST]      the program is killed, exits, or executes another one; the controller ends, too
 * Prints how many sessions that were, and how many calls an undisturbed one makes. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sidestep.h"

enum what { NOTHING, BEFORE, BEHIND, KILL, EXIT, EXECUTE };
enum { EXITED = 7, EXECUTED = 5, THREADS = 3, START = 16 };

/* Of the program and its controllers. */
static struct {
    atomic_long calls;
    long at;
    enum what what;
    pid_t program;
    atomic_int now; /* the program is to end by itself */
} *shared;

long ptrace(int request, pid_t pid, void *addr, void *data)
{
    int is_it = atomic_fetch_add(&shared->calls, 1) + 1 == shared->at;
    if (is_it && shared->what == BEFORE)
        kill(getpid(), SIGKILL);
    if (is_it && shared->what == KILL)
        kill(shared->program, SIGKILL);
    if (is_it && shared->what >= EXIT)
        shared->now = 1;
    long result = syscall(SYS_ptrace, (long)request, (long)pid, addr, data);
    if (is_it && shared->what == BEHIND)
        kill(getpid(), SIGKILL);
    return result;
}

typedef unsigned function(unsigned, unsigned);
#define FUNCTION(name, value)                                                                                          \
    __attribute__((noipa)) static unsigned name(unsigned a, unsigned b)                                                \
    {                                                                                                                  \
        return value;                                                                                                  \
    }
FUNCTION(handled, a * 3 + b)
FUNCTION(watched, a * b + 1)
FUNCTION(counted, (a ^ b) + 5)
FUNCTION(replaced, a - b)
FUNCTION(plain, a + b)

static function *original, *const functions[] = { handled, watched, counted, replaced, plain };
enum { FUNCTIONS = sizeof functions / sizeof *functions };
static unsigned results[FUNCTIONS];
static unsigned char starts[FUNCTIONS][START];
static atomic_int stop;

static void fail(const char *what)
{
    fprintf(stderr, "call %ld, %d: %s: %s\n", shared->at, shared->what, what, sidestep_error());
    _exit(1);
}

static void check(void)
{
    for (int i = 0; i < FUNCTIONS; i++)
        if (functions[i](1000, 7) != results[i])
            fail("a wrong result");
}

static void on_signal(int signal)
{
    (void)signal;
    check();
}

static void *work(void *argument)
{
    while (!stop) {
        for (int i = 0; i < 100; i++)
            check();
        if (argument == NULL && shared->now) {
            if (shared->what == EXIT)
                exit(EXITED);
            signal(SIGALRM, SIG_IGN); /* the timer stays */
            execl("/proc/self/exe", "killed", "executed", NULL);
        }
        usleep(100);
    }
    return NULL;
}

static atomic_ulong handler_calls;
static void count(struct sidestep_context *context, void *data)
{
    (void)context, (void)data;
    handler_calls++;
}
static unsigned replacement(unsigned a, unsigned b) { return original(a, b); }

static const struct sidestep_probe probes[] = {
    { .address = (const void *)handled, .on_entry = count },
    { .address = (const void *)watched, .on_return = count },
    { .address = (const void *)counted },
    { .address = (const void *)replaced, .replacement = (const void *)replacement, .original = (void **)&original },
};
enum { PROBES = sizeof probes / sizeof *probes };

/* All that a session can do. Each step may fail if its controller is killed, and no other. */
static void session(int live)
{
    sidestep_session *session = live ? sidestep_own_live() : sidestep_own();
    int good = session && sidestep_register(session, probes, PROBES - 1) == 0
        && sidestep_register(session, &probes[PROBES - 1], 1) == PROBES - 1 && sidestep_disable(session, 0) == 0
        && sidestep_enable(session, 0) == 0
        && (!live || (sidestep_optimize(session, 2, 0) == 0 && sidestep_optimize(session, 2, 1) == 0))
        && sidestep_unregister(session, 1) == 0 && sidestep_register(session, &probes[1], 1) == PROBES;
    /* Its error is the last one. */
    good = (session == NULL || sidestep_detach(session) == 0) && good;
    if (!good && (shared->what == NOTHING || shared->calls < shared->at))
        fail("a session");
    check();
}

/* A session of which nothing is left: not of those before it, either. */
static void clean_session(void)
{
    char line[512];
    struct sidestep_info info;
    shared->what = NOTHING;
    sidestep_session *session = sidestep_own();
    struct sidestep_probe probe = { .address = (const void *)plain, .on_entry = count };
    if (!session || sidestep_register(session, &probe, 1) != 0)
        fail("the next session");
    check();
    if (sidestep_list(session, &info, 1) != 1 || info.hits == 0)
        fail("hits of the next session");
    if (sidestep_detach(session))
        fail("the end of the next session");
    check();
    for (int i = 0; i < FUNCTIONS; i++)
        if (memcmp((const void *)functions[i], starts[i], START))
            fail("code is not what it was");
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:"))
            fail("memory is left");
    fclose(maps);
}

static void start(void)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct itimerval time = { { 0, 2000 }, { 0, 2000 } };
    pthread_t thread;
    shared->program = getpid();
    for (int i = 0; i < FUNCTIONS; i++) {
        results[i] = functions[i](1000, 7);
        memcpy(starts[i], (const void *)functions[i], START);
    }
    for (long i = 0; i < THREADS; i++)
        if (pthread_create(&thread, NULL, work, (void *)i))
            fail("a thread");
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &time, NULL);
}

/* Sets what happens at which call of `ptrace`. */
static void arm(enum what what, long at)
{
    shared->calls = 0;
    shared->at = at;
    shared->what = what;
    shared->now = 0;
}

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc == 2) {
        /* Executed: nothing of the probes has come along. */
        start();
        check();
        return EXECUTED;
    }
    if (argc < 4)
        return 2;
    int of_program = strcmp(argv[1], "program") == 0;
    long at = atol(argv[2]), step = atol(argv[3]), last = argc > 4 ? atol(argv[4]) : 0, sessions = 0, all[2];
    if (of_program) {
        /* Whatever is left of a session is a child of this process: it waits for all of them. */
        prctl(PR_SET_CHILD_SUBREAPER, 1);
        for (all[1] = 1; (last == 0 || at <= last) && at <= all[1]; at += step, sessions++) {
            enum what what = sessions == 0 ? NOTHING : KILL + sessions % 3;
            int status, ended = 0;
            arm(what, at);
            if (fork() == 0) {
                start();
                session(1);
                /* Where it was too late, it ends at once. */
                shared->now = 1;
                if (what == KILL)
                    raise(SIGKILL);
                while (what != NOTHING)
                    pause();
                exit(0);
            }
            while (wait(&status) > 0)
                ended += what == KILL ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                    : WIFEXITED(status)
                    && WEXITSTATUS(status) == (what == EXIT ? EXITED : what == EXECUTE ? EXECUTED : 0);
            if (ended == 0)
                fail("not the end of the program");
            if (what == NOTHING) {
                all[1] = shared->calls;
                at -= step;
            }
        }
        printf("%ld sessions of %ld calls\n", sessions, all[1]);
        return 0;
    }
    start();
    for (int live = 0; live < 2; live++) {
        arm(NOTHING, 0);
        session(live);
        all[live] = shared->calls;
    }
    for (; (last == 0 || at <= last) && (at <= all[0] || at <= all[1]); at += step, sessions++) {
        int live = sessions % 2;
        arm(sessions / 2 % 2 ? BEHIND : BEFORE, at);
        session(live);
        if (sessions % 3 == 0)
            clean_session();
    }
    clean_session();
    stop = 1;
    printf("%ld sessions of %ld calls\n", sessions, all[1]);
    return 0;
}
