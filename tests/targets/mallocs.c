/* To be preloaded: counts the calls of malloc and what they ask for, and writes that to the file
 * $MALLOCS-PROGRAM at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long calls, bytes;
static _Atomic(void *(*)(size_t)) real;

void *malloc(size_t size)
{
    if (!real)
        real = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
    calls++;
    bytes += size;
    return real(size);
}

/* Of nothing it is a malloc: glibc calls that. */
void *realloc(void *p, size_t size)
{
    static _Atomic(void *(*)(void *, size_t)) real;
    if (!real)
        real = (void *(*)(void *, size_t))dlsym(RTLD_NEXT, "realloc");
    if (!p) {
        calls++;
        bytes += size;
    }
    return real(p, size);
}

__attribute__((destructor)) static void say(void)
{
    char name[4096];
    long c = calls, b = bytes;
    const char *file = getenv("MALLOCS");
    int fd, n;
    if (!file)
        return;
    snprintf(name, sizeof name, "%s-%s", file, program_invocation_short_name);
    fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    n = snprintf(name, sizeof name, "%ld %ld", c, b);
    if (write(fd, name, n) != n)
        abort();
    close(fd);
}
