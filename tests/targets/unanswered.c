/* A file of a file system that never gives its contents: who reads them waits for ever. The
   protocol is that of include/uapi/linux/fuse.h. */
#include "leaf.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#define HALF (64 << 10)
#define FILE_NODE 2

static char dir[] = "/tmp/unanswered-XXXXXX";
static ucontext_t lower;
static volatile int waits;
static int device = -1;

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t len)
{
    struct { struct fuse_out_header head; char data[256]; } out = { .head = { .unique = in->unique, .error = -error } };
    out.head.len = sizeof(out.head) + len;
    memcpy(out.data, data, len);
    if (write(device, &out, out.head.len) < 0)
        perror("fuse");
}

static struct fuse_attr attributes(unsigned long node)
{
    struct fuse_attr file = { .ino = node, .size = 2 * HALF, .nlink = 1, .mode = S_IFREG | 0644 };
    if (node != FILE_NODE)
        file.mode = S_IFDIR | 0755;
    return file;
}

/* Answers all but reads behind the first half. */
static void *file_system(void *unused)
{
    static char request[1 << 20], zeros[HALF];
    while (read(device, request, sizeof(request)) > 0) {
        const struct fuse_in_header *in = (void *)request;
        const struct fuse_read_in *read = (void *)(in + 1);
        struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 4096 };
        struct fuse_entry_out entry = { .nodeid = FILE_NODE, .attr = attributes(FILE_NODE), .attr_valid = 1000 };
        struct fuse_attr_out attr = { .attr = attributes(in->nodeid), .attr_valid = 1000 };
        struct fuse_open_out open = { .fh = 0 };
        struct { struct fuse_out_header head; char data[4096]; } page = { .head = { sizeof(page), 0, in->unique } };
        switch (in->opcode) {
        case FUSE_INIT: answer(in, 0, &init, sizeof(init)); break;
        case FUSE_LOOKUP: answer(in, 0, &entry, sizeof(entry)); break;
        case FUSE_GETATTR: answer(in, 0, &attr, sizeof(attr)); break;
        case FUSE_OPEN: answer(in, 0, &open, sizeof(open)); break;
        case FUSE_READ:
            if (read->offset >= HALF)
                break;
            page.head.len = sizeof(page.head) + (read->size < 4096 ? read->size : 4096);
            if (write(device, &page, page.head.len) < 0)
                perror("fuse");
            break;
        case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break;
        default: answer(in, ENOSYS, zeros, 0);
        }
    }
    return unused;
}

static void stand(void)
{
    waits = 1;
    for (;;)
        pause();
}

static void *run(void *stack)
{
    getcontext(&lower);
    lower.uc_stack.ss_sp = stack;
    lower.uc_stack.ss_size = HALF;
    makecontext(&lower, stand, 0);
    setcontext(&lower);
    return NULL;
}

/* 1: the file is the stack of a thread now. */
static long keep(long n)
{
    char options[100], path[100];
    char *stack;
    pthread_t thread;
    int file;
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0 || !mkdtemp(dir))
        return n;
    snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
    snprintf(path, sizeof(path), "%s/file", dir);
    if (mount("unanswered", dir, "fuse", MS_NOSUID | MS_NODEV, options)) {
        rmdir(dir);
        return n;
    }
    pthread_create(&thread, NULL, file_system, NULL);
    file = open(path, O_RDONLY);
    stack = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (stack == MAP_FAILED)
        return n;
    memset(stack, 1, HALF);
    pthread_create(&thread, NULL, run, stack);
    while (!waits)
        usleep(1000);
    return 1;
}

/* Ends the file system. */
static long give(long n)
{
    umount2(dir, MNT_DETACH);
    rmdir(dir);
    return close(device) + n;
}

static const struct command commands[] = {
    { "keep", keep }, { "give", give }, { "work", work }, { NULL, NULL },
};

int main(int argc, char **argv) { return serve(argc, argv, commands); }
