/* One thread for each system call that may wait for ever. Each makes it by code that takes the number from a register right
 * before the call, so that a guard in front of the call displaces the call, too. A call that ends with EINTR is made again. */
#include "leaf.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/select.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* raw_call(number, a, b, c, d, e, f): the result of the kernel, or an error below 0. */
long raw_call(long number, long a, long b, long c, long d, long e, long f);
#ifdef __x86_64__
__asm__(".pushsection .text\n"
        ".globl raw_call\n.type raw_call, @function\nraw_call:\n.cfi_startproc\n"
        "push %r12\n.cfi_adjust_cfa_offset 8\n.cfi_rel_offset %r12, 0\n"
        "mov %rdi, %r12\nmov %rsi, %rdi\nmov %rdx, %rsi\nmov %rcx, %rdx\nmov %r8, %r10\nmov %r9, %r8\nmov 16(%rsp), %r9\n"
        "mov %r12d, %eax\nsyscall\n"
        "pop %r12\n.cfi_adjust_cfa_offset -8\n.cfi_restore %r12\nret\n"
        ".cfi_endproc\n.size raw_call, . - raw_call\n.popsection");
#elif defined __aarch64__
__asm__(".pushsection .text\n"
        ".globl raw_call\n.type raw_call, @function\nraw_call:\n.cfi_startproc\n"
        "mov x8, x0\nmov x0, x1\nmov x1, x2\nmov x2, x3\nmov x3, x4\nmov x4, x5\nmov x5, x6\nsvc 0\nret\n"
        ".cfi_endproc\n.size raw_call, . - raw_call\n.popsection");
#elif defined __arm__
__asm__(".pushsection .text\n.syntax unified\n.thumb\n.thumb_func\n"
        ".globl raw_call\n.type raw_call, %function\nraw_call:\n.cfi_startproc\n"
        "push {r4, r5, r7, lr}\n.cfi_adjust_cfa_offset 16\n.cfi_rel_offset lr, 12\n"
        "mov r7, r0\nmov r0, r1\nmov r1, r2\nmov r2, r3\nldr r3, [sp, #16]\nldr r4, [sp, #20]\nldr r5, [sp, #24]\n"
        "svc 0\npop {r4, r5, r7, pc}\n"
        ".cfi_endproc\n.size raw_call, . - raw_call\n.popsection");
#else
__asm__(".pushsection .text\n"
        ".globl raw_call\n.type raw_call, @function\nraw_call:\n.cfi_startproc\n"
        "push %ebx\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %ebx, 0\n"
        "push %esi\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %esi, 0\n"
        "push %edi\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %edi, 0\n"
        "push %ebp\n.cfi_adjust_cfa_offset 4\n.cfi_rel_offset %ebp, 0\n"
        "mov 24(%esp), %ebx\nmov 28(%esp), %ecx\nmov 32(%esp), %edx\nmov 36(%esp), %esi\nmov 40(%esp), %edi\n"
        "mov 44(%esp), %ebp\n"
        "mov 20(%esp), %eax\nint $0x80\n"
        "pop %ebp\n.cfi_adjust_cfa_offset -4\n.cfi_restore %ebp\n"
        "pop %edi\n.cfi_adjust_cfa_offset -4\n.cfi_restore %edi\n"
        "pop %esi\n.cfi_adjust_cfa_offset -4\n.cfi_restore %esi\n"
        "pop %ebx\n.cfi_adjust_cfa_offset -4\n.cfi_restore %ebx\nret\n"
        ".cfi_endproc\n.size raw_call, . - raw_call\n.popsection");
#endif

struct waiting {
    long number;
    long arguments[6];
    /* Of the thread; 0 before it has begun. */
    int tid;
    /* It ended, with this result: the kernel has no such call, or does not let us wait. */
    int ended;
    long result;
};

static struct waiting all[128];
static int count;

static void add(long number, long a, long b, long c, long d, long e, long f)
{
    all[count++] = (struct waiting){ number, { a, b, c, d, e, f }, 0, 0, 0 };
}

static void *wait_for_ever(void *argument)
{
    struct waiting *w = argument;
    const long *a = w->arguments;
    long result;
    __atomic_store_n(&w->tid, (int)syscall(SYS_gettid), __ATOMIC_RELEASE);
    do
        result = raw_call(w->number, a[0], a[1], a[2], a[3], a[4], a[5]);
    while (result == -EINTR);
    w->result = result;
    __atomic_store_n(&w->ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

static int silent(void)
{
    int ends[2];
    if (pipe(ends))
        abort();
    return ends[0];
}

/* The end of a pipe or socket into which nothing fits. */
static int full(int end)
{
    static const char bytes[4096];
    fcntl(end, F_SETFL, O_NONBLOCK);
    while (write(end, bytes, sizeof bytes) > 0)
        ;
    while (write(end, bytes, 1) > 0)
        ;
    fcntl(end, F_SETFL, 0);
    return end;
}

static int full_pipe(void)
{
    int ends[2];
    if (pipe(ends))
        abort();
    return full(ends[1]);
}

static int socket_end(int which)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        abort();
    return ends[which];
}

/* Its address is named after this process. */
static socklen_t address_of(struct sockaddr_un *at, const char *what)
{
    memset(at, 0, sizeof *at);
    at->sun_family = AF_UNIX;
    int len = snprintf(at->sun_path + 1, sizeof at->sun_path - 1, "blocked.%s.%d", what, (int)getpid());
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}

static int listener(const char *what)
{
    struct sockaddr_un at;
    socklen_t len = address_of(&at, what);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, len) || listen(fd, 0))
        abort();
    return fd;
}

static struct iovec piece;
static char buffer[4096];
static struct msghdr message;
static struct mmsghdr messages;
static struct pollfd polls;
static fd_set reads[2];
static uint64_t nothing_open = UINT64_MAX;
static struct { const void *set; size_t len; } with_mask = { &nothing_open, 8 };
static struct epoll_event event;
static int word, far;
static struct futex_waitv waits;
static struct timespec hours = { 100000, 0 };
static int64_t hours64[2] = { 100000, 0 };
static uint64_t user_signal = 1ull << (SIGUSR1 - 1);
static char fifo[64], locked[64];
static struct sockaddr_un busy;
static struct { long type; char text[8192]; } letter = { 1, "" };

static void locks(void)
{
    static struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    snprintf(locked, sizeof locked, "/tmp/blocked.%d.lock", (int)getpid());
    int held = open(locked, O_CREAT | O_RDWR, 0600), other = open(locked, O_RDWR);
    unlink(locked);
    flock(held, LOCK_EX);
    add(SYS_flock, other, LOCK_EX, 0, 0, 0, 0);
    fcntl(held, F_OFD_SETLK, &whole);
#ifdef __LP64__
    add(SYS_fcntl, other, F_OFD_SETLKW, (long)&whole, 0, 0, 0);
#else
    static struct flock64 whole64 = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    add(SYS_fcntl64, other, F_OFD_SETLKW, (long)&whole64, 0, 0, 0);
#endif
}

static void queues(void)
{
    int semaphores = semget(IPC_PRIVATE, 1, 0600), empty = msgget(IPC_PRIVATE, 0600), filled = msgget(IPC_PRIVATE, 0600);
    static struct sembuf take = { 0, -1, 0 };
    while (msgsnd(filled, &letter, sizeof letter.text, IPC_NOWAIT) == 0)
        ;
#ifdef SYS_semop
    add(SYS_semop, semaphores, (long)&take, 1, 0, 0, 0);
    add(SYS_semtimedop, semaphores, (long)&take, 1, (long)&hours, 0, 0);
#else
    add(SYS_semtimedop_time64, semaphores, (long)&take, 1, (long)hours64, 0, 0);
#endif
    add(SYS_msgrcv, empty, (long)&letter, sizeof letter.text, 0, 0, 0);
    add(SYS_msgsnd, filled, (long)&letter, sizeof letter.text, 0, 0, 0);

    char name[64];
    struct mq_attr sizes = { .mq_maxmsg = 1, .mq_msgsize = 8 };
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "/blocked.%d.%d", (int)getpid(), i);
        int queue = mq_open(name, O_CREAT | O_RDWR, 0600, &sizes);
        mq_unlink(name);
        if (i == 0)
            add(SYS_mq_timedreceive, queue, (long)buffer, 8, 0, 0, 0);
        else if (mq_send(queue, "x", 1, 0) == 0)
            add(SYS_mq_timedsend, queue, (long)buffer, 1, 0, 0, 0);
    }
}

static void rings(void)
{
    static struct io_uring_params parameters;
    static struct io_event events[1];
    aio_context_t context = 0;
    long ring = syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring >= 0)
        add(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, 0, 0);
    if (syscall(SYS_io_setup, 8, &context) == 0) {
        add(SYS_io_getevents, (long)context, 1, 1, (long)events, 0, 0);
        add(SYS_io_pgetevents, (long)context, 1, 1, (long)events, 0, (long)&with_mask);
    }
}

static void sockets(void)
{
    struct sockaddr_un at;
    socklen_t len = address_of(&busy, "busy");
    listener("busy");
    int first = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(first, (struct sockaddr *)&busy, len))
        abort();
    add(SYS_connect, socket(AF_UNIX, SOCK_STREAM, 0), (long)&busy, len, 0, 0, 0);
    address_of(&at, "idle");
    int idle = listener("idle");
#ifdef SYS_accept
    add(SYS_accept, idle, 0, 0, 0, 0, 0);
#endif
    add(SYS_accept4, idle, 0, 0, 0, 0, 0);
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    messages.msg_hdr = message;
    add(SYS_recvfrom, socket_end(0), (long)buffer, 1, 0, 0, 0);
    add(SYS_recvmsg, socket_end(0), (long)&message, 0, 0, 0, 0);
    add(SYS_recvmmsg, socket_end(0), (long)&messages, 1, 0, 0, 0);
    add(SYS_sendto, full(socket_end(0)), (long)buffer, 4096, 0, 0, 0);
    add(SYS_sendmsg, full(socket_end(0)), (long)&message, 0, 0, 0, 0);
    add(SYS_sendmmsg, full(socket_end(0)), (long)&messages, 1, 0, 0, 0);
}

static void files(void)
{
    static struct open_how how = { .flags = O_RDONLY };
    snprintf(fifo, sizeof fifo, "/tmp/blocked.%d.fifo", (int)getpid());
    if (mkfifo(fifo, 0600))
        abort();
#ifdef SYS_open
    add(SYS_open, (long)fifo, O_RDONLY, 0, 0, 0, 0);
#endif
    add(SYS_openat, AT_FDCWD, (long)fifo, O_RDONLY, 0, 0, 0);
    add(SYS_openat2, AT_FDCWD, (long)fifo, (long)&how, sizeof how, 0, 0);
    int program = open("/proc/self/exe", O_RDONLY);
    piece = (struct iovec){ buffer, sizeof buffer };
    add(SYS_read, silent(), (long)buffer, 1, 0, 0, 0);
    add(SYS_read, eventfd(0, 0), (long)buffer, 8, 0, 0, 0);
    add(SYS_read, timerfd_create(CLOCK_MONOTONIC, 0), (long)buffer, 8, 0, 0, 0);
    add(SYS_read, inotify_init(), (long)buffer, 4096, 0, 0, 0);
    add(SYS_read, (long)syscall(SYS_signalfd4, -1, &user_signal, 8, 0), (long)buffer, 4096, 0, 0, 0);
    add(SYS_readv, silent(), (long)&piece, 1, 0, 0, 0);
    add(SYS_preadv2, silent(), (long)&piece, 1, -1, -1, 0);
    add(SYS_write, full_pipe(), (long)buffer, 1, 0, 0, 0);
    add(SYS_writev, full_pipe(), (long)&piece, 1, 0, 0, 0);
    add(SYS_pwritev2, full_pipe(), (long)&piece, 1, -1, -1, 0);
    add(SYS_splice, silent(), 0, full_pipe(), 0, 1, 0);
    add(SYS_tee, silent(), full_pipe(), 1, 0, 0, 0);
    add(SYS_vmsplice, full_pipe(), (long)&piece, 1, 0, 0, 0);
    add(SYS_sendfile, full_pipe(), program, 0, 1, 0, 0);
}

static void sets(void)
{
    int quiet = silent(), epoll = epoll_create(1);
    polls = (struct pollfd){ quiet, POLLIN, 0 };
    FD_SET(quiet, &reads[0]);
    FD_SET(quiet, &reads[1]);
    epoll_ctl(epoll, EPOLL_CTL_ADD, quiet, &event);
#ifdef SYS_poll
    add(SYS_poll, (long)&polls, 1, -1, 0, 0, 0);
    add(SYS_poll, (long)&polls, 1, 100000000, 0, 0, 0);
#endif
    add(SYS_ppoll, (long)&polls, 1, 0, (long)&nothing_open, 8, 0);
    add(SYS_pselect6, quiet + 1, (long)&reads[1], 0, 0, 0, (long)&with_mask);
#ifdef SYS__newselect /* SYS_select takes a structure there */
    add(SYS__newselect, quiet + 1, (long)&reads[0], 0, 0, 0, 0);
#elif defined SYS_select
    add(SYS_select, quiet + 1, (long)&reads[0], 0, 0, 0, 0);
#endif
#ifdef SYS_epoll_wait
    add(SYS_epoll_wait, epoll, (long)&event, 1, -1, 0, 0);
#endif
    add(SYS_epoll_pwait, epoll, (long)&event, 1, -1, (long)&nothing_open, 8);
#ifdef SYS_epoll_pwait2
    add(SYS_epoll_pwait2, epoll, (long)&event, 1, 0, (long)&nothing_open, 8);
#endif
}

static void times(void)
{
    waits = (struct futex_waitv){ .val = 0, .uaddr = (uintptr_t)&far, .flags = 2 };
    add(SYS_futex, (long)&word, FUTEX_WAIT, 0, 0, 0, 0);
    add(SYS_futex, (long)&word, FUTEX_WAIT, 0, (long)&hours, 0, 0);
    add(449 /* futex_waitv */, (long)&waits, 1, 0, 0, 0, 0);
    add(455 /* futex_wait */, (long)&word, 0, 0xffffffff, 2, 0, 0);
    add(SYS_nanosleep, (long)&hours, 0, 0, 0, 0, 0);
    add(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, (long)&hours, 0, 0, 0);
#ifdef SYS_pause
    add(SYS_pause, 0, 0, 0, 0, 0, 0);
#endif
    add(SYS_rt_sigsuspend, (long)&nothing_open, 8, 0, 0, 0, 0);
    add(SYS_rt_sigtimedwait, (long)&user_signal, 0, 0, 8, 0, 0);
    int child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            pause();
    }
    add(SYS_wait4, child, 0, 0, 0, 0, 0);
    add(SYS_waitid, P_PID, child, 0, WEXITED, 0, 0);
}

/* Starts them all; says how many. */
static long start(long n)
{
    pthread_t thread;
    sigset_t one;
    (void)n;
    /* What is between processes goes with this one. */
    if (unshare(CLONE_NEWIPC) && unshare(CLONE_NEWUSER | CLONE_NEWIPC))
        return -1;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    times();
    files();
    sockets();
    sets();
    queues();
    locks();
    rings();
    for (int i = 0; i < count; i++)
        if (pthread_create(&thread, NULL, wait_for_ever, &all[i]))
            return -1;
    return count;
}

static long tid(long n)
{
    int id;
    while ((id = __atomic_load_n(&all[n].tid, __ATOMIC_ACQUIRE)) == 0)
        usleep(100);
    return id;
}

/* Its number; below 0 behind the last. */
static long number(long n)
{
    return n < count ? all[n].number : -1;
}

/* What it ended with; 1: it waits. */
static long result(long n)
{
    return __atomic_load_n(&all[n].ended, __ATOMIC_ACQUIRE) ? all[n].result : 1;
}

static long finish(long n)
{
    unlink(fifo);
    return n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = {
        { "start", start }, { "tid", tid }, { "number", number }, { "result", result },
        { "work", work },   { "finish", finish }, { NULL, NULL },
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return serve(argc, argv, table);
}
