/* A program that makes up what a dead controller leaves behind.
 *     remains KIND: outside, memory, code, entries */
#include "layout.h"
#include "serve.h"
#include <sys/mman.h>
#include <unistd.h>

enum { LEN = 1 << 20, JOURNAL = 4096, LIST = 65536, ENTRIES = 16 };

PROBED long worked(long n) { return n + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += worked(i);
    return sum;
}

static void make(const char *kind)
{
    int outside = !strcmp(kind, "outside"), memory = !strcmp(kind, "memory"), code = !strcmp(kind, "code");
    int fd = memfd_create("sidestep", 0);
    if (fd < 0 || ftruncate(fd, LEN))
        exit(3);
    uint8_t *m = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    uint64_t *own = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *text = mmap(NULL, LEN, PROT_READ | (code ? 0 : PROT_EXEC), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct header *h = (struct header *)m;
    own[0] = memory ? 0 : (uint64_t)(uintptr_t)m;
    h->version = LAYOUT;
    h->controller_pid = 4000000;
    h->target_pid = getpid();
    h->total_len = LEN;
    h->shared_va = (uint64_t)(uintptr_t)m;
    h->private_va = (uint64_t)(uintptr_t)own;
    h->agent_va = (uint64_t)(uintptr_t)text;
    h->agent_len = LEN;
    h->journal_off = outside ? -8ull : JOURNAL;
    h->journal_cap = h->journal_len = ENTRIES;
    h->maps_off = LIST;
    h->maps_cap = h->maps_len = ENTRIES;
    h->common_off = LEN - 4096;
    /* Sites and mappings at places that are none. */
    for (uint64_t i = 0; i < (LEN - JOURNAL) / 8 - 1024; i++)
        ((uint64_t *)(m + JOURNAL))[i] = i * 0x9e3779b97f4a7c15ull;
    h->magic = MAGIC;
}

static const struct command commands[] = { { "work", work }, { 0 } };

int main(int argc, char **argv)
{
    char *none[] = { argv[0], NULL };
    make(argc > 1 ? argv[1] : "");
    return serve(1, none, commands);
}
