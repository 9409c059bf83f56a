/* Calls the functions of short_asm.S and checks what they return. */
#include "serve.h"
#include "short.h"
#include <pthread.h>
#include <time.h>

static volatile int parked, released;

/* Where the threads of "enter" are while a probe is put at their caller. (call_first does not align the stack.) */
__attribute__((noipa, force_align_arg_pointer)) int park(void)
{
    struct timespec ms = { 0, 1000000 };
    __atomic_add_fetch(&parked, 1, __ATOMIC_SEQ_CST);
    while (!released)
        nanosleep(&ms, NULL);
    return 41;
}

/* Number of wrong results in n rounds over all functions. */
static long check(long n)
{
    long wrong = 0;
    for (int i = 1; i <= n; i++)
        wrong += check_once(i);
    return wrong;
}

static void *in_near(void *arg) { return (void *)(long)(SHORT(call_near, (long)arg) != 42); }
static void *in_inside(void *arg) { return (void *)(long)(CALLING(call_inside, (long)arg, park) != 42); }
static void *in_first(void *arg) { return (void *)(long)(CALLING(call_first, (long)arg, park) != 42); }

static pthread_t threads[3];

/* Puts three threads into the callees; the answer is how many are there. */
static long enter(long n)
{
    void *(*const run[3])(void *) = { in_near, in_inside, in_first };
    released = parked = 0;
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, run[i], (void *)n);
    while (parked < 3)
        ;
    return parked;
}

/* Lets them go; the answer is the number of wrong results. */
static long leave(long n)
{
    long wrong = n;
    released = 1;
    for (int i = 0; i < 3; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        wrong += (long)bad;
    }
    return wrong;
}

/* call_near alone, n times, without waiting. */
static long near(long n)
{
    long wrong = 0;
    released = 1;
    for (long i = 0; i < n; i++)
        wrong += SHORT(call_near, 1) != 42;
    return wrong;
}

static long three(long n) { return SHORT(three_bytes, n); }
static long kept(long n) { return call_with(in_rbx, n, 0, 0); }
static long forty(long n) { return SHORT(reads_rip, n); }

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "check", check }, { "enter", enter }, { "leave", leave }, { "near", near },
        { "three", three }, { "forty", forty }, { "rbx", kept }, { 0 },
    };
    return serve(argc, argv, table);
}
