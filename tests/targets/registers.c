/* Calls the functions of registers_asm.S with known registers, flags and red zone, and checks what they have behind the
 * probed instruction. "word K" then says what a program at the last hit must have seen in word K of struct pt_regs, "sum K"
 * what all hits of the last command have there together. */
#include <sys/wait.h>
#include <unistd.h>
#include "call.h"
#include "serve.h"

enum { R11 = 6, R10, RAX = 10, RCX, RDX, RDI = 14, ORIG_RAX, RIP, CS, EFLAGS, RSP, SS, WORDS };
enum { IN_RSP = 15, IN_FLAGS, ZONE };

#ifdef __i386__
/* Without r8 to r15: where they are in struct pt_regs. */
static int is_there(int word) { return word >= RAX || word == 4 || word == 5; }
enum { MIDDLE = 36, FRAME = 64, CODE_SEGMENT = 0x23 };
#else
static int is_there(int word) { return word >= 0; }
enum { MIDDLE = 80, FRAME = 0, CODE_SEGMENT = 0x33 };
#endif

/* CF, PF, AF, ZF, SF, DF, OF. */
#define FLAGS 0xcd5ul
/* Those that `xor` makes known: CF, PF, ZF, SF, OF. */
#define KNOWN 0x8c5ul

extern unsigned long site_in[17], site_out[33];
void site_call(void (*function)(void));
void site_return(void);
extern const char returned_to[];
void at_entry(void), at_dead_entry(void), at_middle(void), at_dead_middle(void);

static unsigned long seen[WORDS], sums[WORDS];

static unsigned long next(void)
{
    static unsigned long long state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    return (unsigned long)(state ^= state << 17);
}

static int is_wrong(int dead, int zone)
{
    int wrong = 0;
    unsigned long expected[IN_RSP];
    memcpy(expected, site_in, sizeof expected);
    if (dead) {
        expected[RAX] = 7;
        expected[R11] = expected[R10] = expected[RCX] = expected[RDX] = 0;
        wrong |= (site_out[IN_FLAGS] & KNOWN) != 0x44 || (site_out[IN_FLAGS] ^ site_in[IN_FLAGS]) & 0x400;
    } else {
        wrong |= ((site_out[IN_FLAGS] ^ site_in[IN_FLAGS]) & FLAGS) != 0;
    }
    wrong |= memcmp(expected, site_out, sizeof expected) != 0 || site_out[IN_RSP] != site_in[IN_RSP];
    for (int word = 0; zone && word < IN_RSP; word++)
        wrong |= is_there(word) && site_out[ZONE + word] != site_in[word];
    return wrong | (zone && site_out[ZONE + 15] != site_in[IN_RSP] - FRAME);
}

static void fill(void)
{
    for (int word = 0; word < IN_RSP; word++)
        seen[word] = site_in[word] = is_there(word) ? next() : 0;
    site_in[IN_FLAGS] = (next() & FLAGS) | 0x202;
}

static void expect(unsigned long ip, int frame)
{
    seen[ORIG_RAX] = -1;
    seen[RIP] = ip;
    seen[CS] = CODE_SEGMENT;
    seen[EFLAGS] = site_in[IN_FLAGS];
    seen[RSP] = site_in[IN_RSP] - frame;
    seen[SS] = 0x2b;
}

/* Number of rounds, of n, that found something else than without a probe. */
static long rounds(void (*function)(void), int offset, int dead, int zone, long n)
{
    long wrong = 0;
    memset(sums, 0, sizeof sums);
    for (long i = 0; i < n; i++) {
        fill();
        site_call(function);
        wrong += is_wrong(dead, zone);
        expect((unsigned long)function + offset, zone ? FRAME : 0);
        for (int word = 0; word < WORDS; word++)
            sums[word] += seen[word];
    }
    return wrong;
}

static long entry(long n) { return rounds(at_entry, 0, 0, 0, n); }
static long dead_entry(long n) { return rounds(at_dead_entry, 0, 1, 0, n); }
static long middle(long n) { return rounds(at_middle, MIDDLE, 0, 1, n); }
static long dead_middle(long n) { return rounds(at_dead_middle, MIDDLE, 1, 1, n); }

/* The registers at a return. */
static long returned(long n)
{
    long wrong = 0;
    for (long i = 0; i < n; i++) {
        fill();
        site_return();
        wrong += is_wrong(0, 0);
        expect((unsigned long)returned_to, 0);
    }
    return wrong;
}

/* Number of rounds in which some register is not the complement of what it was. */
static long changed(void (*function)(void), int zone, long n)
{
    long wrong = 0;
    for (long i = 0; i < n; i++) {
        fill();
        site_call(function);
        for (int word = 0; word < IN_RSP; word++)
            site_in[word] = is_there(word) ? ~site_in[word] : 0;
        wrong += memcmp(site_in, site_out, 15 * sizeof *site_in) != 0 || site_out[IN_RSP] != site_in[IN_RSP];
        wrong += ((site_out[IN_FLAGS] ^ site_in[IN_FLAGS]) & FLAGS) != 0;
        for (int word = 0; zone && word < IN_RSP; word++)
            wrong += is_there(word) && site_out[ZONE + word] != ~site_in[word];
    }
    return wrong;
}

static long changed_entry(long n) { return changed(at_entry, 0, n); }
static long changed_middle(long n) { return changed(at_middle, 1, n); }

/* The same in a child, where no program runs. */
static long child(long n)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(entry(n) + dead_entry(n) + middle(n) + dead_middle(n) != 0);
    waitpid(pid, &status, 0);
    return status;
}

/* A call that a program may make return 42, then one by a child, with the same stack below. */
void allowed(void);
#define ALLOWED(uid) (int)call_with(allowed, uid, 0, 0)

PROBED void elsewhere(void)
{
}

static long forked(long n)
{
    int status, parent = ALLOWED(n);
    pid_t pid;
    /* No call of the library: what the hit left on the stack stays there. */
#ifdef __i386__
    asm volatile("int $0x80" : "=a"(pid) : "a"(2) : "memory");
    if (pid == 0) {
        int found = ALLOWED(n);
        asm volatile("int $0x80" : : "a"(252), "b"(found) : "memory");
    }
#else
    asm volatile("syscall" : "=a"(pid) : "a"(57l) : "rcx", "r11", "memory");
    if (pid == 0) {
        int found = ALLOWED(n);
        asm volatile("syscall" : : "a"(231l), "D"((long)found) : "rcx", "r11", "memory");
    }
#endif
    waitpid(pid, &status, 0);
    return parent * 1000 + (WIFEXITED(status) ? WEXITSTATUS(status) : 999);
}

static long word(long k) { return (long)seen[k]; }
static long sum(long k) { return (long)sums[k]; }

static const struct command commands[] = {
    {"entry", entry}, {"dead_entry", dead_entry}, {"middle", middle}, {"dead_middle", dead_middle}, {"child", child},
    {"forked", forked}, {"returned", returned}, {"changed_entry", changed_entry},
    {"changed_middle", changed_middle}, {"word", word}, {"sum", sum}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    elsewhere();
    return serve(argc, argv, commands);
}
