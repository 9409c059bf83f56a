/* USDT probes written by hand, as <sys/sdt.h> makes them, one of them with a semaphore. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "serve.h"

/* Counts who listens. */
unsigned short demo_semaphore __attribute__((section(".probes"), used));
static long table[4] = {100, 200, 300, 400};
static int answer __attribute__((used)) = 77;

#ifdef __x86_64__
#define ADDRESS ".8byte"
#define LONG "8"
#define VARIABLE "answer(%%rip)"
#define NARROW "%k1"
#define CONSTANT "$-9"
#define ONE_REGISTER "a"
#define OTHER_REGISTER "d"
#elif defined __aarch64__
#define ADDRESS ".8byte"
#define LONG "8"
#define VARIABLE "[%3]"
#define NARROW "%1"
#define CONSTANT "-9"
#define ONE_REGISTER "r"
#define OTHER_REGISTER "r"
#elif defined __arm__
#define ADDRESS ".4byte"
#define LONG "4"
#define VARIABLE "[%3]"
#define NARROW "%1"
#define CONSTANT "#-9"
#define ONE_REGISTER "r"
#define OTHER_REGISTER "r"
#else
#define ADDRESS ".4byte"
#define LONG "4"
#define VARIABLE "answer"
#define NARROW "%k1"
#define CONSTANT "$-9"
#define ONE_REGISTER "a"
#define OTHER_REGISTER "d"
#endif
#define NOTE(name, semaphore, arguments, ...)                                                                          \
    asm volatile(TEXT(name, semaphore, arguments) ::__VA_ARGS__)
#define TEXT(name, semaphore, arguments)                                                                               \
                 "990: nop\n"                                                                                          \
                 ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                                         \
                 ".balign 4\n.4byte 992f-991f, 994f-993f, 3\n"                                                         \
                 "991: .asciz \"stapsdt\"\n992: .balign 4\n"                                                           \
                 "993: " ADDRESS " 990b, _.stapsdt.base, " semaphore "\n"                                               \
                 ".asciz \"demo\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n"                                    \
                 "994: .balign 4\n.popsection\n"                                                                       \
                 ".ifndef _.stapsdt.base\n"                                                                            \
                 ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                               \
                 ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"                            \
                 ".size _.stapsdt.base, 1\n.popsection\n.endif\n"

/* A register, a narrow one with a sign, a constant, memory, and a variable. */
PROBED long fired(long n, int negative)
{
    NOTE("fired", "demo_semaphore", LONG "@%0 -4@" NARROW " -4@" CONSTANT " " LONG "@%2 4@" VARIABLE, "r"(n), "r"(negative),
         "m"(table[2]), "r"(&answer));
    return n + negative;
}

/* Two sites of one probe; their arguments are in different registers. */
PROBED long twice(long n)
{
    NOTE("twice", "0", LONG "@%0", ONE_REGISTER(n));
    NOTE("twice", "0", LONG "@%0", OTHER_REGISTER(n + 1000));
    return n;
}

/* A probe that is the first instruction of a function. */
#ifdef __aarch64__
long first(long n);
asm(".text\n.type first,@function\nfirst:\n" TEXT("first", "demo_semaphore", "8@x0") "add x0, x0, #1\nret\n.size first,.-first");
#elif defined __arm__
long first(long n);
asm(".text\n.syntax unified\n.thumb\n.thumb_func\n.type first,%function\nfirst:\n" TEXT("first", "demo_semaphore", "4@r0")
    "adds r0, r0, #1\nbx lr\n.size first,.-first");
#else
__attribute__((naked)) PROBED long first(long n)
{
#ifdef __x86_64__
    NOTE("first", "demo_semaphore", "8@%%rdi", "i"(0));
    asm("lea 1(%rdi), %rax\n\tret");
#else
    NOTE("first", "demo_semaphore", "4@4(%%esp)", "i"(0));
    asm("mov 4(%esp), %eax\n\tinc %eax\n\tret");
#endif
}
#endif

static long run_first(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        sum += first(i);
    return sum;
}

static long run_fire(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        sum += fired(i, -3);
    return sum;
}

static long run_twice(long n)
{
    long sum = 0;
    for (long i = 1; i <= n; i++)
        sum += twice(i);
    return sum;
}

/* Is anybody listening? */
static long run_listeners(long n)
{
    return n + *(volatile unsigned short *)&demo_semaphore;
}

/* Somebody else begins (1) or ceases (-1) to listen. */
static long run_listen(long n)
{
    return *(volatile unsigned short *)&demo_semaphore += n;
}

/* What a child that was forked now thinks of it. */
static long run_child(long n)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        run_fire(n);
        _exit(run_listeners(0));
    }
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void on_signal(int signal)
{
    _exit(run_listeners(0));
}

/* A child that stays. */
static long run_stay(long n)
{
    pid_t pid;
    signal(SIGUSR1, on_signal);
    pid = fork();
    while (pid == 0)
        pause();
    return pid;
}

/* What that child thinks in the end. */
static long run_reap(long pid)
{
    int status;
    kill(pid, SIGUSR1);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const struct command commands[] = {
    {"fire", run_fire}, {"twice", run_twice}, {"first", run_first}, {"listeners", run_listeners}, {"listen", run_listen},
    {"child", run_child}, {"stay", run_stay}, {"reap", run_reap}, {NULL, NULL},
};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
