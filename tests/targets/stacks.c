/* Frames of all kinds above `leaf`, in code without frame pointers. */
#include "serve.h"
#include <alloca.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

static volatile long sink;

PROBED long leaf(long n)
{
    sink += n;
    return n + 1;
}

/* By way of the C library. */
PROBED int compare(const void *a, const void *b)
{
    return (int)(leaf(*(const int *)a) - leaf(*(const int *)b));
}

PROBED long sorted(long n)
{
    int numbers[] = {3, 1, 2, 0};
    for (long i = 0; i < n; i++) {
        numbers[0] = 3 + (int)i;
        qsort(numbers, 4, sizeof *numbers, compare);
    }
    return numbers[0];
}

PROBED long deep(long n)
{
    long below = n ? deep(n - 1) : leaf(n);
    sink += below;
    return below + 1;
}

/* The stack pointer is rounded: the frame is found by a word in memory, or by the frame pointer. */
PROBED long rounded(long n)
{
    char aligned[64] __attribute__((aligned(64)));
    char *room = alloca((size_t)n % 64 + 16);
    memset(aligned, 1, sizeof aligned);
    memset(room, 2, 16);
    __asm__ volatile("" : : "r"(aligned), "r"(room) : "memory");
    return leaf(n) + aligned[63] + room[15];
}

static inline __attribute__((always_inline)) long inner(long n)
{
    return leaf(n) * 3;
}

static inline __attribute__((always_inline)) long middle(long n)
{
    return inner(n + 1) + 5;
}

PROBED long inlined(long n)
{
    return middle(n) + 7;
}

/* Each of its instructions has the same callers. */
PROBED long walked(long a, long b, long c)
{
    long d = leaf(a * b), e = leaf(b + c), f = leaf(c - a);
    if (d & 1)
        return d + leaf(e) + f;
    return d * e + f + a + b;
}

PROBED long walks(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += walked(i, i + 1, i + 2);
    return sum;
}

PROBED void handle(int signal)
{
    leaf(signal);
    sink++;
}

PROBED long raised(long n)
{
    for (long i = 0; i < n; i++)
        raise(SIGUSR1);
    return n;
}

/* Interrupted anywhere. */
PROBED long timed(long n)
{
    struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (long i = 0; i < n * 1000; i++)
        sink += walked(i, 1, 2);
    setitimer(ITIMER_REAL, &never, NULL);
    return n;
}

static void *sorts(void *n)
{
    sorted((long)n);
    return NULL;
}

PROBED long threads(long n)
{
    pthread_t all[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, sorts, (void *)n);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    return n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        {"sorted", sorted}, {"deep", deep},     {"rounded", rounded}, {"inlined", inlined}, {"walks", walks},
        {"raised", raised}, {"timed", timed}, {"threads", threads}, {NULL, NULL},
    };
    struct sigaction action = {.sa_handler = handle};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGALRM, &action, NULL);
    return serve(argc, argv, table);
}
