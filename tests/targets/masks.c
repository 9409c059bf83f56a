/* What a program blocks, seen by itself and by those that come after it: in handlers, in calls that wait with another mask,
 * in new threads and in other programs. Each command does its own n times, calls `leaf` once each time where nothing else is
 * said, and answers how often all of it was right. */
#include "leaf.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

/* All that a program can block, without the signals of C libraries. */
#define ALL (~0ull & ~(1ull << (SIGKILL - 1)) & ~(1ull << (SIGSTOP - 1)) & ~(7ull << 31))
#define BIT(signal) (1ull << ((signal) - 1))
#define TRAP BIT(SIGTRAP)

static uint64_t bits(const sigset_t *set)
{
    uint64_t all;
    memcpy(&all, set, sizeof all);
    return all & ALL;
}

static sigset_t set_of(uint64_t all)
{
    sigset_t set;
    sigemptyset(&set);
    memcpy(&set, &all, sizeof all);
    return set;
}

static uint64_t now(void)
{
    sigset_t set;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    return bits(&set);
}

/* Gives what was blocked before. */
static uint64_t change(int how, uint64_t all)
{
    sigset_t set = set_of(all), old;
    pthread_sigmask(how, &set, &old);
    return bits(&old);
}

static void catch(int signal, void (*handler)(int, siginfo_t *, void *), uint64_t mask)
{
    struct sigaction sa = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO, .sa_mask = set_of(mask) };
    sigaction(signal, &sa, NULL);
}

static volatile long good;
static volatile uint64_t expected;

static void see(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    good += now() == expected && leaf(1) == 4;
}

/* Sets of all kinds are what they were made. */
static long sets(long n)
{
    static const uint64_t all[] = { 0, TRAP, ALL, ALL & ~TRAP, BIT(SIGUSR1), BIT(SIGUSR1) | TRAP, ALL & ~BIT(SIGSEGV) };
    const size_t count = sizeof all / sizeof *all;
    long right = 0;
    for (long i = 0; i < n; i++) {
        size_t a = i % count, b = i / count % count;
        change(SIG_SETMASK, all[a]);
        int same = now() == all[a];
        same &= change(SIG_BLOCK, all[b]) == all[a] && now() == (all[a] | all[b]);
        change(SIG_SETMASK, all[a]);
        same &= change(SIG_UNBLOCK, all[b]) == all[a] && now() == (all[a] & ~all[b]) && leaf(1) == 4;
        right += same;
    }
    change(SIG_SETMASK, 0);
    return right;
}

/* A handler's action blocks SIGTRAP, or all. Nothing is left of that at its end. */
static long handlers(long n)
{
    long right = 0;
    for (long i = 0; i < n; i++) {
        uint64_t mask = i & 1 ? ALL : TRAP;
        expected = mask | BIT(SIGUSR1);
        good = 0;
        catch(SIGUSR1, see, mask);
        raise(SIGUSR1);
        struct sigaction told;
        sigaction(SIGUSR1, NULL, &told);
        right += good == 1 && now() == 0 && bits(&told.sa_mask) == mask;
    }
    return right;
}

static void change_more(int signal, siginfo_t *info, void *context)
{
    see(signal, info, context);
    change(SIG_BLOCK, BIT(SIGUSR2));
    good += now() == (expected | BIT(SIGUSR2));
}

/* SIGTRAP is blocked, and a call waits with another mask in which a handler changes its own: 4n times. */
static long waits(long n)
{
    const struct timespec none = { 0, 0 };
    const sigset_t other = set_of(BIT(SIGCHLD));
    int epoll = epoll_create(1);
    struct epoll_event event;
    long right = 0;
    for (long i = 0; i < 4 * n; i++) {
        const uint64_t before = TRAP | BIT(SIGUSR1);
        change(SIG_SETMASK, before);
        catch(SIGUSR1, change_more, 0);
        expected = BIT(SIGUSR1) | BIT(SIGCHLD);
        good = 0;
        raise(SIGUSR1);
        switch (i % 4) {
        case 0: sigsuspend(&other); break;
        case 1: ppoll(NULL, 0, &none, &other); break;
        case 2: pselect(0, NULL, NULL, NULL, &none, &other); break;
        default: epoll_pwait(epoll, &event, 1, -1, &other);
        }
        right += good == 2 && now() == before && change(SIG_SETMASK, 0) == before && leaf(1) == 4;
    }
    close(epoll);
    return right;
}

/* The same, while SIGTRAP is blocked in the mask with which the call waits and nowhere else. */
static long closes(long n)
{
    const sigset_t other = set_of(TRAP);
    long right = 0;
    for (long i = 0; i < n; i++) {
        change(SIG_SETMASK, BIT(SIGUSR1));
        catch(SIGUSR1, see, 0);
        expected = BIT(SIGUSR1) | TRAP;
        good = 0;
        raise(SIGUSR1);
        sigsuspend(&other);
        right += good == 1 && now() == BIT(SIGUSR1) && change(SIG_SETMASK, 0) == BIT(SIGUSR1);
    }
    return right;
}

static volatile uint64_t framed;

static void frame(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    change(SIG_BLOCK, TRAP);
    sigset_t set = set_of(framed);
    memcpy(&((ucontext_t *)context)->uc_sigmask, &set, 8);
}

/* A handler blocks SIGTRAP, and then all others by the mask in its own frame. */
static long frames(long n)
{
    long right = 0;
    for (long i = 0; i < n; i++) {
        framed = ALL & ~TRAP & ~BIT(SIGSEGV) & ~BIT(SIGBUS);
        catch(SIGUSR1, frame, 0);
        raise(SIGUSR1);
        int same = now() == framed && leaf(1) == 4;
        same &= change(SIG_BLOCK, TRAP) == framed && now() == (framed | TRAP);
        same &= change(SIG_UNBLOCK, TRAP) == (framed | TRAP) && change(SIG_SETMASK, 0) == framed && now() == 0;
        right += same;
    }
    return right;
}

#ifdef __aarch64__
#define BREAKPOINT "brk #1"
#define STEP_OVER(context) (((ucontext_t *)(context))->uc_mcontext.pc += 4)
#elif defined __arm__
#define BREAKPOINT ".inst.n 0xde01" /* udf #1 */
#define STEP_OVER(context) (((ucontext_t *)(context))->uc_mcontext.arm_pc += 2)
#else
#define BREAKPOINT "int3"
#define STEP_OVER(context) ((void)(context))
#endif

static sigjmp_buf back;
static volatile int *volatile nothing;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    good += now() == (BIT(SIGSEGV) | TRAP | BIT(SIGUSR1)) && leaf(1) == 4;
    siglongjmp(back, 1);
}

static void on_user(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    good += now() == (BIT(SIGUSR1) | TRAP);
    if (sigsetjmp(back, 1) == 0)
        *nothing = 1;
    good += now() == (BIT(SIGUSR1) | TRAP);
}

static void on_trap(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info;
    STEP_OVER(context);
    good += now() == TRAP;
    raise(SIGUSR1);
    good += now() == TRAP;
}

/* A handler in a handler in a handler, two of them of signals that instructions raise. */
static long nested(long n)
{
    long right = 0;
    catch(SIGTRAP, on_trap, 0);
    catch(SIGUSR1, on_user, 0);
    catch(SIGSEGV, on_fault, 0);
    for (long i = 0; i < n; i++) {
        good = 0;
        __asm__ volatile(BREAKPOINT);
        right += good == 5 && now() == 0;
    }
    signal(SIGSEGV, SIG_DFL);
    signal(SIGTRAP, SIG_DFL);
    return right;
}

static void *look(void *result)
{
    *(uint64_t *)result = leaf(1) == 4 ? now() : 0;
    return NULL;
}

/* A new thread has the mask of the one that makes it. */
static long inherits(long n)
{
    long right = 0;
    for (long i = 0; i < n; i++) {
        uint64_t mask = i & 1 ? TRAP | BIT(SIGUSR1) : ALL, seen = 0;
        pthread_t thread;
        change(SIG_SETMASK, mask);
        pthread_create(&thread, NULL, look, &seen);
        pthread_join(thread, NULL);
        right += seen == mask && change(SIG_SETMASK, 0) == mask;
    }
    return right;
}

/* What this process has blocked as the kernel says it, of a child that has executed another program. */
static uint64_t of_child(int in_vfork)
{
    int ends[2], status;
    char text[64] = "";
    if (pipe(ends))
        abort();
    pid_t pid = in_vfork ? vfork() : fork();
    if (pid == 0) {
        dup2(ends[1], 1);
        execl("/nowhere/sed", "sed", (char *)NULL);
        execl("/bin/sed", "sed", "-n", "s/^SigBlk:[^0-9a-f]*//p", "/proc/self/status", (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    ssize_t len = read(ends[0], text, sizeof text - 1);
    close(ends[0]);
    if (waitpid(pid, &status, 0) != pid || status || len < 16)
        return 0;
    return strtoull(text, NULL, 16) & ALL;
}

/* Another program has the mask of the one that executes it. */
static long executes(long n)
{
    long right = 0;
    for (long i = 0; i < n; i++) {
        uint64_t mask = i & 2 ? ALL & ~BIT(SIGCHLD) : TRAP | BIT(SIGUSR1);
        change(SIG_SETMASK, mask);
        right += of_child(i & 1) == mask && now() == mask && leaf(1) == 4 && change(SIG_SETMASK, 0) == mask;
    }
    return right;
}

/* A real-time signal that is blocked until the program asks for it, alone: it never ends the program. */
static long reserved = 51;

static long reserves(long n)
{
    change(SIG_SETMASK, BIT(reserved));
    raise((int)reserved);
    return n;
}

static long takes(long n)
{
    sigset_t set = set_of(BIT(reserved));
    long right = 0;
    for (long i = 0; i < n; i++) {
        change(SIG_BLOCK, TRAP);
        right += sigwaitinfo(&set, NULL) == reserved && leaf(1) == 4;
        change(SIG_UNBLOCK, TRAP);
        raise((int)reserved);
        right -= now() != BIT(reserved);
    }
    return right;
}

static sem_t entered, left;
static pthread_t inside;
static uint64_t left_with;

static void stay(int signal, siginfo_t *info, void *context)
{
    see(signal, info, context);
    sem_post(&entered);
    while (sem_wait(&left))
        ;
    see(signal, info, context);
}

static void *interrupted(void *unused)
{
    change(SIG_SETMASK, TRAP | BIT(SIGUSR2));
    pthread_kill(pthread_self(), SIGUSR1);
    left_with = leaf(1) == 4 ? now() : 0;
    return unused;
}

/* A thread that has blocked SIGTRAP, in a handler that blocks all; and the end of both. */
static long enter(long n)
{
    expected = ALL;
    good = 0;
    catch(SIGUSR1, stay, ALL);
    sem_init(&entered, 0, 0);
    sem_init(&left, 0, 0);
    pthread_create(&inside, NULL, interrupted, NULL);
    sem_wait(&entered);
    return n;
}

static long leave(long n)
{
    sem_post(&left);
    pthread_join(inside, NULL);
    return good == 2 && left_with == (TRAP | BIT(SIGUSR2)) ? n : -good;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "sets", sets },         { "handlers", handlers }, { "waits", waits },       { "closes", closes },
        { "frames", frames },     { "nested", nested },     { "inherits", inherits }, { "executes", executes },
        { "reserves", reserves }, { "takes", takes },       { "enter", enter },       { "leave", leave },
        { "work", work },         { 0 },
    };
    return serve(argc, argv, table);
}
