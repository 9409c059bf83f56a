/* A read from a pipe that a worker of io_uring does: a thread of the kernel in this process, for as long as nothing is
 * in the pipe. */
#include "serve.h"
#include <dirent.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

PROBED long leaf(long x) { return x * 3 + 1; }

static struct io_uring_params parameters;
static int ring, ends[2];
static char *submissions, *completions, buffer[64];
static struct io_uring_sqe *entries;

static void *map(size_t length, off_t what)
{
    return mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);
}

/* How many threads there are; -1: there is no io_uring. */
static long submit(long n)
{
    ring = syscall(SYS_io_uring_setup, 4, &parameters);
    if (ring < 0 || pipe(ends))
        return -1;
    submissions = map(parameters.sq_off.array + 4 * parameters.sq_entries, IORING_OFF_SQ_RING);
    completions = map(parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    entries = map(parameters.sq_entries * sizeof *entries, IORING_OFF_SQES);
    entries[0] = (struct io_uring_sqe){ .opcode = IORING_OP_READ, .flags = IOSQE_ASYNC, .fd = ends[0],
                                        .addr = (unsigned long)buffer, .len = sizeof buffer, .off = -1 };
    *(unsigned *)(submissions + parameters.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(submissions + parameters.sq_off.tail), 1, __ATOMIC_RELEASE);
    if (syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) != 1)
        return -1;
    for (;;) {
        long threads = 0;
        DIR *tasks = opendir("/proc/self/task");
        for (struct dirent *task; (task = readdir(tasks));)
            threads += task->d_name[0] != '.';
        closedir(tasks);
        if (threads > 1)
            return threads + n;
        usleep(1000);
    }
}

/* So many bytes come into the pipe. The answer is what the read gives. */
static long feed(long n)
{
    if (write(ends[1], buffer, n) != n)
        return -1;
    if (syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
        return -1;
    return ((struct io_uring_cqe *)(completions + parameters.cq_off.cqes))->res;
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
    static const struct command table[] = { { "submit", submit }, { "feed", feed }, { "work", work }, { 0 } };
    return serve(argc, argv, table);
}
