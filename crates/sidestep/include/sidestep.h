/*
 * Sidestep: probes for live processes.
 *
 * A session has the probes of one process: this one, or another. Probes are registered,
 * disabled, enabled, unregistered and listed. In another process they count hits. In this one
 * they run functions of it: at the entry of a function (or at any instruction), at its return,
 * or instead of it.
 *
 * Link with -lsidestep. All functions may be called from any thread; of one session, one does
 * its work at a time. None may be called from a handler, and a session belongs to the process
 * that made it, not to the children that this forks.
 *
 * WHAT A HANDLER MAY DO. It runs on the stack of the thread that made the hit, at whatever this
 * was doing: in the middle of malloc, for example, if that is probed. It may call what could be
 * called there. It must return: not by longjmp, not by an exception. Vector and x87 registers,
 * flags and errno are saved around it. A hit by the same thread while it is in a handler, of
 * whatever probe, runs no handler: it counts as missed; probes that only count, and functions
 * that replace others, go on. In a child that is forked nothing is counted and no handler runs;
 * functions stay replaced.
 *
 * Handlers and their data have to stay until the session is detached: a thread may be in one
 * after it was unregistered.
 */
#ifndef SIDESTEP_H
#define SIDESTEP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions that give an int give if they fail; sidestep_error() says it in words. */
#define SIDESTEP_EINVAL (-1)  /* an argument: a place that does not parse, a registration that is not there */
#define SIDESTEP_EREFUSED (-2) /* the target cannot be probed, or not at this place */
#define SIDESTEP_EGONE (-3)   /* the controller of the session has died, or the session belongs to the parent */
#define SIDESTEP_ESYSTEM (-4) /* this process could not do what is needed */

/* The probes of one process. */
typedef struct sidestep_session sidestep_session;

/*
 * The registers at the probed instruction, in the order of the kernel's struct pt_regs, and a
 * word that is 0 at the entry of a call and at its return what the handler of the entry has left
 * there.
 *
 * What is written to a general register goes on in that register, but for rsp. rip can be
 * changed by a handler of the entry without one of the return: the thread goes on there, with
 * the stack as it is.
 *
 * In 32-bit programs rax is eax, and so on; upper halves are 0, and what is written to them is
 * lost.
 */
struct sidestep_context {
    uint64_t r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax;
    uint64_t rip, cs, eflags, rsp, ss;
    uint64_t cookie;
    uint64_t xmm[8]; /* the lower halves of xmm0 to xmm7, to look at: changes stay here */
};

/* At the entry of a function, where word n of what is passed on the stack lies, counted from 0,
 * to read it or to change it. In 32-bit programs that is all: integers and pointers have a word
 * each, a long long and a double have two. In 64-bit programs it is what does not fit into
 * registers; there is nothing behind the last one. */
static inline uintptr_t *sidestep_stack_argument(const struct sidestep_context *context, size_t n)
{
    return (uintptr_t *)(uintptr_t)context->rsp + 1 + n; /* the return address comes first */
}

/* At the entry of a function, where its argument n lies, counted from 0, to read it or to change
 * it: in 64-bit programs and in 32-bit ones, if it and those before it are integers and pointers
 * of a word at most. */
static inline uintptr_t *sidestep_argument(struct sidestep_context *context, size_t n)
{
#ifdef __x86_64__
    switch (n) {
    case 0: return &context->rdi;
    case 1: return &context->rsi;
    case 2: return &context->rdx;
    case 3: return &context->rcx;
    case 4: return &context->r8;
    case 5: return &context->r9;
    }
    n -= 6;
#endif
    return sidestep_stack_argument(context, n);
}

typedef void (*sidestep_handler)(struct sidestep_context *context, void *data);

/* The handlers use general registers only (compiled with -mgeneral-regs-only, or the attribute
 * target("general-regs-only")) and leave errno alone: nothing of this is saved around them,
 * which is faster. */
#define SIDESTEP_GENERAL_ONLY 1u

/* A probe that is to be registered. What is not wanted is 0. */
struct sidestep_probe {
    /* Where: [OBJECT:]FUNC. OBJECT is a path or a library's short name; FUNC a name, a glob,
     * symbol+0xOFF, symbol+*, or 0xADDR, an address in the file. Or usdt:OBJECT:PROVIDER:NAME. */
    const char *place;
    /* Or, without a place: a function of this process, or an instruction of one. */
    const void *address;
    /* Called before the probed instruction, and when the function returns. */
    sidestep_handler on_entry;
    sidestep_handler on_return;
    /* Their second argument. */
    void *data;
    /* A function of the same type, which runs instead. Then there are no handlers. */
    const void *replacement;
    /* Gets the address at which the original can be called, before the replacement runs. It
     * stays right when the probe is gone. */
    void **original;
    /* SIDESTEP_GENERAL_ONLY. */
    unsigned flags;
};

/* What is at the site of a probe. */
#define SIDESTEP_ENABLED 0
#define SIDESTEP_DISABLED 1
#define SIDESTEP_GONE 2 /* its object was unloaded, or the process has ended */

/* A probe that was registered. Texts that are too long are cut. */
struct sidestep_info {
    int registration;
    int state;
    int optimized; /* a hit takes a jump now; 0: a trap, which is slow, or no hit is possible */
    int reserved;
    uint64_t address; /* of the site */
    uint64_t hits;
    uint64_t missed;
    char technique[32]; /* how it was put in: "jump", "trap", ... as `sidestep explain` has it */
    char name[256];     /* the function, demangled */
    char object[256];   /* path of its file */
};

/* A session of this process. NULL: see sidestep_error(). */
sidestep_session *sidestep_own(void);

/* A session of a process that runs. It is not touched until something is registered. */
sidestep_session *sidestep_attach(pid_t pid);

/* The same, and probes are switched while the threads run even in libraries that may be unloaded
 * at the same moment. */
sidestep_session *sidestep_own_live(void);
sidestep_session *sidestep_attach_live(pid_t pid);

/* Starts a command, found in PATH, with probes that are there before its first instruction;
 * their registrations are 0 and up. */
sidestep_session *sidestep_spawn(const char *const argv[], const struct sidestep_probe *probes, size_t count);

/* Registers probes, all or none. Gives the registration of the first; the others follow. Several
 * may be at one place, where they run in this order and are switched one by one; a place that
 * has a probe of an earlier registration is refused. */
int sidestep_register(sidestep_session *session, const struct sidestep_probe *probes, size_t count);

/* Gives the places of a registration their original code, and the probes again. Where other
 * registrations are, too, these go on. */
int sidestep_disable(sidestep_session *session, int registration);
int sidestep_enable(sidestep_session *session, int registration);

/* Makes the places of a registration jumps where that is possible, or traps (0), with all
 * registrations that are there. Traps are refused where the session takes none. */
int sidestep_optimize(sidestep_session *session, int registration, int on);

/* Takes the probes of a registration out. Its places can be registered again, if no other
 * registration is there. What it has taken of memory is taken back when others are registered
 * and no thread is in there. */
int sidestep_unregister(sidestep_session *session, int registration);

/* Describes the first `room` probes, and gives the number of all: a registration has one for
 * each place that it means. */
int sidestep_list(sidestep_session *session, struct sidestep_info *infos, size_t room);

/* Waits until the command of a session has ended. `status` gets its exit status, or 128 + the
 * signal that ended it. */
int sidestep_wait(sidestep_session *session, int *status);

/* Takes all probes out and frees the session: afterwards all code is what it was, and no thread
 * is in a handler. If a thread does not leave one in 3 seconds it fails, the session is freed
 * all the same, and the code of that handler has to stay. */
int sidestep_detach(sidestep_session *session);

/* What went wrong in this thread last, in one line, until its next call of one of these functions. */
const char *sidestep_error(void);

#ifdef __cplusplus
}
#endif
#endif
