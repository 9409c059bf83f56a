/* Functions for the programs of the other *.bpf.c here. */
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "serve.h"

#define THREADS 4

PROBED long job(long n, const char *name)
{
    return n + (name != NULL);
}

PROBED long other_job(long n)
{
    return n * 2;
}

PROBED int allowed(int uid)
{
    return uid;
}

PROBED void look(const void *at)
{
}

PROBED void ticked(void)
{
}

static volatile long ticks;

/* Names of three lengths: "", "n", "nn". */
static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += job(i, "nn" + 2 - i % 3);
    return sum;
}

static void *worker(void *n)
{
    return (void *)work((long)n);
}

static long run_threads(long n)
{
    pthread_t threads[THREADS];
    long sum = 0;
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, worker, (void *)n);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    return sum;
}

static long run_other(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += other_job(i);
    return sum;
}

static long run_allowed(long n)
{
    return allowed((int)n);
}

static timer_t ticking;

/* The time from one signal to the next counts from here: where a signal takes long, the program goes on all the same. */
static void tick_later(void)
{
    struct itimerspec once = {{0, 0}, {0, 100000}};
    timer_settime(ticking, 0, &once, NULL);
}

static void on_tick(int signal)
{
    ticks++;
    ticked();
    tick_later();
}

/* Calls from a loop, and from a timer's handler that interrupts it, for n milliseconds: how many in all. */
static long run_storm(long n)
{
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART};
    struct timespec start, now;
    long calls = 0;
    ticks = 0;
    sigaction(SIGUSR1, &action, NULL);
    timer_create(CLOCK_MONOTONIC, &event, &ticking);
    clock_gettime(CLOCK_MONOTONIC, &start);
    tick_later();
    do {
        for (int i = 0; i < 1000; i++, calls++)
            ticked();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < n);
    signal(SIGUSR1, SIG_IGN);
    timer_delete(ticking);
    return calls + ticks;
}

/* Addresses of all kinds, of which the probe reads: 0 text, 1 NULL, 2 not mapped, 3 PROT_NONE, 4 text over the end of a page,
 * 5 text cut off by the end of what is mapped, 6 a page that was never touched, 7 not canonical. */
static long run_look(long n)
{
    long page = sysconf(_SC_PAGESIZE);
    char *three = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const void *at[] = {"some text", NULL, three + 2 * page, three + page, three + page - 3, three + page - 3, three,
                        (void *)0x8000000000000000};
    if (n == 2)
        munmap(three + 2 * page, page);
    if (n == 3)
        mprotect(three + page, page, PROT_NONE);
    if (n == 4)
        strcpy(three + page - 3, "across");
    if (n == 5) {
        memcpy(three + page - 3, "cut", 3);
        munmap(three + page, page);
    }
    look(at[n]);
    if (n == 5 || n == 2)
        munmap(three, page);
    else
        munmap(three, 3 * page);
    return n;
}

static const struct command commands[] = {
    {"work", work}, {"threads", run_threads}, {"other", run_other}, {"allowed", run_allowed},
    {"storm", run_storm}, {"look", run_look}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
