/* Threads that wait in calls which the kernel ends with EINTR when a thread stops and goes on, with no handler in between
 * (signal(7)). `start 0` starts them. `eintr 0`: how often such a call has ended with EINTR. `work N` calls `step` N times. */
#include "serve.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int epoll, timed[2], full[2], listener, semaphores;
static sigset_t signals;
static long interrupted;

PROBED long step(long x)
{
    return x * 3 + 1;
}

static int waits_for_events(void)
{
    struct epoll_event event;
    return epoll_wait(epoll, &event, 1, -1);
}

static int waits_without_a_mask(void)
{
    struct epoll_event event;
    return epoll_pwait(epoll, &event, 1, -1, 0);
}

static int reads(void)
{
    char c;
    return read(timed[0], &c, 1);
}

static int receives(void)
{
    char c;
    return recv(timed[0], &c, 1, 0);
}

static int sends(void)
{
    char c = 0;
    return send(full[0], &c, 1, 0);
}

static int accepts(void)
{
    return accept(listener, 0, 0);
}

static int waits_for_a_signal(void)
{
    struct timespec time = {1000, 0};
    return sigtimedwait(&signals, 0, &time);
}

static int waits_for_a_semaphore(void)
{
    struct sembuf down = {0, -1, 0};
    return semop(semaphores, &down, 1);
}

static int (*const calls[])(void) = {waits_for_events, waits_without_a_mask, reads, receives, sends, accepts,
                                     waits_for_a_signal, waits_for_a_semaphore};

static void *work(void *call)
{
    for (;;)
        if ((*(int (*const *)(void))call)() < 0 && errno == EINTR)
            __atomic_fetch_add(&interrupted, 1, __ATOMIC_RELAXED);
        else
            usleep(1000);
    return 0;
}

static long start(long n)
{
    struct timeval time = {1000, 0};
    char bytes[4096] = {0};
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &signals, 0);
    epoll = epoll_create1(0);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    semaphores = semget(IPC_PRIVATE, 1, 0600);
    if (semaphores < 0 || listen(listener, 5) || socketpair(AF_UNIX, SOCK_STREAM, 0, timed) ||
        socketpair(AF_UNIX, SOCK_STREAM, 0, full))
        exit(3);
    setsockopt(timed[0], SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    while (send(full[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        ;
    setsockopt(full[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, work, (void *)&calls[i]))
            exit(3);
    }
    usleep(200000);
    return n;
}

static long eintr(long n)
{
    return n + __atomic_load_n(&interrupted, __ATOMIC_RELAXED);
}

static long run(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += step(i);
    return sum;
}

/* Removes what outlives the process. */
static long stop(long n)
{
    semctl(semaphores, 0, IPC_RMID);
    return n;
}

static const struct command commands[] = {{"start", start}, {"eintr", eintr}, {"work", run}, {"stop", stop}, {0}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
