/* A program that replaces a function of its own, as libpulp does: two nops at the start become a short jump to the room in
   front of the function, where a jump leads to the replacement. */
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "serve.h"

#define ROOM 14

PROBED long leaf(long x) { return x * 3 + 1; }
PROBED __attribute__((patchable_function_entry(0, 0))) static long replacement(long x) { return x * 3 + 2; }

static unsigned char *bytes_of(long (*function)(long))
{
    __asm__("" : "+r"(function));
    return (unsigned char *)function;
}

/* 1: the replacement is called, 0: the function itself. */
static long replace(long on)
{
    unsigned char *start = bytes_of(leaf), *room = start - ROOM;
    /* The nops lie behind a mark for indirect branches, if there is one. */
    unsigned char *at = start[0] == 0xf3 ? start + 4 : start;
    uintptr_t page = (uintptr_t)room & -4096;
    if (mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC))
        return -1;
    int32_t far = bytes_of(replacement) - (room + 5);
    room[0] = 0xe9;
    memcpy(room + 1, &far, sizeof far);
    at[1] = on ? (unsigned char)(room - (at + 2)) : 0x90;
    at[0] = on ? 0xeb : 0x90;
    mprotect((void *)page, 8192, PROT_READ | PROT_EXEC);
    return 0;
}

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += leaf(i);
    return sum;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "work", work }, { "replace", replace }, { 0 } };
    return serve(argc, argv, table);
}
