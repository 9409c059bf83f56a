/* Functions that are called all the time by one thread: `syscall` of the C library, and `first` of the library that
 * LIBRARY names (distant.S). */
#include "serve.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

static int ended;
static pthread_t thread;
static long (*first)(long);

static void *calls(void *unused)
{
    while (!__atomic_load_n(&ended, __ATOMIC_RELAXED)) {
        syscall(SYS_getppid);
        first(1);
    }
    return unused;
}

static long start(long n)
{
    void *library = dlopen(getenv("LIBRARY"), RTLD_NOW);
    first = library ? (long (*)(long))dlsym(library, "first") : NULL;
    return first && !pthread_create(&thread, NULL, calls, NULL) ? n : -1;
}

static long end(long n)
{
    __atomic_store_n(&ended, 1, __ATOMIC_RELAXED);
    return pthread_join(thread, NULL) ? -1 : n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "start", start }, { "end", end }, { NULL, NULL } };
    return serve(argc, argv, table);
}
