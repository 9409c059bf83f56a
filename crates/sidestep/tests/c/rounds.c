/* Registers and unregisters probes all the time, while threads run the functions: the number of rounds is the argument. Says whether
 * each call of the main thread had its handler, whether a probe that stays has counted every call, and how much memory there is after a
 * quarter of the rounds and at the end. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sidestep.h"

/* A jump over several instructions, a jump, one that a loop keeps from being a plain jump, and one that returns at once. */
__asm__(".text\n"
        ".macro function name\n.globl \\name\n.type \\name,@function\n\\name:\n.endm\n"
        ".macro end name\n.size \\name, . - \\name\n.p2align 4\n.endm\n"
#ifdef __i386__
        "function several\n mov 4(%esp),%eax\n add $4,%eax\n ret\n end several\n"
        "function one\n mov $4,%eax\n add 4(%esp),%eax\n ret\n end one\n"
        "function loop\n xor %eax,%eax\n1: inc %eax\n cmp %eax,4(%esp)\n jns 1b\n add $3,%eax\n ret\n end loop\n"
        "function tiny\n mov 4(%esp),%eax\n lea 4(%eax),%eax\n ret\n end tiny\n"
        "function stays\n mov 4(%esp),%eax\n add $4,%eax\n ret\n end stays\n"
#else
        "function several\n lea 1(%rdi),%eax\n add $3,%eax\n ret\n end several\n"
        "function one\n mov $4,%eax\n add %edi,%eax\n ret\n end one\n"
        "function loop\n xor %eax,%eax\n1: inc %eax\n dec %edi\n jns 1b\n add $3,%eax\n ret\n end loop\n"
        "function tiny\n lea 4(%rdi),%eax\n ret\n end tiny\n"
        "function stays\n lea 1(%rdi),%eax\n add $3,%eax\n ret\n end stays\n"
#endif
);

unsigned several(unsigned), one(unsigned), loop(unsigned), tiny(unsigned), stays(unsigned);

static unsigned (*const functions[])(unsigned) = { several, one, loop, tiny };
enum { FUNCTIONS = sizeof functions / sizeof *functions, THREADS = 2, CALLS = 3 };

static atomic_int done;
static atomic_ulong calls;
static _Thread_local int is_main;
static unsigned long handled;

static void handler(struct sidestep_context *context, void *data)
{
    (void)context, (void)data;
    if (is_main)
        handled++;
}

static void check(int good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s\n", what, sidestep_error());
        exit(1);
    }
}

static void *work(void *argument)
{
    unsigned long mine = 0;
    (void)argument;
    while (!done) {
        for (unsigned i = 0; i < FUNCTIONS; i++)
            check(functions[i](5) == 9, "a function");
        check(stays(5) == 9, "the function");
        if (++mine % 1000 == 0)
            usleep(1000);
    }
    calls += mine;
    return NULL;
}

/* The number of mappings, and resident memory in KiB, but for that of files. */
static void memory(unsigned long *mappings, unsigned long *resident)
{
    char line[512];
    FILE *file = fopen("/proc/self/smaps", "r");
    unsigned long anonymous, shared;
    *mappings = *resident = 0;
    while (fgets(line, sizeof line, file)) {
        *mappings += strstr(line, "VmFlags") != NULL;
        if (sscanf(line, "Anonymous: %lu", &anonymous) == 1)
            *resident += anonymous;
        if (sscanf(line, "Shared_Dirty: %lu", &shared) == 1)
            *resident += shared;
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    unsigned long rounds = argc > 1 ? strtoul(argv[1], NULL, 10) : 1000;
    unsigned long before[2], after[2];
    sidestep_session *session = sidestep_own();
    struct sidestep_probe always = { .address = (const void *)stays };
    pthread_t threads[THREADS];
    struct sidestep_info info;

    check(session != NULL && sidestep_register(session, &always, 1) == 0, "the session");
    is_main = 1;
    for (int i = 0; i < THREADS; i++)
        check(pthread_create(&threads[i], NULL, work, NULL) == 0, "a thread");
    for (unsigned long round = 0; round < rounds; round++) {
        unsigned (*function)(unsigned) = functions[round % FUNCTIONS];
        struct sidestep_probe probe = { .address = (const void *)function, .flags = SIDESTEP_GENERAL_ONLY };
        /* Every other one only counts. */
        if (round / FUNCTIONS % 2)
            probe.on_entry = handler;
        handled = 0;
        int id = sidestep_register(session, &probe, 1);
        check(id >= 0, "a registration");
        for (int i = 0; i < CALLS; i++)
            check(function(5) == 9, "a call");
        check(handled == (probe.on_entry ? CALLS : 0), "the handler");
        check(sidestep_unregister(session, id) == 0, "the end of a registration");
        if (round == rounds / 4)
            memory(&before[0], &before[1]);
    }
    memory(&after[0], &after[1]);
    done = 1;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check(sidestep_list(session, &info, 1) == 1, "the list");
    printf("%lu of %lu calls\n", (unsigned long)info.hits, (unsigned long)calls);
    check(sidestep_detach(session) == 0, "the end");
    printf("mappings: %lu %lu\nKiB: %lu %lu\n", before[0], after[0], before[1], after[1]);
    return 0;
}
