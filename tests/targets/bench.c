/* Times calls of one function: "FUNCTION CALLS" answers picoseconds of this thread's CPU time per call.
 * After "threads N", N threads call it at the same time, CALLS times each; the answer is the wall-clock time of all calls, divided
 * by the number of all calls. "threads 0" goes back to the CPU time of one thread.
 * "trap CALLS" is the floor of any trap probe: a bare int3 with an empty SIGTRAP handler, installed for that round. "step CALLS"
 * is the floor of one that single-steps its instruction: two signals.
 * A function is called once in each thread before the round, to have its page and its probe warm. */
#include "serve.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

typedef long function(void *);
function f_nop, f_nop5, f_push, f_ret, f_endbr64, f_sub, f_mov, f_usdt, f_usdt5, f_usdt_frame,
    f_usdt_stack;
function f_bare_nop, f_bare_nop5, f_push_memory;

#include "techniques.h"

static long long clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long now(void) { return clock_of(CLOCK_THREAD_CPUTIME_ID); }

/* Runs on this processor from now on, below 0 on any; fails where there is no such. */
static long cpu(long which)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (long i = 0; i < CPU_SETSIZE; i++)
        if (which < 0 || i == which)
            CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

static void call(function *f, long calls)
{
    /* f_mov reads through the pointer; some probes read a string there. */
    static char cell[64] __attribute__((aligned(8))) = "sixteen letters.";
    function *volatile opaque = f;
    f = opaque;
    for (long i = 0; i < calls; i++)
        f(cell);
}

/* Of the main thread and, where one thread calls, of that. */
static long processor = -1;
static long choose_cpu(long which)
{
    processor = which;
    return cpu(which);
}

enum { MOST = 64 };
static long threads;
static pthread_barrier_t begin, warm, done;
/* What all threads do next; no function: they end. */
static function *job;
static long job_calls;

/* A thread, and when it did its calls. */
static struct worker {
    pthread_t thread;
    long long start, end;
} workers[MOST];

/* One thread is on the processor that "cpu" has chosen; several have one each. */
static void *work(void *argument)
{
    struct worker *w = argument;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (!job)
            return NULL;
        cpu(threads > 1 ? (w - workers) % sysconf(_SC_NPROCESSORS_ONLN) : processor);
        call(job, 1);
        pthread_barrier_wait(&warm);
        w->start = clock_of(CLOCK_MONOTONIC);
        call(job, job_calls);
        w->end = clock_of(CLOCK_MONOTONIC);
        pthread_barrier_wait(&done);
    }
}

static long set_threads(long n)
{
    if (n < 0 || n > MOST)
        return -1;
    job = NULL;
    if (threads)
        pthread_barrier_wait(&begin);
    for (long i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    threads = n;
    if (n) {
        pthread_barrier_init(&begin, NULL, n + 1);
        pthread_barrier_init(&warm, NULL, n);
        pthread_barrier_init(&done, NULL, n + 1);
    }
    for (long i = 0; i < n; i++) {
        int error = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        if (error) {
            fprintf(stderr, "no thread: %s\n", strerror(error));
            exit(3);
        }
    }
    return n;
}

static long all_threads(function *f, long calls)
{
    job = f;
    job_calls = calls;
    pthread_barrier_wait(&begin);
    pthread_barrier_wait(&done);
    long long start = workers[0].start, end = workers[0].end;
    for (long i = 1; i < threads; i++) {
        start = start < workers[i].start ? start : workers[i].start;
        end = end > workers[i].end ? end : workers[i].end;
    }
    return (end - start) * 1000 / calls / threads;
}

static long time_of(function *f, long calls)
{
    if (threads)
        return all_threads(f, calls);
    call(f, 1);
    long long start = now();
    call(f, calls);
    return (now() - start) * 1000 / calls;
}

/* What a hit is compared with: an increment of a counter of the thread's own, and a system call. */
static long usermode_count(void *unused)
{
    static __thread long hits;
    (void)unused;
    return __atomic_fetch_add(&hits, 1, __ATOMIC_RELAXED);
}
static long syscall_count(void *unused)
{
    (void)unused;
    return syscall(SYS_getpgid, 0);
}

static void ignore(int sig) { (void)sig; }

/* Single-steps the instruction behind the int3. */
static void step_over(int sig, siginfo_t *info, void *context)
{
    enum { TF = 0x100 };
    (void)sig;
    (void)info;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] ^= TF;
}

static long traps(struct sigaction sa, long calls)
{
    struct sigaction old;
    sigaction(SIGTRAP, &sa, &old);
    long long start = now();
    for (long i = 0; i < calls; i++)
        __asm__ volatile("int3; nop");
    long long end = now();
    sigaction(SIGTRAP, &old, NULL);
    return (end - start) * 1000 / calls;
}
static long trap(long calls) { return traps((struct sigaction){ .sa_handler = ignore }, calls); }
static long step(long calls) { return traps((struct sigaction){ .sa_sigaction = step_over, .sa_flags = SA_SIGINFO }, calls); }

/* Two reads of the time stamp counter: what any latency probe needs. */
static long stamps(long calls)
{
    unsigned long sum = 0;
    long long start = now();
    for (long i = 0; i < calls; i++) {
        unsigned long a = __builtin_ia32_rdtsc();
        sum += __builtin_ia32_rdtsc() - a;
    }
    __asm__ volatile("" : : "r"(sum));
    return (now() - start) * 1000 / calls;
}

/* As many additions and stores as the processor can do at once: slower while another thread of its core is busy, ours or somebody
 * else's. */
static long calm(long calls)
{
    static volatile long cells[4];
    long a = 0, b = 0, c = 0, d = 0;
    long long start = now();
    for (long i = 0; i < calls; i++)
        __asm__ volatile("add $1,%0; add $1,%1; add $1,%2; add $1,%3; add $3,%0; add $3,%1; add $3,%2; add $3,%3\n\t"
                         "mov %0,%4; mov %1,%5; mov %2,%6; mov %3,%7; add $1,%0; add $1,%1; add $1,%2; add $1,%3"
                         : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "=m"(cells[0]), "=m"(cells[1]), "=m"(cells[2]),
                           "=m"(cells[3]));
    return (now() - start) * 1000 / calls;
}

#define TIMED(name) static long time_##name(long calls) { return time_of(name, calls); }
#define ROW(name) { #name, time_##name },
#define FUNCTIONS(DO)                                                                                                    \
    DO(f_nop) DO(f_nop5) DO(f_push) DO(f_ret) DO(f_endbr64) DO(f_sub) DO(f_mov) DO(f_usdt) DO(f_usdt5) DO(f_usdt_frame)  \
    DO(f_usdt_stack) DO(f_bare_nop) DO(f_bare_nop5) DO(f_push_memory) DO(usermode_count) DO(syscall_count)               \
    DO(t_nop_site) DO(t_jump) DO(t_several) DO(t_pun) DO(t_guarded) DO(t_short) DO(t_trap)
FUNCTIONS(TIMED)

int main(int argc, char **argv)
{
    static const struct command table[] = {
        FUNCTIONS(ROW) { "trap", trap }, { "step", step }, { "stamps", stamps }, { "calm", calm }, { "cpu", choose_cpu },
        { "threads", set_threads }, { 0 },
    };
    return serve(argc, argv, table);
}
