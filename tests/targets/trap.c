/* Programs with their own ideas about SIGTRAP. */
#include "leaf.h"
#include "serve.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile long own, wrong;

static void on_trap(int sig, siginfo_t *info, void *context)
{
    (void)context;
    wrong += sig != SIGTRAP || (info->si_code != SI_KERNEL && info->si_code != SI_TKILL);
    own++;
}

static long install(long n)
{
    struct sigaction sa = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    sigaction(SIGTRAP, &sa, NULL);
    return n;
}

/* n own breakpoints, n raised signals and n calls: the answer is 2n, or less or more if one got lost. */
static long mixed(long n)
{
    own = wrong = 0;
    for (long i = 0; i < n; i++) {
        __asm__ volatile("int3");
        raise(SIGTRAP);
        wrong += leaf(i) != i * 3 + 1;
    }
    return wrong ? -wrong : own;
}

static void mask(int how)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTRAP);
    pthread_sigmask(how, &set, NULL);
}

static long block(long n)
{
    mask(SIG_BLOCK);
    return n;
}

static long unblock(long n)
{
    mask(SIG_UNBLOCK);
    return n;
}

/* Children for which the C library resets all handlers, while they still share our memory. */
static long spawns(long n)
{
    char *argv[] = { "true", NULL };
    for (long i = 0; i < n; i++) {
        pid_t pid;
        int status = 0;
        wrong += posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) || waitpid(pid, &status, 0) != pid || status;
    }
    return wrong ? -wrong : n;
}

/* Blocks everything without the C library's functions for that, and calls one while all is blocked. */
static long direct(long n)
{
    long all = -1, old, now, good = 0;
    for (long i = 0; i < n; i++) {
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8);
        good += getppid() > 0;
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, &now, 8);
        good -= !(now >> (SIGTRAP - 1) & 1);
    }
    return good;
}

/* An own breakpoint without a handler kills. */
static long die(long n)
{
    __asm__ volatile("int3");
    return n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "install", install }, { "mixed", mixed }, { "block", block }, { "unblock", unblock },
        { "work", work },       { "die", die },     { "spawn", spawns }, { "direct", direct }, { 0 },
    };
    return serve(argc, argv, table);
}
