/* How long do the calls of a function take, from entry to return? */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "sidestep.h"

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

struct times {
    atomic_ulong calls, nanoseconds;
};

static void on_entry(struct sidestep_context *context, void *data)
{
    (void)data;
    context->cookie = now();
}

static void on_return(struct sidestep_context *context, void *data)
{
    struct times *times = data;
    times->calls++;
    times->nanoseconds += now() - context->cookie;
}

__attribute__((noinline)) long work(long milliseconds)
{
    struct timespec time = { .tv_nsec = milliseconds * 1000000 };
    nanosleep(&time, NULL);
    return milliseconds + 1;
}

int main(void)
{
    static struct times times;
    sidestep_session *session = sidestep_own();
    struct sidestep_probe probe = {
        .address = (const void *)work, .on_entry = on_entry, .on_return = on_return, .data = &times,
    };
    if (!session || sidestep_register(session, &probe, 1) < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    long sum = work(1) + work(2) + work(3);
    if (sidestep_detach(session) < 0)
        return 1;
    work(4);
    printf("%lu calls, 6 milliseconds or more: %s, sum %ld\n", (unsigned long)times.calls,
           times.nanoseconds >= 6000000 ? "yes" : "no", sum);
    return 0;
}
