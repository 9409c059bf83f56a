/* A thread that has the thread pointer of the one that made it: what runtimes without a C library could make. */
#include "leaf.h"
#include "serve.h"
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char stack[65536] __attribute__((aligned(16)));
static volatile int over;
static volatile pid_t alive;

/* Nothing of the C library, whose data it would share. */
static int twin(void *arg)
{
    struct timespec ms = { 0, 1000000 };
    (void)arg;
    while (!over)
        syscall(SYS_nanosleep, &ms, NULL);
    return 0;
}

static long begin(long n)
{
    over = 0;
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
    flags |= CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
    return clone(twin, stack + sizeof stack, flags, NULL, &alive, NULL, &alive) < 0 ? -1 : n;
}

static long end(long n)
{
    over = 1;
    /* The kernel writes 0 there when the thread is gone. */
    while (alive)
        usleep(1000);
    return n;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "begin", begin }, { "end", end }, { "work", work }, { 0 } };
    return serve(argc, argv, table);
}
