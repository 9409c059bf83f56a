// A program that does one kind of work, chosen by its first argument, and prints what it got. It prints "ready"
// first and ends when its standard input does.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#ifdef __GLIBC__
#include <sys/rseq.h>
#endif
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int stop;
static volatile int bad;

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

static void until_eof(void) {
    char c;
    ssize_t n;
    while ((n = read(0, &c, 1)) == 1) {
    }
    if (n != 0)
        printf("read: %s\n", strerror(errno));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static __attribute__((noinline)) uint64_t checksum(double *f) {
    uint64_t x = 88172645463325252u;
    double d = 1;
    for (int i = 0; i < 20000; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        d = d * 1.0000001 + (double)(x & 255);
    }
    *f = d;
    return x;
}

static void *sums(void *arg) {
    double f, g;
    uint64_t x = checksum(&f);
    while (!stop)
        if (checksum(&g) != x || f != g)
            bad = 1;
    return arg;
}

static void *naps(void *arg) {
    struct timespec t = {0, 3000000};
    while (!stop) {
        double begin = now();
        if (nanosleep(&t, 0) != 0 || now() - begin < 0.003)
            bad = 2;
    }
    return arg;
}

static int words[2];
static void *waits(void *arg) {
    // Two threads take turns: each waits for its word to change.
    int me = (int)(intptr_t)arg;
    for (uint64_t turn = 0; !stop; turn++) {
        while (!stop && __atomic_load_n(&words[me], __ATOMIC_ACQUIRE) == 0) {
            struct timespec t = {0, 50000000};
            if (syscall(SYS_futex, &words[me], FUTEX_WAIT, 0, me ? &t : 0, 0, 0) != 0 && errno != EAGAIN &&
                errno != ETIMEDOUT)
                bad = 3;
        }
        __atomic_store_n(&words[me], 0, __ATOMIC_RELEASE);
        __atomic_store_n(&words[!me], 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &words[!me], FUTEX_WAKE, 1, 0, 0, 0);
    }
    // The other may have handed over and wait for ever.
    __atomic_store_n(&words[!me], 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &words[!me], FUTEX_WAKE, 1, 0, 0, 0);
    return arg;
}

static int ends[2];
static void *reads(void *arg) {
    char c, want = 0;
    ssize_t n;
    while ((n = read(ends[0], &c, 1)) == 1)
        if (c != want++)
            bad = 4;
    if (n < 0)
        bad = 5;
    return arg;
}

static void *writes(void *arg) {
    struct timespec t = {0, 1000000};
    for (char c = 0; !stop; c++) {
        if (write(ends[1], &c, 1) != 1)
            bad = 6;
        nanosleep(&t, 0);
    }
    close(ends[1]);
    return arg;
}

static void *blocks(void *arg) {
    int fds[2];
    char c;
    if (pipe(fds) != 0 || read(fds[0], &c, 1) != 0)
        bad = 7;
    return arg;
}

// Keeps values in all vector and most general registers and looks whether they stay.
static void *vectors(void *arg) {
#define SET(n) "vmovdqu " #n "*32(%[v]), %%ymm" #n "\n"
#define CMP(n) "vpcmpeqd " #n "*32(%[v]), %%ymm" #n ", %%ymm" #n "\nvpmovmskb %%ymm" #n ", %%eax\ncmp $-1, %%eax\njne 2f\n"
    static uint32_t v[128];
    for (int i = 0; i < 128; i++)
        v[i] = 0x9e3779b9u * (i + 1);
    while (!stop) {
        int ok = 0;
#ifdef __x86_64__
        __asm__ volatile(
            SET(0) SET(1) SET(2) SET(3) SET(4) SET(5) SET(6) SET(7)
            SET(8) SET(9) SET(10) SET(11) SET(12) SET(13) SET(14) SET(15)
            "mov $0x1111111111111111, %%r8\nmov $0x2222222222222222, %%r9\nmov $0x3333333333333333, %%r10\n"
            "mov $0x4444444444444444, %%r11\nmov $0x7777777777777777, %%rdx\nstd\n"
            "mov $400000, %%ecx\n"
            "1: dec %%ecx\njnz 1b\n"
            "pushf\npop %%rax\ncld\nand $0x400, %%eax\njz 2f\n"
            "mov $0x1111111111111111, %%rax\ncmp %%rax, %%r8\njne 2f\n"
            "mov $0x2222222222222222, %%rax\ncmp %%rax, %%r9\njne 2f\n"
            "mov $0x3333333333333333, %%rax\ncmp %%rax, %%r10\njne 2f\n"
            "mov $0x4444444444444444, %%rax\ncmp %%rax, %%r11\njne 2f\n"
            "mov $0x7777777777777777, %%rax\ncmp %%rax, %%rdx\njne 2f\n"
            CMP(0) CMP(1) CMP(2) CMP(3) CMP(4) CMP(5) CMP(6) CMP(7)
            CMP(8) CMP(9) CMP(10) CMP(11) CMP(12) CMP(13) CMP(14) CMP(15)
            "movl $1, %[ok]\n"
            "2:\n"
            : [ok] "+m"(ok)
            : [v] "r"(v)
            : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
              "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
#else
        __asm__ volatile(
            SET(0) SET(1) SET(2) SET(3) SET(4) SET(5) SET(6) SET(7)
            "mov $0x11111111, %%esi\nmov $0x22222222, %%edi\nmov $0x33333333, %%edx\nfldpi\nstd\n"
            "mov $400000, %%ecx\n"
            "1: dec %%ecx\njnz 1b\n"
            "pushf\npop %%eax\ncld\nfldpi\nfcomip %%st(1), %%st\nfstp %%st(0)\njne 2f\n"
            "and $0x400, %%eax\njz 2f\n"
            "cmp $0x11111111, %%esi\njne 2f\ncmp $0x22222222, %%edi\njne 2f\ncmp $0x33333333, %%edx\njne 2f\n"
            CMP(0) CMP(1) CMP(2) CMP(3) CMP(4) CMP(5) CMP(6) CMP(7)
            "movl $1, %[ok]\n"
            "2:\n"
            : [ok] "+m"(ok)
            : [v] "r"(v)
            : "eax", "ecx", "edx", "esi", "edi", "cc", "memory", "st", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5",
              "xmm6", "xmm7");
#endif
        if (!ok)
            bad = 8;
    }
    return arg;
}

// Any thread may get them.
static long queued, ticks;
static void on_queued(int s, siginfo_t *i, void *u) {
    (void)s, (void)u;
    __atomic_fetch_add(&queued, i->si_value.sival_int, __ATOMIC_RELAXED);
}
static void on_tick(int s) {
    (void)s;
    __atomic_fetch_add(&ticks, 1, __ATOMIC_RELAXED);
}

// Each trap has to find its registers.
extern char behind_trap[];
static void on_trap(int s, siginfo_t *i, void *u) {
    (void)s, (void)i;
#ifdef __x86_64__
    uintptr_t ip = ((ucontext_t *)u)->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t ip = ((ucontext_t *)u)->uc_mcontext.gregs[REG_EIP];
#endif
    if (ip != (uintptr_t)behind_trap)
        bad = 9;
}

static __attribute__((noipa)) void trap(void) { __asm__ volatile("int3\nbehind_trap:"); }

static void *traps(void *arg) {
    struct sigaction a = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
    sigaction(SIGTRAP, &a, 0);
    while (!stop)
        trap();
    return arg;
}

#ifdef __GLIBC__
// One round of a restartable sequence. The kernel clears the descriptor's pointer when it aborts the sequence; going on
// without it is what must not happen.
static int sequence(void) {
    struct rseq *area = (void *)((char *)__builtin_thread_pointer() + __rseq_offset);
    int broken = 0;
#ifdef __x86_64__
    __asm__ volatile(
        ".pushsection .data.rseq, \"aw\"\n.balign 32\n3: .long 0, 0\n.quad 1f, 2f - 1f, 4f\n.popsection\n"
        "lea 3b(%%rip), %%rax\nmov %%rax, 8(%[area])\n"
        "1: mov $1000000, %%ecx\n"
        "6: cmp %%rax, 8(%[area])\njne 7f\ndec %%ecx\njnz 6b\n"
        "2: jmp 5f\n"
        "7: movl $1, %[broken]\njmp 5f\n"
        ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
        "4:\n"
        "5: movq $0, 8(%[area])\n"
        : [broken] "+m"(broken)
        : [area] "r"(area)
        : "rax", "rcx", "cc", "memory");
#else
    __asm__ volatile(
        ".pushsection .data.rseq, \"aw\"\n.balign 32\n3: .long 0, 0\n.long 1f, 0, 2f - 1f, 0, 4f, 0\n.popsection\n"
        "mov $3b, %%eax\nmov %%eax, 8(%[area])\n"
        "1: mov $1000000, %%ecx\n"
        "6: cmp %%eax, 8(%[area])\njne 7f\ndec %%ecx\njnz 6b\n"
        "2: jmp 5f\n"
        "7: movl $1, %[broken]\njmp 5f\n"
        ".byte 0x0f, 0xb9, 0x3d\n.long 0x53053053\n"
        "4:\n"
        "5: movl $0, 8(%[area])\nmovl $0, 12(%[area])\n"
        : [broken] "+m"(broken)
        : [area] "r"(area)
        : "eax", "ecx", "cc", "memory");
#endif
    return broken;
}
#else
static int sequence(void) { return 1; }
#endif

// From here on getppid kills.
static void confine(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog prog = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) != 0)
        abort();
}

static pthread_t start(void *(*f)(void *), intptr_t arg) {
    pthread_t t;
    if (pthread_create(&t, 0, f, (void *)arg) != 0)
        abort();
    return t;
}

// Starts a thread that is detached from its first instruction on. pthread_detach() of glibc 2.36 reads the descriptor
// of the thread once more after the thread may have ended, so this program crashed in 1 of 70 runs.
static void start_detached(void *(*f)(void *)) {
    pthread_t t;
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0 || pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED) != 0 ||
        pthread_create(&t, &attr, f, 0) != 0)
        abort();
    pthread_attr_destroy(&attr);
}

// Threads that live for a moment, each of which makes the next one first.
static void *chain(void *arg) {
    if (!stop)
        start_detached(chain);
    for (volatile int i = 0; i < 20000; i++) {
    }
    return arg;
}

// Generations of threads that end one after the other, and of one behind them that stays longer.
enum { BRIEF = 60 };
static volatile int go, over;

static void *brief(void *arg) {
    while (!go)
        sched_yield();
    for (volatile intptr_t i = 0; i < (intptr_t)arg * 300; i++) {
    }
    return arg;
}

static void *longer(void *arg) {
    while (!over)
        usleep(100);
    return arg;
}

static void *generations(void *arg) {
    while (!stop) {
        pthread_t t[BRIEF], last;
        for (int i = 0; i < BRIEF; i++)
            t[i] = start(brief, i);
        last = start(longer, 0);
        go = 1;
        for (int i = 0; i < BRIEF; i++)
            pthread_join(t[i], 0);
        usleep(2000);
        over = 1;
        pthread_join(last, 0);
        go = over = 0;
    }
    return arg;
}

// A process on our memory that goes on beside us.
static int beside(void *arg) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (!stop) {
    }
    return arg ? 7 : 8;
}

static int brief_process(void *arg) {
    for (volatile int i = 0; i < 20000; i++) {
    }
    return arg ? 7 : 8;
}

static char stacks[3][1 << 16];

static int make_process(int (*f)(void *), int stack, int flags) {
    return clone(f, stacks[stack] + sizeof stacks[stack], flags, &words);
}

// One process after the other, each of which must end as it wants to.
static void *processes(void *arg) {
    while (!stop) {
        int status, pid = make_process(brief_process, (int)(intptr_t)arg, arg ? CLONE_VM : 0);
        if (pid < 0 || waitpid(pid, &status, __WALL) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
            bad = 4;
    }
    return arg;
}

static void *executes(void *arg) {
    execl("/proc/self/exe", "worker", "executes", "2", NULL);
    return arg;
}

int main(int argc, char **argv) {
    const char *kind = argv[1];
    int n = argc > 2 ? atoi(argv[2]) : 1;
    pthread_t t[128];
    int m = 0, child = 0, status;
    if (!strcmp(kind, "sums")) {
        while (m < n)
            t[m++] = start(sums, 0);
    } else if (!strcmp(kind, "chains")) {
        while (n-- > 0)
            start_detached(chain);
    } else if (!strcmp(kind, "beside")) {
        child = make_process(beside, 2, CLONE_VM | SIGCHLD);
        t[m++] = start(sums, 0);
    } else if (!strcmp(kind, "processes")) {
        t[m++] = start(processes, 0), t[m++] = start(processes, 1);
    } else if (!strcmp(kind, "generations")) {
        t[m++] = start(generations, 0);
    } else if (!strcmp(kind, "leaderless")) {
        // The first thread ends before the others.
        signal(SIGUSR1, on_tick);
        t[m++] = start(sums, 0);
        ready();
        pause();
        syscall(SYS_exit, 0);
    } else if (!strcmp(kind, "vectors")) {
        while (m < n)
            t[m++] = start(vectors, 0);
    } else if (!strcmp(kind, "one-trap")) {
        // No other thread could make calls.
        struct sigaction a = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};
        sigaction(SIGTRAP, &a, 0);
        ready();
        struct pollfd p = {0, POLLIN, 0};
        do
            for (int i = 0; i < 1000; i++)
                trap();
        while (poll(&p, 1, 0) == 0);
        printf("bad %d\n", bad);
        return 0;
    } else if (!strcmp(kind, "traps")) {
        while (m < n)
            t[m++] = start(traps, 0);
    } else if (!strcmp(kind, "mixed")) {
        if (pipe(ends) != 0)
            return 1;
        words[0] = 1;
        t[m++] = start(sums, 0), t[m++] = start(naps, 0), t[m++] = start(waits, 0), t[m++] = start(waits, 1);
        t[m++] = start(reads, 0), t[m++] = start(writes, 0);
    } else if (!strcmp(kind, "blocked")) {
        for (int i = 0; i < n; i++)
            start(blocks, 0);
    } else if (!strcmp(kind, "one-sum")) {
        // A single thread that never makes a system call but at the end of each round.
        double f, g;
        uint64_t x = checksum(&f);
        ready();
        struct pollfd p = {0, POLLIN, 0};
        do
            for (int i = 0; i < 20; i++)
                if (checksum(&g) != x || f != g)
                    bad = 1;
        while (poll(&p, 1, 0) == 0);
        printf("bad %d\n", bad);
        return 0;
    } else if (!strcmp(kind, "one-sequence")) {
        ready();
        struct pollfd p = {0, POLLIN, 0};
        do
            for (int i = 0; i < 20; i++)
                bad |= sequence();
        while (poll(&p, 1, 0) == 0);
        printf("bad %d\n", bad);
        return 0;
    } else if (!strcmp(kind, "vfork")) {
        // The parent hangs in the kernel, deaf, until the child is done.
        ready();
        if (vfork() == 0) {
            struct timespec u = {1, 500000000};
            nanosleep(&u, 0);
            _exit(0);
        }
        until_eof();
        printf("bad %d\n", bad);
        return 0;
    } else if (!strcmp(kind, "executes")) {
        // A thread that is not the first executes this program, and so on.
        if (n == 1)
            ready();
        struct pollfd p = {0, POLLIN, 0};
        if (poll(&p, 1, 0) == 0) {
            start(executes, 0);
            for (;;)
                pause();
        }
        printf("bad 0\n");
        return 0;
    } else if (!strcmp(kind, "confined")) {
        confine();
    } else if (!strcmp(kind, "one-nap")) {
        ready();
        struct pollfd p = {0, POLLIN, 0};

        do {
            struct timespec u = {0, 3000000};
            double begin = now();
            if (nanosleep(&u, 0) != 0 || now() - begin < 0.003)
                bad = 2;
        } while (poll(&p, 1, 0) == 0);
        printf("bad %d\n", bad);
        return 0;
    } else if (!strcmp(kind, "nanosleep")) {
        ready();
        double begin = now();
        struct timespec u = {2, 0};
        int r = nanosleep(&u, 0);
        printf("returned %d after %.0f ms\n", r, (now() - begin) * 1e3);
        return 0;
    } else if (!strcmp(kind, "futex")) {
        ready();
        double begin = now();
        struct timespec u = {2, 0};
        long r = syscall(SYS_futex, &words[0], FUTEX_WAIT, 0, &u, 0, 0);
        printf("returned %d after %.0f ms\n", r == -1 && errno == ETIMEDOUT ? 0 : errno, (now() - begin) * 1e3);
        return 0;
    } else if (!strcmp(kind, "poll")) {
        ready();
        double begin = now();
        int r = poll(0, 0, 2000);
        printf("returned %d after %.0f ms\n", r, (now() - begin) * 1e3);
        return 0;
    } else if (!strcmp(kind, "epoll")) {
        struct epoll_event e = {.events = EPOLLIN};
        int fd = epoll_create1(0), r;
        epoll_ctl(fd, EPOLL_CTL_ADD, 0, &e);
        ready();
        while ((r = epoll_wait(fd, &e, 1, -1)) < 0 && errno == EINTR) {
        }
        printf("epoll %d\n", r);
        return 0;
    } else if (!strcmp(kind, "sigsuspend")) {
        sigset_t set, now_set, none;
        sigemptyset(&set), sigaddset(&set, SIGUSR1), sigaddset(&set, SIGUSR2), sigemptyset(&none);
        sigprocmask(SIG_BLOCK, &set, 0);
        signal(SIGUSR1, on_tick);
        ready();
        int r = sigsuspend(&none), e = errno;
        sigprocmask(SIG_SETMASK, 0, &now_set);
        printf("%d %d %ld mask %d%d\n", r, e == EINTR, ticks, sigismember(&now_set, SIGUSR1),
               sigismember(&now_set, SIGUSR2));
        return 0;
    } else if (!strcmp(kind, "signals")) {
        struct sigaction a = {.sa_sigaction = on_queued, .sa_flags = SA_SIGINFO | SA_RESTART};
        sigaction(SIGRTMIN, &a, 0);
        struct sigaction b = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
        sigaction(SIGALRM, &b, 0);
        struct itimerval it = {{0, 1000}, {0, 1000}};
        setitimer(ITIMER_REAL, &it, 0);
        t[m++] = start(sums, 0);
    } else if (!strcmp(kind, "timers")) {
        struct sigaction a = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
        sigaction(SIGPROF, &a, 0);
        struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF};
        struct itimerspec every = {{0, 200000}, {0, 200000}};
        for (int i = 0; i < n; i++) {
            timer_t timer;
            if (timer_create(CLOCK_MONOTONIC, &event, &timer) || timer_settime(timer, 0, &every, 0))
                bad = 3;
            t[m++] = start(sums, 0);
        }
    }
    ready();
    until_eof();
    stop = 1;
    for (int i = 0; i < m; i++)
        pthread_join(t[i], 0);
    if (child && (waitpid(child, &status, 0) != child || status != 7 << 8))
        bad = 5;
    printf("bad %d", bad);
    if (!strcmp(kind, "signals")) {
        // What is pending for a thread that has ended.
        sigset_t set;
        siginfo_t info;
        struct timespec zero = {0, 0};
        sigemptyset(&set), sigaddset(&set, SIGRTMIN);
        sigprocmask(SIG_BLOCK, &set, 0);
        while (sigtimedwait(&set, &info, &zero) > 0)
            queued++;
        printf(" queued %ld ticked %d", queued, ticks > 0);
    }
    puts("");
    return 0;
}
