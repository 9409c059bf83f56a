/* A function that is called as often as the processor can, one that is called now and then, and one that is called as
 * often as asked for. */
#include "serve.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

PROBED long hot(long x) { return x * 3 + 1; }
PROBED long cold(long x) { return x ^ 5; }
PROBED long asked(long x) { return x + 7; }

static volatile int stop;
static volatile long wrong;
static pthread_t threads[16];
static long count;

static void *call_hot(void *arg)
{
    (void)arg;
    while (!stop) {
        long bad = 0;
        for (long i = 0; i < 1000; i++)
            bad += hot(i) != i * 3 + 1;
        if (bad)
            __atomic_add_fetch(&wrong, bad, __ATOMIC_RELAXED);
    }
    return NULL;
}

static void *call_cold(void *arg)
{
    (void)arg;
    for (long i = 0; !stop; i++) {
        struct timespec pause = { 0, 10000000 };
        nanosleep(&pause, NULL);
        if (cold(i) != (i ^ 5))
            __atomic_add_fetch(&wrong, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* The first thread calls the cold function, the others call the hot one. */
static long begin(long n)
{
    stop = 0;
    for (count = 0; count <= n && count < 16; count++)
        if (pthread_create(&threads[count], NULL, count ? call_hot : call_cold, NULL))
            exit(3);
    return n;
}

static long end(long n)
{
    (void)n;
    stop = 1;
    while (count > 0)
        pthread_join(threads[--count], NULL);
    return wrong;
}

static long ask(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += asked(i) - i;
    return sum;
}

/* Four threads ask, each so often. */
static void *ask_thread(void *n) { return (void *)ask((long)n); }

static long together(long n)
{
    pthread_t all[4];
    long sum = 0;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&all[i], NULL, ask_thread, (void *)n))
            exit(3);
    for (int i = 0; i < 4; i++) {
        void *part;
        pthread_join(all[i], &part);
        sum += (long)part;
    }
    return sum;
}

/* A child calls the hot function for so many milliseconds. What it answers is how many results were wrong. */
static long child(long ms)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct timespec begun, now;
        clock_gettime(CLOCK_MONOTONIC, &begun);
        do {
            for (long i = 0; i < 100000; i++)
                wrong += hot(i) != i * 3 + 1;
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((now.tv_sec - begun.tv_sec) * 1000 + (now.tv_nsec - begun.tv_nsec) / 1000000 < ms);
        _exit(wrong > 0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        exit(4);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}

static const struct command commands[] = { { "begin", begin },       { "end", end },     { "ask", ask },
                                           { "together", together }, { "child", child }, { NULL, NULL } };

int main(int argc, char **argv) { return serve(argc, argv, commands); }
