/* A target that attacks whoever probes it: a forked child scribbles into the memory that it shares with the controller.
 *     hostile PART SEED [VICTIM]
 * PART is a part of that memory, "all", or an attack with a name. The layout is that of wire::Header. */
#include "serve.h"
#include "layout.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

struct desc {
    uint32_t kind, key_size, value_size, max_entries, flags, index;
    uint64_t data, cells, stride, dropped, count, free, hand;
    uint32_t buckets, capacity;
    uint64_t fresh, pad[4];
};
struct slot {
    uint64_t fs_base;
    uint32_t tid, owner;
    uint64_t head, tail;
};
enum { RING_KINDS = 4 };

/* wire::Bell, by which a process says that it asks, and wire::Asked: what it asks. */
struct bell {
    uint32_t turn, rung, heard, pid, listens, working;
};
struct asked {
    uint32_t number, answered, question, tid, pid, given_up;
    uint64_t path;
};
enum { BELL = 24, EXEC = 1, NO_EXEC = 2, MAPPED = 3 };

static uint32_t victim;
static volatile uint8_t *at;
static uint64_t len, state;
static struct header h;

static uint64_t draw(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* Numbers that lengths, indices and addresses are checked against, or not. */
static uint64_t odd(void)
{
    static const uint64_t all[] = {0, 1, 2, 3, 7, 8, 63, 64, 255, 4096, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,
        1ull << 40, 0x7fffffffffffffff, 0x8000000000000000, -1ull, -8ull, -4096ull, 0x6400000002ull, 0xfffffff800000002ull};
    return draw() % 3 ? all[draw() % (sizeof all / sizeof *all)] : draw() >> draw() % 64;
}

/* The status of an attacker that may not attack. */
enum { DENIED = 77 };
static int in_own_copy;

/* The head is private memory: the attacker, a child, has a copy. */
static void store(uint64_t off, uint64_t value, size_t n)
{
    struct iovec own = {&value, n}, parents = {(void *)(uintptr_t)(at + off), n};
    if (off < h.layout.common_off && !in_own_copy) {
        if (process_vm_writev(getppid(), &own, 1, &parents, 1, 0) < 0 && errno == EPERM)
            _exit(DENIED);
    } else
        memcpy((void *)(uintptr_t)(at + off), &value, n);
}

static void put(uint64_t off, uint64_t room)
{
    off += room ? draw() % room : 0;
    if (off + 8 > len)
        return;
    switch (draw() % 4) {
    case 0: store(off, draw(), 1); break;
    case 1: store(off & ~3ull, odd(), 4); break;
    default: store(off & ~7ull, odd(), 8);
    }
}

static volatile struct slot *slot_of(uint64_t i) { return (volatile struct slot *)(at + h.layout.slots_off + h.layout.slot_stride * i); }
static volatile struct desc *descs(void) { return (volatile struct desc *)(at + h.layout.map_descs_off); }
static volatile uint64_t *ring(volatile struct slot *s, uint64_t pos)
{
    return (volatile uint64_t *)((volatile uint8_t *)s + h.layout.ring_off + (pos & (h.layout.ring_len - 8)));
}

static void header(void) { put(0, sizeof h); }
static void journal(void) { put(h.layout.journal_off, (h.journal_len + 2) * JOURNAL_ENTRY); }
static void list(void) { put(h.layout.maps_off, (h.maps_len + 2) * LIST_ENTRY); }
static void common(void) { put(h.layout.common_off, COMMON); }
static void desc(void) { put(h.layout.map_descs_off, h.layout.map_descs * sizeof(struct desc)); }
static void slots(void) { put(h.layout.slots_off + h.layout.slot_stride * (draw() % 3), 64 + h.layout.cells * 8); }
static void maps(void)
{
    uint64_t from = h.layout.map_descs_off + h.layout.map_descs * sizeof(struct desc), room = h.layout.slots_off - from;
    put(from, room > 1 << 20 ? 1 << 20 : room);
}
static void rings(void)
{
    if (!h.layout.ring_len)
        return;
    volatile struct slot *s = slot_of(draw() % 2);
    switch (draw() % 5) {
    case 0: s->head = s->tail + (draw() % 2 ? odd() : draw() % (2 * h.layout.ring_len)); break;
    case 1: s->tail = odd(); break;
    default:
        *ring(s, s->tail) = odd() << 32 | (1 + draw() % RING_KINDS);
        *ring(s, s->tail + 8 * (draw() % 12)) = draw() % 2 ? odd() : draw();
        if (s->head < s->tail + 256)
            s->head = s->tail + 256 + (draw() % 2 ? 1ull << 33 : 0);
    }
}

static volatile struct bell *the_bell(void) { return (volatile struct bell *)(at + h.layout.common_off + BELL); }

static void wake(volatile uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

static void ring_for(uint32_t pid)
{
    the_bell()->pid = pid;
    __atomic_add_fetch(&the_bell()->rung, 1, __ATOMIC_SEQ_CST);
    wake(&the_bell()->rung);
}

/* Asks for a thread or a process that is none of its own to be traced, or changed. */
static void bell(void)
{
    volatile struct asked *a = (volatile struct asked *)(uintptr_t)(h.private_va + ASKED);
    uint32_t own = (uint32_t)getpid(), parent = (uint32_t)h.target_pid, tracer = (uint32_t)h.controller_pid;
    uint32_t pids[] = {own, own, victim, tracer, 1, parent}, threads[] = {victim, tracer, victim, own, 1, own};
    int i = (int)(draw() % 6);
    a->question = draw() % 3 ? EXEC : MAPPED;
    a->tid = threads[i];
    a->pid = pids[i];
    a->path = 0;
    a->number++;
    ring_for(pids[i]);
}

/* Answers in place of the controller, and changes what others ask. */
static void answers(void)
{
    volatile struct bell *b = the_bell();
    for (int i = 0; i < 1000; i++) {
        if (draw() % 4 == 0)
            ring_for((uint32_t)h.target_pid);
        if (draw() % 4 == 0)
            b->pid = draw() % 2 ? 1 : victim;
        b->heard = b->rung;
        b->working++;
        wake(&b->heard);
    }
}

/* Each chain of each map leads back to its first entry. */
static void cycle(void)
{
    for (uint64_t i = 0; i < h.layout.map_descs; i++) {
        volatile struct desc *d = &descs()[i];
        if (d->buckets == 0 || d->key_size == 0 || d->capacity == 0)
            continue;
        volatile uint64_t *words = (volatile uint64_t *)(at + d->data);
        d->fresh = 1;
        for (uint32_t bucket = 0; bucket < d->buckets; bucket++)
            words[bucket] = 1 << 1;
        words[d->buckets] = 5;
        words[d->buckets + 1] = 1 << 1;
    }
}

/* A record that is longer than its ring, in each of them. */
static void records(void)
{
    for (uint64_t i = 0; h.layout.ring_len && i < 8; i++) {
        volatile struct slot *s = slot_of(i);
        *ring(s, s->tail) = 0xfffffff8ull << 32 | 2;
        s->head = s->tail + (1ull << 40);
    }
}

/* Lengths that nobody has memory for. */
static void lengths(void)
{
    store(offsetof(struct header, journal_len), 0xffffffff, 4);
    store(offsetof(struct header, maps_len), 0xffffffff, 4);
    store(offsetof(struct header, layout.slots_max), 0xffffffff, 4);
    for (uint64_t i = 0; i < h.layout.map_descs; i++) {
        descs()[i].max_entries = descs()[i].buckets = descs()[i].value_size = 0xffffffff;
        descs()[i].data = descs()[i].stride = 1ull << 50;
    }
}

/* Each system call in code that the controller has put into the parent becomes an endless loop. */
static void busy(void)
{
    char line[512], name[64];
    snprintf(name, sizeof name, "/proc/%d/maps", (int)getppid());
    FILE *f = fopen(name, "r");
    snprintf(name, sizeof name, "/proc/%d/mem", (int)getppid());
    int memory = open(name, O_RDWR);
    while (f && fgets(line, sizeof line, f)) {
        unsigned long start, end, inode;
        static uint8_t code[1 << 18];
        int is_code = sscanf(line, "%lx-%lx %*1[r]%*1[-w]x%*s %*s %*s %lu", &start, &end, &inode) == 3 && inode == 0;
        ssize_t got = is_code ? pread(memory, code, end - start < sizeof code ? end - start : sizeof code, (off_t)start) : 0;
        for (ssize_t i = 0; i + 1 < got; i++)
            if (code[i] == 0x0f && code[i + 1] == 0x05 && pwrite(memory, "\xeb\xfe", 2, (off_t)start + i) != 2)
                _exit(1);
    }
    if (f)
        fclose(f);
    close(memory);
}

/* What a child has by the fork. */
static void copy(void)
{
    static void (*const OWN[])(void) = {header, journal, list};
    in_own_copy = 1;
    OWN[draw() % 3]();
}

static void (*const PARTS[])(void) = {header, journal, list, common, desc, slots, maps, rings};
static void all(void) { PARTS[draw() % (sizeof PARTS / sizeof *PARTS)](); }

static const struct {
    const char *name;
    void (*scribble)(void);
} ATTACKS[] = {{"header", header}, {"journal", journal}, {"list", list}, {"common", common}, {"desc", desc}, {"slots", slots},
    {"maps", maps}, {"rings", rings}, {"bell", bell}, {"answers", answers}, {"cycle", cycle}, {"records", records}, {"lengths", lengths}, {"busy", busy},
    {"copy", copy}, {"all", all}};

PROBED long worked(unsigned long n, const char *s) { return (long)n + s[0]; }

static void *worker(void *unused)
{
    for (unsigned long n = 0;; n++, usleep(200))
        worked(n % 37, "text");
    return unused;
}

PROBED long counted(long n) { return n + 1; }

static int work_counted(long calls)
{
    long right = 0;
    for (long i = 0; i < calls; i++)
        right += counted(i) == i + 1;
    return right != calls;
}

/* Executes programs while it is attacked, each of which calls a function ten times; says how many calls that were. */
static void *starter(void *attacked)
{
    char *program[] = {"/proc/self/exe", "call", "10", NULL};
    long calls = 0;
    while (!*(volatile int *)attacked)
        usleep(1000);
    for (int i = 0; i < 30; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            execv(program[0], program);
            _exit(1);
        }
        waitpid(child, &status, 0);
        calls += WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 10 : 0;
    }
    printf("%ld\n", calls);
    fflush(stdout);
    return NULL;
}

static int find(void)
{
    char line[512];
    FILE *f = fopen("/proc/self/maps", "r");
    at = NULL;
    while (f && fgets(line, sizeof line, f)) {
        unsigned long start, end;
        if (!strstr(line, "/memfd:sidestep") || sscanf(line, "%lx-%lx", &start, &end) != 2)
            continue;
        /* The head, and behind it what is shared. */
        if (!at)
            at = (volatile uint8_t *)start, len = 0;
        if ((uintptr_t)at + len == start)
            len += end - start;
    }
    if (f)
        fclose(f);
    struct iovec to = {&h, sizeof h}, from = {(void *)(uintptr_t)at, sizeof h};
    return at && process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof h && h.magic == MAGIC && h.journal_len;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    if (!strcmp(argv[1], "call"))
        return work_counted(atol(argv[2]));
    state = strtoull(argv[2], NULL, 0) * 0x9e3779b97f4a7c15ull + 88172645463325252ull;
    victim = argc > 3 ? (uint32_t)atoi(argv[3]) : 1;
    void (*scribble)(void) = all;
    for (size_t i = 0; i < sizeof ATTACKS / sizeof *ATTACKS; i++)
        if (!strcmp(argv[1], ATTACKS[i].name))
            scribble = ATTACKS[i].scribble;
    pthread_t thread;
    pthread_create(&thread, NULL, worker, NULL);
    static int attacked;
    if (scribble == answers)
        pthread_create(&thread, NULL, starter, &attacked);
    printf("ready\n");
    fflush(stdout);
    for (;; usleep(500)) {
        if (!find())
            continue;
        if (h.version != LAYOUT) {
            fprintf(stderr, "the layout has version %u\n", h.version);
            return 3;
        }
        usleep(draw() % 300000);
        /* The child may crash when the memory goes away. */
        pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;; usleep(draw() % 400))
                scribble();
        }
        attacked = 1;
        int status = 0;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        if (WIFEXITED(status) && WEXITSTATUS(status) == DENIED)
            return DENIED;
    }
}
