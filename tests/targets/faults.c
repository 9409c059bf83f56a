/* Programs with their own ideas about bad memory: every command gives the same answer with and without probes that read
 * strings. */
#include "serve.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#else /* musl has no unwinder */
#define backtrace(frames, max) 0
#endif

extern char **environ;

static volatile long wrong, handled, depth;
static sigjmp_buf back;
static char *page;
static char alternate[1 << 16];
static void *volatile expected;

PROBED long look(const char *s, long x) { return s ? x * 3 + 1 : x * 3 + 1; }

static long looks(const char *s)
{
    return look(s, 5) == 16;
}

static const char *bad(long i)
{
    switch (i % 5) {
    case 0: return NULL;
    case 1: return page;
    case 2: return (const char *)0x100000000;
    case 3: return (const char *)0x8000000000000000;
    default: return page - 3; /* three letters, then the gap */
    }
}

static int blocked(int sig)
{
    sigset_t set;
    pthread_sigmask(SIG_SETMASK, NULL, &set);
    return sigismember(&set, sig);
}

static void install(int sig, void *handler, int flags)
{
    struct sigaction sa = { .sa_sigaction = handler, .sa_flags = flags | SA_SIGINFO }, now;
    sigfillset(&sa.sa_mask);
    sigaction(sig, &sa, NULL);
    sigaction(sig, NULL, &now);
    wrong += now.sa_sigaction != sa.sa_sigaction || (now.sa_flags & ~0x04000000) != (sa.sa_flags & ~0x04000000);
    wrong += sigismember(&now.sa_mask, SIGKILL) || !sigismember(&now.sa_mask, SIGUSR2) || !sigismember(&now.sa_mask, sig);
}

static void check(int sig, siginfo_t *info)
{
    wrong += sig != SIGSEGV || info->si_addr != expected || info->si_code != SEGV_ACCERR;
    wrong += !blocked(SIGUSR1) || !blocked(SIGSEGV) || !looks(bad(handled));
    handled++;
}

static long answer(long n)
{
    wrong += blocked(SIGSEGV) || blocked(SIGUSR1);
    signal(SIGSEGV, SIG_DFL);
    return wrong ? -wrong : n;
}

static void touch(void)
{
    expected = page + 8;
    *(volatile char *)expected = 1;
}

static long good(long n)
{
    for (long i = 0; i < n; i++)
        wrong += !looks("good");
    return answer(n);
}

static long bads(long n)
{
    for (long i = 0; i < n; i++)
        wrong += !looks(bad(i));
    return answer(n);
}

static void jumping(int sig, siginfo_t *info, void *context)
{
    (void)context;
    check(sig, info);
    siglongjmp(back, 1);
}

static long jump(long n)
{
    install(SIGSEGV, jumping, 0);
    handled = 0;
    for (volatile long i = 0; i < n; i++)
        if (!sigsetjmp(back, 1)) {
            wrong += !looks(bad(i));
            touch();
        }
    return answer(handled);
}

static void mending(int sig, siginfo_t *info, void *context)
{
    (void)context;
    check(sig, info);
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

/* Each time deeper in the stack, and back. */
PROBED long mend_at(long level)
{
    volatile char room[600];
    room[0] = 1;
    if (level)
        return mend_at(level - 1) + room[0];
    touch();
    mprotect(page, 4096, PROT_NONE);
    return 0;
}

static long mend(long n)
{
    install(SIGSEGV, mending, 0);
    handled = 0;
    for (long i = 0; i < n; i++)
        wrong += mend_at(i * 7 % 40) != i * 7 % 40;
    return answer(handled);
}

static void on_alternate(int sig, siginfo_t *info, void *context)
{
    char here;
    (void)sig, (void)info, (void)context;
    wrong += &here < alternate || &here >= alternate + sizeof alternate || !looks(bad(handled));
    handled++;
    siglongjmp(back, 1);
}

PROBED long fall(long level)
{
    volatile char room[4000];
    room[0] = (char)level;
    depth++;
    return fall(level + 1) + room[0];
}

static long overflow(long n)
{
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    sigaltstack(&stack, NULL);
    install(SIGSEGV, on_alternate, SA_ONSTACK);
    handled = 0;
    for (volatile long i = 0; i < n; i++)
        if (!sigsetjmp(back, 1))
            fall(0);
    return answer(handled);
}

static void on_normal(int sig, siginfo_t *info, void *context)
{
    char here;
    wrong += &here >= alternate && &here < alternate + sizeof alternate;
    mending(sig, info, context);
}

static long stay(long n)
{
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    sigaltstack(&stack, NULL);
    install(SIGSEGV, on_normal, 0);
    handled = 0;
    for (long i = 0; i < n; i++)
        mend_at(3);
    return answer(handled);
}

static void unwinding(int sig, siginfo_t *info, void *context)
{
    void *frames[64] = { 0 };
    long seen = 0;
    int count = backtrace(frames, 64);
    for (int i = 0; i < count; i++)
        seen += (uintptr_t)frames[i] - (uintptr_t)mend_at < 200;
    wrong += count && seen != 4;
    mending(sig, info, context);
}

static long unwind(long n)
{
    install(SIGSEGV, unwinding, 0);
    handled = 0;
    for (long i = 0; i < n; i++)
        mend_at(3);
    return answer(handled);
}

static long once(long n)
{
    handled = 0;
    for (long i = 0; i < n; i++) {
        struct sigaction now;
        install(SIGSEGV, mending, SA_RESETHAND);
        mend_at(0);
        sigaction(SIGSEGV, NULL, &now);
        wrong += now.sa_handler != SIG_DFL;
    }
    return answer(handled);
}

static long masks(long n)
{
    sigset_t all, old;
    sigfillset(&all);
    for (long i = 0; i < n; i++) {
        pthread_sigmask(SIG_SETMASK, &all, &old);
        wrong += !blocked(SIGSEGV) || !blocked(SIGBUS) || !blocked(SIGUSR1) || sigismember(&old, SIGSEGV);
        wrong += !looks(bad(i));
        pthread_sigmask(SIG_UNBLOCK, &all, NULL);
        wrong += blocked(SIGSEGV) || blocked(SIGBUS);
        sigaddset(&old, SIGBUS);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        wrong += blocked(SIGSEGV) || !blocked(SIGBUS) || !looks(bad(i));
        sigdelset(&old, SIGBUS);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
    }
    return answer(n);
}

static void looking(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info, (void)context;
    wrong += !looks(bad(handled++));
}

/* A handler that runs with all signals blocked, in a system call that blocks them, too. */
static long suspend(long n)
{
    sigset_t usr1, rest;
    install(SIGUSR1, looking, 0);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigfillset(&rest);
    sigdelset(&rest, SIGUSR1);
    handled = 0;
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    for (long i = 0; i < n; i++) {
        struct timespec soon = { 60, 0 };
        kill(getpid(), SIGUSR1);
        if (i % 2)
            sigsuspend(&rest);
        else
            wrong += pselect(0, NULL, NULL, NULL, &soon, &rest) != -1;
    }
    pthread_sigmask(SIG_UNBLOCK, &usr1, NULL);
    signal(SIGUSR1, SIG_DFL);
    return answer(handled);
}

static void *deaf(void *n)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    for (long i = 0; i < (long)n; i++)
        wrong += !looks(bad(i));
    wrong += !blocked(SIGSEGV) || !blocked(SIGTRAP);
    return NULL;
}

static long threads(long n)
{
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, deaf, (void *)n);
        pthread_join(thread, NULL);
    }
    return answer(n);
}

static pthread_t reader;
static int pipes[2];

/* Until the main thread sleeps in the kernel. */
static void sleeping(void)
{
    char line[256];
    do {
        int fd = open("/proc/self/stat", O_RDONLY);
        ssize_t len = read(fd, line, sizeof line - 1);
        wrong += len < 0;
        line[len < 0 ? 0 : len] = 0;
        close(fd);
    } while (!strstr(line, ") S "));
}

static void *disturb(void *ignored)
{
    long before = handled;
    sleeping();
    pthread_kill(reader, SIGSEGV);
    while (!ignored && handled == before)
        usleep(100);
    sleeping();
    wrong += write(pipes[1], "x", 1) != 1;
    return NULL;
}

static void counting(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)context;
    wrong += info->si_code != SI_TKILL;
    handled++;
}

/* 1: the system call was restarted. */
static int restarted(long ignored)
{
    char c;
    pthread_t thread;
    reader = pthread_self();
    pthread_create(&thread, NULL, disturb, (void *)ignored);
    int interrupted = read(pipes[0], &c, 1) == -1 && errno == EINTR;
    pthread_join(thread, NULL);
    if (interrupted)
        wrong += read(pipes[0], &c, 1) != 1;
    return !interrupted;
}

static long restart(long n)
{
    wrong += pipe(pipes);
    handled = 0;
    install(SIGSEGV, counting, SA_RESTART);
    wrong += !restarted(0);
    install(SIGSEGV, counting, 0);
    wrong += restarted(0);
    signal(SIGSEGV, SIG_IGN);
    wrong += !restarted(1) || handled != 2;
    close(pipes[0]);
    close(pipes[1]);
    return answer(n);
}

static long spawns(long n)
{
    char *argv[] = { "true", NULL };
    install(SIGSEGV, mending, 0);
    handled = 0;
    for (long i = 0; i < n; i++) {
        pid_t pid;
        int status = 0;
        wrong += posix_spawn(&pid, "/bin/true", NULL, NULL, argv, environ) || waitpid(pid, &status, 0) != pid || status;
        pid = fork();
        if (!pid) {
            mend_at(2);
            _exit(looks(bad(i)) ? 7 : 8);
        }
        wrong += waitpid(pid, &status, 0) != pid || status != 7 << 8;
        pid = vfork(); /* a child in our memory */
        if (!pid)
            _exit(looks(bad(i)) ? 7 : 8);
        wrong += waitpid(pid, &status, 0) != pid || status != 7 << 8;
        mend_at(1);
    }
    return answer(handled);
}

static void failing(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info, (void)context;
    if (handled++)
        _exit(9);
    touch();
}

static long die(long kind)
{
    struct rlimit core = { RLIM_INFINITY, RLIM_INFINITY };
    sigset_t all;
    sigfillset(&all);
    setrlimit(RLIMIT_CORE, &core);
    looks(bad(kind));
    handled = 0;
    if (kind == 1)
        install(SIGSEGV, failing, 0), pthread_sigmask(SIG_SETMASK, &all, NULL);
    if (kind == 2)
        signal(SIGSEGV, SIG_IGN);
    if (kind == 3)
        kill(getpid(), SIGBUS);
    if (kind == 4)
        install(SIGSEGV, failing, 0);
    if (kind == 5)
        *(volatile char *)0x8000000000000000 = 1;
    touch();
    return 0;
}

/* Calls a function with another stack pointer, which is where its return address comes to lie, plus a word. As a set of signals,
 * the lower half of that address has SIGTRAP, SIGFPE, SIGBUS and SIGSEGV. */
long on_stack(void *sp, long (*function)(void));
/* Calls `next`, and leaves what lies below its return address as it is. */
long held(void);
#ifdef __x86_64__
asm(".text\n.type on_stack,@function\non_stack: push %rbp\n mov %rsp,%rbp\n mov %rdi,%rsp\n jmp 1f\n .p2align 11\n .skip 0x5ce,0x90\n"
    "1: call *%rsi\n leave\n ret\n.size on_stack,.-on_stack\n"
    ".type held,@function\nheld: sub $0x808,%rsp\n call next\n add $0x808,%rsp\n ret\n.size held,.-held\n");
#elif defined __aarch64__
asm(".text\n.globl on_stack\n.globl held\n.type on_stack,@function\non_stack: stp x29, x30, [sp, #-16]!\n mov x29, sp\n mov sp, x0\n b 1f\n .p2align 11\n"
    " .skip 0x5d0\n1: blr x1\n mov sp, x29\n ldp x29, x30, [sp], #16\n ret\n.size on_stack,.-on_stack\n"
    ".type held,@function\nheld: stp x29, x30, [sp, #-16]!\n sub sp, sp, #0x800\n bl next\n add sp, sp, #0x800\n"
    " ldp x29, x30, [sp], #16\n ret\n.size held,.-held\n");
#elif defined __arm__
asm(".text\n.syntax unified\n.arm\n.globl on_stack\n.globl held\n.type on_stack,%function\non_stack: push {r4, lr}\n mov r4, sp\n"
    " mov sp, r0\n b 1f\n .p2align 11\n .skip 0x5cc\n1: blx r1\n mov sp, r4\n pop {r4, pc}\n.size on_stack,.-on_stack\n"
    ".type held,%function\nheld: push {r4, lr}\n sub sp, sp, #0x800\n bl next\n add sp, sp, #0x800\n"
    " pop {r4, pc}\n.size held,.-held\n");
#else
asm(".text\n.type on_stack,@function\non_stack: push %ebp\n mov %esp,%ebp\n mov 12(%ebp),%eax\n mov 8(%ebp),%esp\n jmp 1f\n"
    " .p2align 11\n .skip 0x5ce,0x90\n1: call *%eax\n leave\n ret\n.size on_stack,.-on_stack\n"
    ".type held,@function\nheld: sub $0x80c,%esp\n call next\n add $0x80c,%esp\n ret\n.size held,.-held\n");
#endif

/* The number in the next line of the input. */
__attribute__((used)) long next(void)
{
    char line[64];
    return fgets(line, sizeof line, stdin) ? atol(line) : -1;
}

static void *volatile mask;

static void where(int sig, siginfo_t *info, void *context)
{
    (void)sig, (void)info;
    mask = &((ucontext_t *)context)->uc_sigmask;
}

/* Where the mask of a signal was saved that is over there is a return address now; around it, all is as it was. */
static long over(long n)
{
    install(SIGUSR2, where, 0);
    raise(SIGUSR2);
    long answer = on_stack((char *)mask + sizeof mask, held);
    wrong += answer != n;
    return wrong ? -wrong : n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "good", good },         { "bad", bads },       { "jump", jump },     { "mend", mend },
        { "overflow", overflow }, { "stay", stay },      { "unwind", unwind }, { "once", once },
        { "masks", masks },       { "suspend", suspend }, { "threads", threads }, { "restart", restart },
        { "spawn", spawns },      { "die", die },        { "over", over },      { 0 },
    };
    void *frames[1];
    (void)frames;
    (void)backtrace(frames, 1); /* loads what it needs */
    page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    page += 4096;
    memcpy(page - 3, "end", 3);
    mprotect(page, 4096, PROT_NONE);
    return serve(argc, argv, table);
}
