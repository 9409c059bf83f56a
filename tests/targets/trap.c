/* Programs with their own ideas about SIGTRAP. */
#include "leaf.h"
#include "serve.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static volatile long own, wrong;

/* What a breakpoint of the program's own is, what the kernel says of it, and how far to go on behind it. */
#ifdef __aarch64__
#define BREAKPOINT "brk #1"
enum { CODE = TRAP_BRKPT };
#define STEP_OVER(context) (((ucontext_t *)(context))->uc_mcontext.pc += 4)
#elif defined __arm__
#define BREAKPOINT ".inst.n 0xde01" /* udf #1 */
enum { CODE = TRAP_BRKPT };
#define STEP_OVER(context) (((ucontext_t *)(context))->uc_mcontext.arm_pc += 2)
#else
#define BREAKPOINT "int3"
enum { CODE = SI_KERNEL };
#define STEP_OVER(context) ((void)(context))
#endif

static void on_trap(int sig, siginfo_t *info, void *context)
{
    wrong += sig != SIGTRAP || (info->si_code != CODE && info->si_code != SI_TKILL);
    if (info->si_code == CODE)
        STEP_OVER(context);
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
        __asm__ volatile(BREAKPOINT);
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

/* Blocks everything without the C library's functions for that, and calls one while all is blocked. The kernel's sets have
 * 64 bits on all machines. */
static long direct(long n)
{
    uint64_t all = ~0ull, old, now;
    long good = 0;
    for (long i = 0; i < n; i++) {
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8);
        good += getppid() > 0;
        syscall(SYS_rt_sigprocmask, SIG_SETMASK, &old, &now, 8);
        good -= !(now >> (SIGTRAP - 1) & 1);
    }
    return good;
}

static pthread_t stormy[4];
static volatile int calm;

static long is_blocked(void)
{
    sigset_t now;
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    return sigismember(&now, SIGTRAP);
}

/* Blocks and opens the signal all the time, and calls one while it is blocked. */
static void *change(void *arg)
{
    while (!calm) {
        long bad = 0;
        mask(SIG_BLOCK);
        bad += getppid() <= 0;
        bad += !is_blocked();
        mask(SIG_UNBLOCK);
        bad += leaf(1) != 4 || is_blocked();
        __atomic_add_fetch(&wrong, bad, __ATOMIC_RELAXED);
    }
    return arg;
}

static long storm(long n)
{
    wrong = calm = 0;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&stormy[i], NULL, change, NULL))
            return -1;
    return n;
}

static long lull(long n)
{
    calm = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(stormy[i], NULL);
    return wrong + n;
}

static volatile int is_caught, goes_on, was_opened;

/* Keeps the thread where it is. */
static void catch_it(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info, (void)context;
    is_caught = 2;
    while (!goes_on)
        usleep(1000);
}

static void *open_again(void *arg)
{
    sigset_t set, now;
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    while (!is_caught) {
        pthread_sigmask(SIG_BLOCK, &set, NULL);
        pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    }
    pthread_sigmask(SIG_BLOCK, NULL, &now);
    was_opened = !sigismember(&now, SIGSEGV);
    return arg;
}

/* A thread blocks and opens SIGSEGV until it gets SIGUSR1, and stays there. (The kernel opens SIGTRAP at a debugger's
 * breakpoint.) */
static long opens(long n)
{
    struct sigaction sa = { .sa_sigaction = catch_it, .sa_flags = SA_SIGINFO };
    is_caught = goes_on = 0;
    sigaction(SIGUSR1, &sa, NULL);
    return pthread_create(&stormy[0], NULL, open_again, NULL) ? -1 : n;
}

static long caught(long n) { return is_caught + n; }

/* It goes on. Is the signal open, which is the last that it did? */
static long opened(long n)
{
    goes_on = 1;
    pthread_join(stormy[0], NULL);
    return was_opened + n;
}

static void close_frame(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info;
    sigfillset(&((ucontext_t *)context)->uc_sigmask);
}

/* A handler blocks all signals by the mask in its own frame, which its end gives to the thread, as qemu-user does. n calls
 * follow. Twice n, if all of them were right and the signal was blocked then, and not any more afterwards. */
static long frame(long n)
{
    struct sigaction sa = { .sa_sigaction = close_frame, .sa_flags = SA_SIGINFO };
    long good = 0;
    sigset_t none;
    sigemptyset(&none);
    sigaction(SIGUSR1, &sa, NULL);
    for (long i = 0; i < n; i++) {
        raise(SIGUSR1);
        good += leaf(i) == i * 3 + 1 && is_blocked();
        pthread_sigmask(SIG_SETMASK, &none, NULL);
        good += !is_blocked();
    }
    return good;
}

static void close_more(int sig, siginfo_t *info, void *context)
{
    close_frame(sig, info, context);
    raise(SIGUSR1);
}

/* The same by a handler in a handler: n calls, while the signal is blocked by the inner one's frame and then open again. */
static long nested(long n)
{
    struct sigaction inner = { .sa_sigaction = close_frame, .sa_flags = SA_SIGINFO };
    struct sigaction outer = { .sa_sigaction = on_trap, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR1, &inner, NULL);
    sigaction(SIGTRAP, &outer, NULL);
    own = wrong = 0;
    long good = 0;
    for (long i = 0; i < n; i++) {
        outer.sa_sigaction = close_more;
        sigaction(SIGUSR2, &outer, NULL);
        raise(SIGUSR2);
        good += leaf(i) == i * 3 + 1 && is_blocked();
        mask(SIG_UNBLOCK);
        sigset_t none;
        sigemptyset(&none);
        pthread_sigmask(SIG_SETMASK, &none, NULL);
        __asm__ volatile(BREAKPOINT);
        good += own == i + 1;
    }
    return good;
}

/* A child of vfork asks for its mask; its parent believes what it did. n, if that is right each time. */
static long vforks(long n)
{
    long good = 0;
    mask(SIG_BLOCK);
    for (long i = 0; i < n; i++) {
        pid_t pid = vfork();
        if (pid == 0)
            _exit(is_blocked() ? 7 : 8);
        int status = 0;
        good += waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7 && is_blocked() && leaf(i) == i * 3 + 1;
    }
    mask(SIG_UNBLOCK);
    return good;
}

/* An own breakpoint without a handler kills. */
static long die(long n)
{
    __asm__ volatile(BREAKPOINT);
    return n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "install", install }, { "mixed", mixed }, { "block", block }, { "unblock", unblock },
        { "work", work },       { "die", die },     { "spawn", spawns }, { "direct", direct },
        { "storm", storm },     { "lull", lull },   { "frame", frame }, { "nested", nested },
        { "vforks", vforks },   { "opens", opens },   { "caught", caught }, { "opened", opened },
        { 0 },
    };
    return serve(argc, argv, table);
}
