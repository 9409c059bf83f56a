/* Calls the functions of short_asm.S and checks what they return. */
#include "serve.h"
#include <pthread.h>
#include <time.h>

int loop_at_2(long), loop_at_4(long), three_bytes(int), behind_three(int), behind_ret(int), ret_padded(int);
int call_near(int), call_inside(int, int (*)(void)), call_first(int, int (*)(void)), jumps_away(int), jumped_to(int);
int branch_first(int), counts_down(int), reads_rip(int), red_zone(int);
void only_ret(void);
long in_r12(long);

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

static int answer(void) { return 41; }

/* Number of wrong results in n rounds over all functions. */
static long check(long n)
{
    long wrong = 0;
    for (int i = 1; i <= n; i++) {
        int k = i % 50;
        wrong += loop_at_2(k + 1) != (k + 1) * (k + 2) / 2;
        wrong += loop_at_4(k + 1) != 2 * (k + 1);
        wrong += three_bytes(i) != i;
        wrong += behind_three(i) != i + 1;
        only_ret();
        wrong += behind_ret(i) != i + 2;
        ret_padded(i);
        wrong += call_inside(i, answer) != 42;
        wrong += call_first(i, answer) != 42;
        wrong += jumps_away(i) != i + 3;
        wrong += branch_first(k) != (k ? k + 4 : 77);
        wrong += counts_down(k) != k;
        wrong += reads_rip(i) != i + 40;
        wrong += red_zone(k) != (k < 5 ? k + 100 : k);
    }
    return wrong;
}

static void *in_near(void *arg) { return (void *)(long)(call_near((int)(long)arg) != 42); }
static void *in_inside(void *arg) { return (void *)(long)(call_inside((int)(long)arg, park) != 42); }
static void *in_first(void *arg) { return (void *)(long)(call_first((int)(long)arg, park) != 42); }

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
        wrong += call_near(1) != 42;
    return wrong;
}

static long three(long n) { return three_bytes((int)n); }
static long forty(long n) { return reads_rip((int)n); }

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "check", check }, { "enter", enter }, { "leave", leave }, { "near", near },
        { "three", three }, { "forty", forty }, { "r12", in_r12 }, { 0 },
    };
    return serve(argc, argv, table);
}
