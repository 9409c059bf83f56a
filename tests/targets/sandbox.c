/* A program that confines itself: after "lock 0" any system call but those of its own loop kills it; after "lock 1" the
 * others fail with EPERM; after "lock 2" only process_vm_writev does harm: it kills. */
#include "serve.h"
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

PROBED long leaf(long x) { return x * 3 + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += leaf(i) == i * 3 + 1;
    return sum;
}

/* From here on the kernel asks `selector` at each system call, and would send SIGSYS in place of the call. */
static long dispatch(long unused)
{
    static char selector = SYSCALL_DISPATCH_FILTER_ALLOW;
    (void)unused;
    return prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, 0, 0, &selector);
}

static long lock(long errors)
{
#define ALLOW(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(SYS_read),
        ALLOW(SYS_write),
        ALLOW(SYS_exit_group),
        ALLOW(SYS_rt_sigreturn),
        ALLOW(SYS_lseek),
#if defined __i386__ || defined __arm__
        ALLOW(SYS_sigreturn),
        ALLOW(SYS_fstatat64),
        ALLOW(SYS__llseek),
        ALLOW(SYS_statx),
#else
        ALLOW(SYS_newfstatat),
#endif
        BPF_STMT(BPF_RET | BPF_K, errors ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_filter writes[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof filter / sizeof *filter, filter };
    if (errors == 2)
        program = (struct sock_fprog){ sizeof writes / sizeof *writes, writes };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static const struct command commands[] = { { "work", work }, { "lock", lock }, { "dispatch", dispatch }, { NULL, NULL } };

int main(int argc, char **argv) { return serve(argc, argv, commands); }
