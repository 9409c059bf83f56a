/* Code that is made at run time calls a function, and is named in /tmp/perf-PID.map. */
#include "serve.h"
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 4096 };

static volatile long sink;
static unsigned char *room;
static FILE *map;

PROBED void leaf(void)
{
    sink++;
}

PROBED void enter(void (*code)(void))
{
    code();
}

/* A frame by frame pointer, and a call of `leaf`. */
static void (*generate(size_t at, const char *name))(void)
{
    void (*callee)(void) = leaf;
#if defined __x86_64__
    unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xd0, 0x5d, 0xc3};
    memcpy(code + 6, &callee, sizeof callee);
#elif defined __i386__
    unsigned char code[] = {0x55, 0x89, 0xe5, 0x83, 0xec, 0x08, 0xb8, 0, 0, 0, 0, 0xff, 0xd0, 0xc9, 0xc3};
    memcpy(code + 7, &callee, sizeof callee);
#elif defined __aarch64__
    /* stp x29, x30, [sp, #-16]!; mov x29, sp; ldr x16, callee; blr x16; ldp x29, x30, [sp], #16; ret */
    uint32_t code[] = {0xa9bf7bfd, 0x910003fd, 0x58000090, 0xd63f0200, 0xa8c17bfd, 0xd65f03c0, 0, 0};
    memcpy(code + 6, &callee, sizeof callee);
#elif defined __arm__
    /* push {fp, lr}; mov fp, sp; ldr ip, callee; blx ip; pop {fp, pc} */
    uint32_t code[] = {0xe92d4800, 0xe1a0b00d, 0xe59fc004, 0xe12fff3c, 0xe8bd8800, 0};
    memcpy(code + 5, &callee, sizeof callee);
#endif
    mprotect(room, ROOM, PROT_READ | PROT_WRITE);
    memcpy(room + at, code, sizeof code);
    mprotect(room, ROOM, PROT_READ | PROT_EXEC);
    __builtin___clear_cache((char *)room, (char *)room + ROOM);
    fprintf(map, "%lx %lx %s\n", (unsigned long)(room + at), (unsigned long)sizeof code, name);
    fflush(map);
    return (void (*)(void))(uintptr_t)(room + at);
}

static void (*first)(void);

static long run(void (*code)(void), long n)
{
    for (long i = 0; i < n; i++)
        enter(code);
    return n;
}

static long run_first(long n)
{
    return run(first, n);
}

/* Beside the first one. */
static long run_second(long n)
{
    static void (*code)(void);
    if (!code)
        code = generate(1024, "second");
    return run(code, n);
}

/* In place of the first one. */
static long run_third(long n)
{
    return run(generate(0, "third"), n);
}

static const struct command commands[] = {
    {"first", run_first},
    {"second", run_second},
    {"third", run_third},
    {0},
};

int main(int argc, char **argv)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    map = fopen(path, "w");
    room = mmap(0, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!map || room == MAP_FAILED)
        return 3;
    fprintf(map, "no line of this kind\n");
    first = generate(0, "first with a blank\033[31m");
    return serve(argc, argv, commands);
}
