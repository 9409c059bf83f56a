/* Mutexes: taken in two orders by threads that never run at the same time, so that nothing is ever stuck. */
#include "serve.h"
#include <pthread.h>
#include <semaphore.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER, c = PTHREAD_MUTEX_INITIALIZER;
static long sum;

PROBED void with_both(pthread_mutex_t *first, pthread_mutex_t *second)
{
    pthread_mutex_lock(first);
    pthread_mutex_lock(second);
    sum++;
    pthread_mutex_unlock(second);
    pthread_mutex_unlock(first);
}

/* Whoever reports names may have looked at them a moment ago. */
static void be(const char *name)
{
    prctl(PR_SET_NAME, name);
    usleep(30000);
}

static void *forth(void *n)
{
    be("forth");
    for (long i = 0; i < (long)n; i++)
        with_both(&a, &b);
    return NULL;
}

static void *back(void *n)
{
    be("back");
    for (long i = 0; i < (long)n; i++)
        with_both(&b, &a);
    return NULL;
}

/* One order is used by all. */
static void *ordered(void *n)
{
    for (long i = 0; i < (long)n; i++) {
        with_both(&a, &b);
        with_both(&b, &c);
        with_both(&a, &c);
    }
    return NULL;
}

static void run(void *(*work)(void *), long n)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, (void *)n))
        exit(3);
    pthread_join(thread, NULL);
}

static long inverted(long n)
{
    run(forth, n);
    run(back, n);
    return sum;
}

static long in_order(long n)
{
    run(ordered, n);
    run(ordered, n);
    return sum;
}

/* The same by threads that are there before anybody looks. */
static sem_t turns[2];
static pthread_t waiting[2];

static void *forth_later(void *n)
{
    sem_wait(&turns[0]);
    return forth(n);
}

static void *back_later(void *n)
{
    sem_wait(&turns[1]);
    return back(n);
}

static long begin(long n)
{
    void *(*const work[])(void *) = { forth_later, back_later };
    for (int i = 0; i < 2; i++)
        if (sem_init(&turns[i], 0, 0) || pthread_create(&waiting[i], NULL, work[i], (void *)n))
            exit(3);
    return n;
}

static long end(long n)
{
    for (int i = 0; i < 2; i++) {
        sem_post(&turns[i]);
        pthread_join(waiting[i], NULL);
    }
    return sum + 0 * n;
}

/* The addresses that a report names. */
static long address_a(long n) { return (long)&a + 0 * n; }
static long address_b(long n) { return (long)&b + 0 * n; }

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "inverted", inverted }, { "ordered", in_order }, { "begin", begin }, { "end", end }, { "a", address_a }, { "b", address_b }, { 0 },
    };
    return serve(argc, argv, table);
}
