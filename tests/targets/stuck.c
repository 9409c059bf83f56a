/* A thread that is kept in a signal handler which has interrupted the code of a probe. */
#include "leaf.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#ifdef __aarch64__
#define IP(context) ((context)->uc_mcontext.pc)
#elif defined __arm__
#define IP(context) ((context)->uc_mcontext.arm_pc)
#elif defined __x86_64__
#define IP(context) ((context)->uc_mcontext.gregs[REG_RIP])
#else
#define IP(context) ((context)->uc_mcontext.gregs[REG_EIP])
#endif

static volatile int stuck, go, calls;
static pthread_t thread;

/* What is in no object that the loader knows is the probe's. */
static void keep(int sig, siginfo_t *info, void *context)
{
    Dl_info known;
    (void)sig, (void)info;
    if (dladdr((void *)IP((ucontext_t *)context), &known))
        return;
    stuck = 1;
    while (!go)
        usleep(1000);
}

PROBED long slow(long x) { return x + 2; }

static void *run(void *argument)
{
    long sum = 0;
    while (!go) {
        sum += slow(1) - 3;
        calls = 1;
    }
    return (void *)(sum + (argument != NULL));
}

/* 1: it is there now. */
static long stick(long n)
{
    struct sigaction action = { .sa_sigaction = keep, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR1, &action, NULL);
    if (pthread_create(&thread, NULL, run, NULL))
        return 0;
    /* A thread begins with system calls, which may be copies of the C library's. */
    while (!calls)
        usleep(500);
    while (!stuck) {
        usleep(500 + n);
        pthread_kill(thread, SIGUSR1);
    }
    return stuck;
}

/* Lets it go; what its calls have given wrongly. */
static long leave(long n)
{
    void *wrong = NULL;
    go = 1;
    pthread_join(thread, &wrong);
    signal(SIGUSR1, SIG_DFL);
    return (long)wrong + n;
}

static const struct command commands[] = {
    { "stick", stick }, { "leave", leave }, { "work", work }, { NULL, NULL },
};

int main(int argc, char **argv) { return serve(argc, argv, commands); }
