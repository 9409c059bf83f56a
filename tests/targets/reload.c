/* A library that is unloaded and loaded again. */
#include "serve.h"
#include <dlfcn.h>

static void *library;
static unsigned long (*checksum)(unsigned long sum, const unsigned char *data, unsigned length);

static long load(long n)
{
    static char path[4096] = "libz.so.1";
    Dl_info info;
    library = dlopen(path, RTLD_NOW);
    checksum = library ? (unsigned long (*)(unsigned long, const unsigned char *, unsigned))dlsym(library, "adler32") : NULL;
    if (!checksum || !dladdr((void *)checksum, &info))
        return -1;
    /* The next time without the loader's cache, which would be mapped where the library was. */
    snprintf(path, sizeof path, "%s", info.dli_fname);
    return n;
}

static long unload(long n)
{
    checksum = NULL;
    return dlclose(library) + n;
}

static long where(long n) { return (long)checksum + n; }

/* The answer is the number of right results. */
static long sums(long n)
{
    long right = 0;
    for (long i = 0; i < n; i++)
        right += checksum(1, (const unsigned char *)"a", 1) == 0x620062;
    return right;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "load", load }, { "unload", unload }, { "where", where }, { "sums", sums }, { 0 },
    };
    return serve(argc, argv, table);
}
