/* A library that is unloaded and loaded again. */
#include "serve.h"
#include <dlfcn.h>
#include <sys/mman.h>

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

/* Puts a page of no meaning where the library was: it is loaded somewhere else the next time. */
static long occupy(long at)
{
    return mmap((void *)(at & -4096l), 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED;
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
        { "load", load }, { "unload", unload }, { "where", where }, { "occupy", occupy }, { "sums", sums }, { 0 },
    };
    return serve(argc, argv, table);
}
