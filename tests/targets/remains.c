/* A program that makes up what a dead controller leaves behind.
 *     remains KIND: outside, memory, code, entries
 *     remains random SEED: entries that could be real, with damage at random; some seeds are numbers that were once
 *         believed */
#define _GNU_SOURCE
#include "layout.h"
#include "serve.h"
#include <sys/mman.h>
#include <unistd.h>

enum { LEN = 32 << 20, FILLED = 1 << 20, JOURNAL = 4096, LIST = 65536, ENTRIES = 16 };

PROBED long worked(long n) { return n + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += worked(i);
    return sum;
}

static uint64_t shared;

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
    h->layout.journal_off = outside ? -8ull : JOURNAL;
    h->layout.journal_cap = h->journal_len = ENTRIES;
    h->layout.maps_off = LIST;
    h->layout.maps_cap = h->maps_len = ENTRIES;
    h->layout.common_off = LEN - 4096;
    /* Sites and mappings at places that are none. */
    for (uint64_t i = 0; i < (FILLED - JOURNAL) / 8 - 1024; i++)
        ((uint64_t *)(m + JOURNAL))[i] = i * 0x9e3779b97f4a7c15ull;
    h->magic = MAGIC;
    shared = h->shared_va;
}

static uint64_t state;

static uint64_t any(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t odd(void)
{
    static const uint64_t numbers[] = { 0, 1, 7, 4096, 0xffffffff, 0x7fffffffffffffff, -1ull, -8ull, 1ull << 40 };
    return any() % 2 ? numbers[any() % 9] : any() >> any() % 64;
}

/* Much memory that is the same 2 MiB again and again. */
static uint64_t same(uint64_t len, int fill)
{
    enum { PART = 2 << 20 };
    int fd = memfd_create("same", 0);
    uint8_t *at = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fd < 0 || ftruncate(fd, PART) || at == MAP_FAILED)
        exit(3);
    for (uint64_t i = 0; i < len; i += PART)
        mmap(at + i, PART, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    close(fd);
    memset(at, fill, PART);
    return (uintptr_t)at;
}

static void entry(int index, uint64_t site, uint8_t len, uint32_t newest)
{
    uint8_t *at = (uint8_t *)(uintptr_t)shared + JOURNAL + index * JOURNAL_ENTRY;
    memset(at, 0, JOURNAL_ENTRY);
    memcpy(at, &site, 8);
    memcpy(at + 20, &newest, 4);
    at[24] = len;
    at[27] = 1; /* optimized */
}

/* Numbers that were once believed, each in remains that are sound otherwise. The offsets in Private and ThreadState are
 * in crates/wire/tests/layout.rs. */
static void believed(int which)
{
    enum { PROBES = 24 / 8, STATES = 32 / 8, STRIDE = 40 / 8, TRAPS = 56 / 8, USED = 112 / 4, OURS = 136 / 8 };
    enum { SHADOW = 2232 / 8, CAP = 2240 / 8, COUNT = 2248 / 8 };
    enum { SIGNALS = 216 / 8, SIGTRAP_ONLY = 16 };
    make("");
    struct header *h = (struct header *)(uintptr_t)shared;
    uint64_t *own = (uint64_t *)(uintptr_t)h->private_va;
    h->journal_len = h->maps_len = 0;
    own[PROBES] = h->private_va + 65536;
    switch (which) {
    case 1: /* Sites of no bytes, and near the last address, in a session with a trap table: two panics. */
        own[TRAPS] = h->private_va + 32768;
        own[32768 / 8] = 0x1234;
        own[OURS] = ((uint64_t *)h)[SIGNALS] = SIGTRAP_ONLY;
        entry(0, (uintptr_t)worked, 0, 1);
        entry(1, -3ull, 5, 2);
        h->journal_len = 2;
        break;
    case 2: /* A chain of two million probes, at each of many sites: it was copied for each. */
        own[PROBES] = same(256u << 20, 0xff);
        for (h->journal_len = 0; h->journal_len < 300; h->journal_len++)
            entry(h->journal_len, (uintptr_t)worked + h->journal_len, 5, 2000000);
        break;
    case 3: { /* Long shadow stacks of many threads: all were kept. */
        uint64_t *states = mmap(NULL, 64 * 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint64_t stack = same(256u << 20, 0x11);
        for (int i = 0; i < 64; i++) {
            states[i * 1024 + SHADOW] = stack;
            states[i * 1024 + CAP] = states[i * 1024 + COUNT] = 6000000;
        }
        own[STATES] = (uintptr_t)states;
        own[STRIDE] = 8192;
        ((uint32_t *)own)[USED] = 64;
        h->trampoline_va = h->agent_va;
        break;
    }
    case 4: { /* A mapping that is listed a million times: each was unmapped. */
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (h->maps_len = 0; h->maps_len < 1000000; h->maps_len++) {
            uint64_t *mapping = (uint64_t *)(uintptr_t)(shared + LIST + h->maps_len * LIST_ENTRY);
            mapping[0] = (uintptr_t)page;
            mapping[1] = 4096;
            mapping[2] = 3;
        }
        break;
    }
    default: /* Four thousand million slots in use: the counts of each were read. */
        entry(0, (uintptr_t)worked, 5, 100);
        h->journal_len = 1;
        h->layout.slots_max = *(uint32_t *)(uintptr_t)(shared + h->layout.common_off) = -1;
        h->layout.slots_off = h->layout.missed_off = LIST;
    }
}

/* Sites are places of this program, or none; their bytes are often those that are there. */
static void damage(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15ull + 1;
    make("");
    struct header *h = (struct header *)(uintptr_t)shared;
    uint8_t *m = (uint8_t *)h;
    uint64_t own = h->private_va;
    h->controller_pid = any() % 4 ? 4000000 : getppid();
    h->target_pid = any() % 5 ? getpid() : 1;
    h->journal_len = any() % (ENTRIES + 1);
    h->maps_len = any() % (ENTRIES + 1);
    uint64_t places[] = { (uintptr_t)worked, (uintptr_t)work, (uintptr_t)printf, shared, own, h->agent_va, (uintptr_t)&state,
                          0xffffffffff600000, 0, odd() };
    enum { PLACES = sizeof(places) / sizeof(*places) };
    const uint8_t *code = (const uint8_t *)(uintptr_t)worked;
    for (int i = 0; i < ENTRIES; i++) {
        uint8_t *entry = m + JOURNAL + i * JOURNAL_ENTRY;
        for (int k = 0; k < JOURNAL_ENTRY; k++)
            entry[k] = any();
        uint64_t site = places[any() % PLACES] + any() % 16, detour = places[any() % PLACES];
        memcpy(entry, &site, 8);
        memcpy(entry + 8, &detour, 8);
        /* Small numbers where kinds and lengths are. */
        for (int k = 16; k < 32; k++)
            entry[k] = any() % 20;
        memcpy(entry + 48, code, 16);
        if (any() % 2)
            memcpy(entry + 32, code, 16);
    }
    for (int i = 0; i < ENTRIES; i++) {
        uint64_t *mapping = (uint64_t *)(m + LIST + i * LIST_ENTRY);
        mapping[0] = places[any() % PLACES] & (any() % 2 ? ~4095ull : -1ull);
        mapping[1] = any() % 2 ? 4096 : odd();
        mapping[2] = any() % 8;
    }
    for (int i = 1; i < 200; i++)
        ((uint64_t *)(uintptr_t)own)[i] = any() % 2 ? 0 : any() % 3 ? places[any() % PLACES] : odd();
    for (int flips = any() % 4; flips > 0; flips--)
        ((uint64_t *)h)[1 + any() % (sizeof(*h) / 8 - 1)] = odd();
}

static const struct command commands[] = { { "work", work }, { 0 } };

int main(int argc, char **argv)
{
    char *none[] = { argv[0], NULL };
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 0;
    if (argc > 2 && seed % 15 >= 1 && seed % 15 <= 5)
        believed(seed % 15);
    else if (argc > 2)
        damage(seed);
    else
        make(argc > 1 ? argv[1] : "");
    return serve(1, none, commands);
}
