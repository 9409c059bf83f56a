/* A program whose unwinders come late: it is C, and what unwinds its stack is loaded when a command needs it. The
 * calls that are unwound go through a function that ends by a jump through a pointer. */
#include "serve.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <libgen.h>
#include <unistd.h>

static long (*target)(long);
PROBED long through(long n) { return target(n); }

static void *library(const char *name)
{
    char own[4096], path[4200];
    ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
    own[len < 0 ? 0 : len] = 0;
    snprintf(path, sizeof path, "%s/%s", dirname(own), name);
    void *handle = dlopen(path, RTLD_NOW);
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    return handle;
}

static long caught(const char *name, long n)
{
    void *handle = library(name);
    target = (long (*)(long))dlsym(handle, "thrower");
    long (*run)(long (*)(long), long) = (long (*)(long (*)(long), long))dlsym(handle, "run");
    return run(through, n);
}

/* Exceptions of a C++ library, by the shared unwinder, which comes with it. */
static long thrown(long n) { return caught("libthrower.so", n); }

/* The same of a library that has an unwinder of its own, without a name. */
static long hidden(long n) { return caught("libthrower-hidden.so", n); }

PROBED long depth(long n)
{
    void *frames[50];
    return n + backtrace(frames, 50);
}

/* The C library loads the unwinder at the first call of backtrace. */
static long traced(long n)
{
    long sum = 0;
    target = depth;
    for (long i = 0; i < n; i++)
        sum += through(i);
    return sum;
}

/* The same in a child, whose parent has ended before. */
static long orphaned(long (*command)(long), long n)
{
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid != 0)
        _exit(pid < 0);
    while (getppid() == parent)
        usleep(1000);
    return command(n);
}

static long thrown_orphaned(long n) { return orphaned(thrown, n); }
static long hidden_orphaned(long n) { return orphaned(hidden, n); }
static long traced_orphaned(long n) { return orphaned(traced, n); }

int main(int argc, char **argv)
{
    static const struct command commands[] = {
        { "thrown", thrown }, { "hidden", hidden }, { "traced", traced },
        { "thrown_orphaned", thrown_orphaned }, { "hidden_orphaned", hidden_orphaned },
        { "traced_orphaned", traced_orphaned }, { 0 },
    };
    return serve(argc, argv, commands);
}
