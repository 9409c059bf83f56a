/* Two libraries that take turns at one place. */
#include "serve.h"
#include <dlfcn.h>
#include <unistd.h>

enum { FUNCTIONS = 3000 };

/* The answer is the number of wrong results in so many turns, negative if the libraries were not at one place. */
static long swap(long n)
{
    static const char *const names[] = { "libswapped1.so", "libswapped2.so" };
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    void *place = NULL;
    long wrong = 0, moved = 0;
    path[length < 0 ? 0 : length] = 0;
    char *name = strrchr(path, '/') + 1;
    for (long i = 0; i < n; i++) {
        strcpy(name, names[i % 2]);
        void *library = dlopen(path, RTLD_NOW);
        int (*all)(void) = library ? (int (*)(void))dlsym(library, "all") : NULL;
        if (!all)
            return -1;
        moved += place && place != (void *)all;
        place = (void *)all;
        for (int j = 0; j < 20; j++)
            wrong += all() != FUNCTIONS * (int)(i % 2 + 1);
        dlclose(library);
    }
    return moved ? -moved : wrong;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "swap", swap }, { 0 } };
    return serve(argc, argv, table);
}
