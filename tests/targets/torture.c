/* Eight threads run the functions of short_asm.S without a pause, under the signals of a timer, which come when they can, and under
 * a thousand a second that are queued, so that none may be missing. Their handlers run the functions, too, while children are
 * forked that run them and programs are executed. */
#include "serve.h"
#include "short.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What short_asm.S calls for its own program. */
#ifndef __aarch64__
__attribute__((force_align_arg_pointer))
#endif
PROBED int park(void) { return 41; }

/* Nobody but `alone` and `together` calls it: its hits are known. */
PROBED long mine(long x) { return x * 5 + 1; }

static volatile int stop;
static volatile long wrong, signals, children;
static volatile long queued, received, enough;
/* What each thread is to call `mine` for: the number of the order, how often, and how many threads are done. */
static volatile long order, calls, done;

PROBED long check(int i) { return check_once(i); }

static void note(long bad)
{
    if (bad)
        __atomic_add_fetch(&wrong, bad, __ATOMIC_RELAXED);
}

static void tick(int signal)
{
    (void)signal;
    __atomic_add_fetch(&signals, 1, __ATOMIC_RELAXED);
    note(check(signals & 1023));
}

static void receive(int signal)
{
    (void)signal;
    note(check(__atomic_add_fetch(&received, 1, __ATOMIC_RELAXED) & 1023));
}

static long mine_only(long n)
{
    long bad = 0;
    for (long i = 0; i < n; i++)
        bad += mine(i) != i * 5 + 1;
    return bad;
}

static void *compute(void *arg)
{
    long seen = 0;
    for (int i = (int)(long)arg; !stop; i = (i + 1) & 0xfffff) {
        note(check(i));
        long now = __atomic_load_n(&order, __ATOMIC_ACQUIRE);
        if (now != seen) {
            seen = now;
            note(mine_only(calls));
            __atomic_add_fetch(&done, 1, __ATOMIC_RELEASE);
        }
    }
    return NULL;
}

static void *forks(void *arg)
{
    for (int i = 0; !stop; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            if (i & 1)
                execl("/bin/true", "true", NULL);
            long bad = 0;
            for (int k = 0; k < 100; k++)
                bad += check(k);
            _exit(bad != 0);
        }
        note(child < 0 || waitpid(child, &status, 0) != child || status != 0);
        __atomic_add_fetch(&children, 1, __ATOMIC_RELAXED);
        usleep(3000);
    }
    return arg;
}

static pthread_t threads[10];

static long milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* A signal a millisecond, to one computing thread after the other. What it is late with, it makes up for. */
static void *queues(void *arg)
{
    union sigval none = { 0 };
    /* One for each thread, and no more before they have come: with a trap at each instruction, a handler may take longer than the
     * time between two signals, and the threads would do nothing else. */
    for (long begin = milliseconds(); !enough; usleep(1000))
        for (long sent = queued; received >= sent && queued < sent + 8 && queued < milliseconds() - begin;) {
            if (pthread_sigqueue(threads[queued % 8], SIGRTMIN, none))
                break;
            queued++;
        }
    return arg;
}

static long start(long n)
{
    /* Not setitimer: a CPU's time is looked at a few hundred times a second only. */
    struct itimerspec ms = { { 0, 1000000 }, { 0, 1000000 } };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF };
    timer_t timer;
    struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGPROF, &action, NULL);
    action.sa_handler = receive;
    sigaction(SIGRTMIN, &action, NULL);
    for (long i = 0; i < 10; i++)
        if (pthread_create(&threads[i], NULL, i < 8 ? compute : i < 9 ? forks : queues, (void *)i))
            return -1;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer))
        return -1;
    return timer_settime(timer, 0, &ms, NULL) + n;
}

/* The answer is the number of wrong results, and of queued signals that did not come. */
static long finish(long n)
{
    enough = 1;
    pthread_join(threads[9], NULL);
    for (int i = 0; i < 1000 && received != queued; i++)
        usleep(10000);
    stop = 1;
    for (int i = 0; i < 9; i++)
        pthread_join(threads[i], NULL);
    return wrong + (queued - received) + n;
}

static long signalled(long n) { return signals + n; }
static long signalled_in_turn(long n) { return received + n; }
static long forked(long n) { return children + n; }

static long alone(long n) { return mine_only(n); }

/* All eight threads call it n times, between what they do anyway. */
static long together(long n)
{
    calls = n;
    done = 0;
    __atomic_add_fetch(&order, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < 8)
        usleep(200);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "start", start }, { "finish", finish }, { "signals", signalled }, { "queued", signalled_in_turn },
        { "children", forked }, { "alone", alone }, { "together", together }, { 0 },
    };
    return serve(argc, argv, table);
}
