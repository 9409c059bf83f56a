/* Eight threads run the functions of short_asm.S without a pause, under a thousand signals a second whose handler runs
 * them, too, while children are forked that run them and programs are executed. */
#include "serve.h"
#include "short.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* What short_asm.S calls for its own program. */
__attribute__((noipa, force_align_arg_pointer)) int park(void) { return 41; }

/* Nobody but `alone` and `together` calls it: its hits are known. */
PROBED long mine(long x) { return x * 5 + 1; }

static volatile int stop;
static volatile long wrong, signals, children;
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

static pthread_t threads[9];

static long start(long n)
{
    /* Not setitimer: a CPU's time is looked at a few hundred times a second only. */
    struct itimerspec ms = { { 0, 1000000 }, { 0, 1000000 } };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGPROF };
    timer_t timer;
    struct sigaction action = { .sa_handler = tick, .sa_flags = SA_RESTART };
    sigaction(SIGPROF, &action, NULL);
    for (long i = 0; i < 9; i++)
        if (pthread_create(&threads[i], NULL, i < 8 ? compute : forks, (void *)i))
            return -1;
    if (timer_create(CLOCK_MONOTONIC, &event, &timer))
        return -1;
    return timer_settime(timer, 0, &ms, NULL) + n;
}

/* The answer is the number of wrong results. */
static long finish(long n)
{
    stop = 1;
    for (int i = 0; i < 9; i++)
        pthread_join(threads[i], NULL);
    return wrong + n;
}

static long signalled(long n) { return signals + n; }
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
        { "start", start }, { "finish", finish }, { "signals", signalled }, { "children", forked }, { "alone", alone },
        { "together", together }, { 0 },
    };
    return serve(argc, argv, table);
}
