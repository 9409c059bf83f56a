// Functions that end by a jump to the next one: `first` by one to `second`, that by one to `third`.
// A call may be left by `longjmp`, in each of them; and each of them is called directly, too, with
// the same stack slot. Prints how many calls of `first` and of `second` have returned, and how many
// have not. The calls of `second` are those that `first` jumps to, too.
//
//   tails apart N   calls of different functions have different return addresses
//   tails same N    all calls are made by one instruction; none is left behind its first jump
//   tails threads N each call on a thread of its own; all have the same stack
//   tails deep N    prints nanoseconds per call of `second`, before and after N nested calls of
//                   `deep` were left
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ALONE __attribute__((noipa))

static __thread jmp_buf back;
// How many calls of `first` have become calls of `second`.
static volatile int jumped;

ALONE void leave(void) { longjmp(back, 1); }

ALONE int third(int n) {
    if (n == 3)
        leave();
    return n + 10;
}

ALONE int second(int n) {
    if (n == 2)
        leave();
    return third(n);
}

ALONE int first(int n) {
    if (n == 1)
        leave();
    jumped++;
    return second(n);
}

// Its calls are in the way of those of `second`.
ALONE int deep(int n) {
    if (n == 0)
        leave();
    int r = deep(n - 1);
    asm volatile("" : "+r"(r));
    return r + 1;
}

static int (*volatile functions[])(int) = {first, second, third};
static volatile int called[3], ended[3];
static volatile int which, argument, sum;

static unsigned next(unsigned below) {
    static unsigned long long state = 1;
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

ALONE static void apart(void) {
    called[which]++;
    if (setjmp(back))
        return;
    switch (which) {
    case 0:
        sum += first(argument);
        break;
    case 1:
        sum += second(argument) + 1;
        break;
    default:
        sum += third(argument) + 2;
    }
    ended[which]++;
}

ALONE static void same(void) {
    called[which]++;
    if (setjmp(back))
        return;
    sum += functions[which](argument);
    ended[which]++;
}

static void *on_thread(void *unused) {
    apart();
    return unused;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

// The best of some rounds.
ALONE static double cost(void) {
    double best = 1e18;
    for (int round = 0; round < 20; round++) {
        double start = now();
        for (int i = 0; i < 200; i++)
            sum += second(0);
        double each = (now() - start) / 200;
        best = each < best ? each : best;
    }
    return best;
}

int main(int argc, char **argv) {
    int n = argc > 2 ? atoi(argv[2]) : 0;
    if (argc > 1 && !strcmp(argv[1], "deep")) {
        double before = cost();
        if (!setjmp(back))
            deep(n);
        printf("%.0f %.0f\n", before, cost());
        return 0;
    }
    for (int i = 0; i < n; i++) {
        which = next(3);
        if (argc > 1 && !strcmp(argv[1], "same")) {
            argument = next(2) * (which + 1);
            same();
        } else if (argc > 1 && !strcmp(argv[1], "threads")) {
            argument = next(4);
            pthread_t thread;
            pthread_create(&thread, 0, on_thread, 0);
            pthread_join(thread, 0);
        } else {
            argument = next(4);
            apart();
        }
    }
    int begun = called[0] + called[1] + jumped, returned = ended[0] + ended[1];
    printf("%d %d %d\n", ended[0], returned, begun - ended[0] - returned);
}
