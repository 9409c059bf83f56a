/* Children that run on their parent's memory until they execute something or end, and what only the parent does. Each
 * command says in its answer that all children did what they should. */
#include "leaf.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int status_of(pid_t pid)
{
    int status;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR)
        ;
    if (pid <= 0 || got != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Of the parent and of the child. */
static int shared(void)
{
    return leaf(1) == 4 && work(20) == 590;
}

/* The parent hits `leaf` 21 times before, and once after each child. */
static long vforks(long n)
{
    long good = 0;
    for (long i = 0; i < n; i++) {
        volatile int before = shared();
        volatile pid_t pid = vfork();
        if (pid == 0)
            _exit(shared() ? 5 : 6);
        good += before && leaf(i) == 3 * i + 1 && status_of(pid) == 5;
    }
    return good;
}

/* They look for what to execute, and end if there is nothing. */
static long execs(long n)
{
    long good = 0;
    for (long i = 0; i < n; i++) {
        volatile pid_t pid = vfork();
        if (pid == 0) {
            execl(i & 1 ? "/bin/true" : "/nonexistent", "true", (char *)NULL);
            _exit(shared() ? 5 : 6);
        }
        good += leaf(i) == 3 * i + 1 && status_of(pid) == (i & 1 ? 0 : 5);
    }
    return good;
}

/* The C library's child opens, duplicates and closes, and sets actions and the mask; the parent duplicates once. */
static long spawns(long n)
{
    char *argv[] = { "true", NULL };
    long good = 0;
    for (long i = 0; i < n; i++) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        sigset_t set;
        pid_t pid = -1;
        sigfillset(&set);
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, 20, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&actions, 20, 21);
        posix_spawn_file_actions_addclose(&actions, 20);
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setsigdefault(&attributes, &set);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
        int result = posix_spawn(&pid, i % 3 ? "/bin/true" : "/nonexistent", &actions, &attributes, argv, environ);
        good += i % 3 ? result == 0 && status_of(pid) == 0 : result == ENOENT;
        good -= dup2(1, 22) != 22 || leaf(i) != 3 * i + 1;
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attributes);
    }
    return good;
}

static void *in_thread(void *n)
{
    return (void *)vforks((long)n);
}

static long threads(long n)
{
    pthread_t all[4];
    long good = 0;
    for (int i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, in_thread, (void *)n);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(all[i], &result);
        good += (long)result;
    }
    return good;
}

static volatile long ticks;

PROBED long tick(void) { return ++ticks; }

static const struct itimerval often = { .it_value = { 0, 100 } };

/* One shot each: a periodic signal that comes sooner than its handler ends keeps the kernel from ever making a child. */
static void on_tick(int sig)
{
    (void)sig, tick();
    setitimer(ITIMER_REAL, &often, NULL);
}

/* As `vforks`, while signals come between all instructions. The answer is how many have come. */
static long signals(long n)
{
    struct sigaction sa = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
    struct itimerval never = { 0 };
    sigaction(SIGALRM, &sa, NULL);
    ticks = 0;
    setitimer(ITIMER_REAL, &often, NULL);
    long good = vforks(n);
    signal(SIGALRM, SIG_IGN);
    setitimer(ITIMER_REAL, &never, NULL);
    return good == n ? ticks : -1;
}

static const struct itimerval soon = { .it_value = { 0, 300 } };

/* A handler that makes children itself, and interrupts what is probed: n times. The answer is how often `work` was called. */
static void on_child(int sig)
{
    (void)sig;
    volatile pid_t pid = vfork();
    if (pid == 0)
        _exit(shared() ? 5 : 6);
    ticks += status_of(pid) == 5;
    setitimer(ITIMER_REAL, &soon, NULL);
}

static long handlers(long n)
{
    struct sigaction sa = { .sa_handler = on_child, .sa_flags = SA_RESTART };
    struct itimerval never = { 0 };
    sigaction(SIGALRM, &sa, NULL);
    ticks = 0;
    setitimer(ITIMER_REAL, &soon, NULL);
    long rounds = 0, good = 0;
    while (ticks < n)
        good += work(20) == 590, rounds++;
    setitimer(ITIMER_REAL, &never, NULL);
    return good == rounds ? rounds : -1;
}

static void on_user(int sig) { ticks += sig == SIGUSR1; }

/* Without its parent's handlers, as `posix_spawn` of newer C libraries makes them (CLONE_CLEAR_SIGHAND): on its memory or
 * with a copy. Not through the C library: the child must not return. */
static long cleared(uint64_t flags)
{
    struct { uint64_t words[11]; } args = { { flags | 0x100000000 } };
    sigset_t old;
    uint64_t all = ~0ull;
    args.words[4] = SIGCHLD;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8);
    volatile long pid;
#ifdef __x86_64__
    __asm__ volatile("mov $435,%%eax\n\tsyscall"
                     : "=a"(pid) : "D"(&args), "S"(sizeof args) : "rcx", "r11", "memory");
#elif defined __aarch64__
    register long number __asm__("x8") = 435, first __asm__("x0") = (long)&args, second __asm__("x1") = sizeof args;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    pid = first;
#elif defined __arm__
    register long number __asm__("r7") = 435, first __asm__("r0") = (long)&args, second __asm__("r1") = sizeof args;
    __asm__ volatile("svc 0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    pid = first;
#else
    __asm__ volatile("mov $435,%%eax\n\tint $0x80" : "=a"(pid) : "b"(&args), "c"(sizeof args) : "memory");
#endif
    if (pid == 0) {
        struct sigaction user, ignored;
        int good = shared();
        sigaction(SIGUSR1, NULL, &user);
        sigaction(SIGUSR2, NULL, &ignored);
        good &= user.sa_handler == SIG_DFL && ignored.sa_handler == SIG_IGN;
        sigprocmask(SIG_SETMASK, &old, NULL);
        good &= shared();
        if (good)
            kill(getpid(), SIGUSR1);
        _exit(good ? 5 : 6);
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    long before = ticks;
    kill(getpid(), SIGUSR1);
    return status_of((pid_t)pid) == 1000 + SIGUSR1 && ticks == before + 1 && leaf(1) == 4;
}

static long clears(long n)
{
    signal(SIGUSR1, on_user);
    signal(SIGUSR2, SIG_IGN);
    long good = 0;
    for (long i = 0; i < n; i++)
        good += cleared(i & 1 ? 0x4100 : 0);
    return good;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "work", work },         { "vfork", vforks },       { "exec", execs },     { "spawn", spawns },
        { "threads", threads },   { "signals", signals },    { "handlers", handlers },
        { "clear", clears },      { 0 },
    };
    return serve(argc, argv, table);
}
