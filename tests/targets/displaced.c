/* Programs that handle the faults of their instructions by address: every command gives the same answer with and without
 * probes on these instructions. */
#include "serve.h"
#include "call.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#endif

#ifdef __i386__
#define REG_RDI REG_EDI
#define REG_RSI REG_ESI
#define REG_RSP REG_ESP
#define REG_RIP REG_EIP
#define BY_WIDTH(wide, narrow) narrow
#else
#define BY_WIDTH(wide, narrow) wide
#endif
/* No address that a program may use: of 64 bits, none at all. */
#define NO_ADDRESS (void *)BY_WIDTH(0x8000000000000000, 0xfffff000)

typedef void function(void);

function do_load, do_load_inside, do_store_long, do_store_inside, do_divide, do_undefined, do_undefined_inside, do_breakpoint, do_icebreakpoint,
    do_call_memory, do_call_register, do_push_elsewhere, do_copy;

static __thread long words[64];

static long six(void) { return 7; }

static long (*const pointer)(void) = six;

enum { JUMP = 1, SKIP = 2, REPAIR = 4 };

/* What faults where, and what mends it: `reg` becomes `good`, and then the answer is 7. */
static const struct site {
    function *at;
    int offset, len, signal, ways, reg;
    long good;
} sites[] = {
    { do_load, 0, BY_WIDTH(3, 2), SIGSEGV, JUMP | SKIP | REPAIR, REG_RDI, 0 },
    { do_load_inside, 1, BY_WIDTH(3, 2), SIGSEGV, JUMP | SKIP | REPAIR, REG_RDI, 0 },
    { do_store_long, 0, BY_WIDTH(7, 6), SIGSEGV, JUMP | REPAIR, REG_RDI, 0 },
    { do_store_inside, 1, BY_WIDTH(3, 2), SIGSEGV, JUMP | REPAIR, REG_RDI, 0 },
    { do_divide, BY_WIDTH(4, 3), BY_WIDTH(3, 2), SIGFPE, JUMP | SKIP | REPAIR, REG_RSI, 6 },
    { do_undefined, 0, 2, SIGILL, JUMP | SKIP, 0, 0 },
    { do_undefined_inside, 1, 2, SIGILL, JUMP, 0, 0 },
    { do_breakpoint, 2, 0, SIGTRAP, JUMP | SKIP, 0, 0 },
    { do_icebreakpoint, 0, 0, SIGTRAP, JUMP, 0, 0 },
    { do_call_memory, BY_WIDTH(4, 3), 2, SIGSEGV, JUMP | SKIP | REPAIR, REG_RDI, 0 },
    { do_push_elsewhere, BY_WIDTH(3, 2), 1, SIGSEGV, JUMP | REPAIR, REG_RSP, 0 },
    { do_copy, BY_WIDTH(3, 2), 2, SIGSEGV, JUMP | REPAIR, REG_RSI, 0 },
#ifndef __i386__ /* Where every number is an address, the call does not fail, but what it calls. */
    { do_call_register, 4, 2, SIGSEGV, JUMP | SKIP | REPAIR, REG_RDI, 0 },
#endif
};
enum { SITES = sizeof sites / sizeof *sites };

static __thread const struct site *now;
static __thread volatile long handled;
static __thread volatile int way;
static __thread sigjmp_buf back;
static __thread char alternate[1 << 16];
static volatile long wrong;
static char *page, *cut;
static uintptr_t ice; /* where the processor says that `int1` was; hypervisors differ */

static long good_of(const struct site *site)
{
    if (site->at == do_call_memory)
        return (long)&pointer;
    if (site->at == do_call_register)
        return (long)six;
    if (site->at == do_push_elsewhere)
        return (long)(words + 40);
    return site->reg == REG_RDI || site->reg == REG_RSI ? (site->good ? site->good : (long)words) : 0;
}

static void check(int sig, siginfo_t *info, ucontext_t *context)
{
    uintptr_t ip = (uintptr_t)context->uc_mcontext.gregs[REG_RIP], sp = (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
    int named = sig == SIGILL || sig == SIGFPE || (sig == SIGTRAP && info->si_code != SI_KERNEL);
    if (now->at == do_icebreakpoint && !ice)
        ice = ip;
    wrong += ip != (now->at == do_icebreakpoint ? ice : (uintptr_t)now->at + (uintptr_t)now->offset);
    wrong += named && (uintptr_t)info->si_addr != ip;
    wrong += (now->at == do_call_memory || now->at == do_call_register) && sp % 16 != 0;
    wrong += sig != now->signal && sig != SIGBUS;
    handled++;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    check(sig, info, uc);
    if (way == JUMP)
        siglongjmp(back, 1);
    if (way == SKIP)
        uc->uc_mcontext.gregs[REG_RIP] += now->len;
    if (way == REPAIR)
        uc->uc_mcontext.gregs[now->reg] = good_of(now);
}

/* A handler that looks at where its fault was for a while. */
static void on_slow(int sig, siginfo_t *info, void *context)
{
    ucontext_t *uc = context;
    check(sig, info, uc);
    greg_t first = uc->uc_mcontext.gregs[REG_RIP];
    for (int i = 0; i < 20; i++) {
        usleep(50);
        wrong += *(volatile greg_t *)&uc->uc_mcontext.gregs[REG_RIP] != first;
    }
    uc->uc_mcontext.gregs[now->reg] = good_of(now);
}

static void without_info(int sig)
{
    wrong += sig != now->signal && sig != SIGBUS;
    handled++;
    siglongjmp(back, 1);
}

static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP };

static void use_alternate(void)
{
    stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };
    sigaltstack(&stack, NULL);
}

static void install(void *handler, int flags)
{
    use_alternate();
    for (int i = 0; i < 5; i++) {
        struct sigaction sa = { .sa_sigaction = handler, .sa_flags = flags | SA_ONSTACK };
        sigaction(signals[i], &sa, NULL);
    }
}

/* Every handler is what the program has installed; then there are none. */
static long answer(long n, void *handler)
{
    for (int i = 0; i < 5; i++) {
        struct sigaction old;
        sigaction(signals[i], NULL, &old);
        wrong += (void *)old.sa_sigaction != handler;
    }
    install(SIG_DFL, 0);
    return wrong ? -wrong : n;
}

static void *bad(long i)
{
    if (now->at == do_call_register || (now->at != do_copy && i % 4 == 3))
        return NO_ADDRESS;
    return i % 4 == 0 ? NULL : i % 4 == 1 ? page + 64 : now->at == do_push_elsewhere ? page + 128 : cut + 4096 + 64;
}

static long call_it(void *a, long b, long c) { return call_with(now->at, (long)a, b, c); }

/* All sites, faulting once each. */
static void round_of(long i)
{
    for (now = sites; now < sites + SITES; now++) {
        long before = handled, result;
        void *a = bad(i);
        if (!(now->ways & way))
            continue;
        words[0] = now->at == do_store_inside ? 0 : 6;
        if (sigsetjmp(back, 1))
            goto done;
        if (now->at == do_copy) {
            result = call_it(words + 8, (long)a, 16);
        } else if (now->at == do_divide) {
            result = call_it((void *)42, 0, 0);
        } else if (now->reg) {
            result = call_it(a, 6, 0);
        } else {
            result = call_it((void *)6, 0, 0);
        }
        if (way == REPAIR || now->signal == SIGTRAP || now->signal == SIGILL)
            wrong += result != 7;
    done:
        wrong += handled != before + 1;
    }
}

static long rounds(long n, int how)
{
    way = how;
    install(on_fault, SA_SIGINFO);
    for (volatile long i = 0; i < n; i++)
        round_of(i);
    return answer(n, on_fault);
}

static long slow(long n)
{
    way = REPAIR;
    install(on_slow, SA_SIGINFO);
    for (volatile long i = 0; i < n; i++)
        round_of(i);
    return answer(n, on_slow);
}

static long jump(long n) { return rounds(n, JUMP); }
static long skip(long n) { return rounds(n, SKIP); }
static long repair(long n) { return rounds(n, REPAIR); }

/* Installed by one command, used by another. */
static long leave(long n)
{
    install(on_fault, SA_SIGINFO);
    return n;
}

static long use(long n)
{
    for (volatile long i = 0; i < n; i++) {
        way = i % 3 == 0 ? JUMP : i % 3 == 1 ? SKIP : REPAIR;
        round_of(i);
    }
    return wrong ? -wrong : n;
}

static void *all_ways(void *n)
{
    use_alternate();
    use((long)n);
    return NULL;
}

static long threads(long n)
{
    pthread_t all[4];
    install(on_fault, SA_SIGINFO);
    for (int i = 0; i < 4; i++)
        pthread_create(&all[i], NULL, all_ways, (void *)n);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    return answer(n, on_fault);
}

/* Faults of a child, in it and beside it. */
static long forks(long n)
{
    install(on_fault, SA_SIGINFO);
    for (volatile long i = 0; i < n; i++) {
        int status = 0;
        pid_t pid = fork();
        if (!pid)
            _exit(use(6) == 6 ? 7 : 8);
        use(6);
        wrong += waitpid(pid, &status, 0) != pid || status != 7 << 8;
    }
    return answer(n, on_fault);
}

static long plain(long n)
{
    way = JUMP;
    install(without_info, 0);
    for (volatile long i = 0; i < n; i++)
        round_of(i);
    return answer(n, without_info);
}

static long once(long n)
{
    way = REPAIR;
    for (volatile long i = 0; i < n; i++)
        for (now = sites; now < sites + SITES; now++) {
            struct sigaction old;
            if (now->at != do_load && now->at != do_load_inside)
                continue;
            install(on_fault, SA_SIGINFO | SA_RESETHAND | SA_NODEFER);
            words[0] = 6;
            wrong += call_it(NULL, 0, 0) != 7;
            sigaction(SIGSEGV, NULL, &old);
            wrong += old.sa_handler != SIG_DFL;
        }
    install(SIG_DFL, 0);
    return wrong ? -wrong : n;
}

/* One instruction at a time is let through, as write watchers do it: the page opens for the step and closes behind it. */
static volatile long steps;

static void on_watch(int sig, siginfo_t *info, void *context)
{
    greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)info;
    if (sig == SIGSEGV) {
        mprotect(page, 4096, PROT_READ | PROT_WRITE);
        regs[REG_EFL] |= 0x100;
        handled++;
    } else {
        mprotect(page, 4096, PROT_NONE);
        regs[REG_EFL] &= ~0x100l;
        steps++;
    }
}

static long watch(long n)
{
    handled = steps = 0;
    install(on_watch, SA_SIGINFO);
    for (long i = 0; i < n; i++) {
        call_with(do_load, (long)page, 0, 0);
        call_with(do_load_inside, (long)page, 0, 0);
    }
    wrong += handled != 2 * n || steps != 2 * n;
    return answer(n, on_watch);
}

/* The stack of the handler goes on in the caller of the instruction. */
static void unwinding(int sig, siginfo_t *info, void *context)
{
    long found = 0;
#ifdef __GLIBC__
    void *frames[32];
    int count = backtrace(frames, 32);
    for (int i = 0; i < count; i++)
        found += frames[i] == __builtin_extract_return_addr(*(void **)((ucontext_t *)context)->uc_mcontext.gregs[REG_RSP]);
    wrong += found != 1;
#endif
    on_fault(sig, info, context);
}

static long unwind(long n)
{
    now = sites;
    way = REPAIR;
    words[0] = 6;
    install(unwinding, SA_SIGINFO);
    for (long i = 0; i < n; i++)
        wrong += call_with(do_load, (long)bad(i), 0, 0) != 7;
    return answer(n, unwinding);
}

/* Where the instruction is that `die` meets. */
static long where(long i)
{
    return (long)sites[i].at + sites[i].offset;
}

static void failing(int sig, siginfo_t *info, void *context)
{
    (void)info, (void)context;
    if (handled++)
        _exit(9);
    if (sig == SIGSEGV)
        call_with(do_load_inside, 0, 0, 0);
}

/* Of site i % 100; 1xx: in its own handler; 2xx: ignored; 3xx: blocked. */
static long die(long i)
{
    struct rlimit core = { RLIM_INFINITY, RLIM_INFINITY };
    sigset_t all;
    sigfillset(&all);
    setrlimit(RLIMIT_CORE, &core);
    install(SIG_DFL, 0);
    if (i / 100 == 1)
        install(failing, SA_SIGINFO);
    if (i / 100 == 2)
        install(SIG_IGN, 0);
    if (i / 100 == 3)
        sigprocmask(SIG_SETMASK, &all, NULL);
    now = &sites[i % 100];
    handled = 0;
    call_it(now->at == do_call_register ? NO_ADDRESS : now->at == do_divide ? (void *)42 : NULL, 0, 16);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "jump", jump },   { "skip", skip }, { "repair", repair }, { "slow", slow }, { "leave", leave }, { "use", use }, { "plain", plain },
        { "threads", threads }, { "fork", forks },
        { "once", once }, { "watch", watch }, { "unwind", unwind }, { "where", where }, { "die", die },     { 0 },
    };
    char name[] = "/tmp/sidestep-cut.XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cut = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (ftruncate(file, 4096) || cut == MAP_FAILED)
        return 3;
    return serve(argc, argv, table);
}
