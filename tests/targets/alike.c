/* Two programs out of one source, with other names at the same addresses; and memory that is allocated in two processes. */
#include "serve.h"
#include <sys/wait.h>
#include <unistd.h>

PROBED long leaf(long x) { return x * 3 + 1; }

PROBED long CALLER(long x) { return leaf(x) + 1; }

static long work(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += CALLER(i);
    return sum;
}

static void *kept[1 << 12];

PROBED void before(long i) { kept[i] = malloc(100); }
PROBED void in_child(long i) { kept[i] = malloc(60); }
PROBED void in_parent(long i) { kept[i] = malloc(80); }

/* n blocks, which a child inherits and frees; it allocates others, as its parent does, at the same addresses. */
static long inherits(long n)
{
    for (long i = 0; i < n; i++)
        before(i);
    pid_t pid = fork();
    if (pid == 0)
        for (long i = 0; i < n; i++)
            free(kept[i]);
    for (long i = 0; i < n; i++)
        pid ? in_parent(n + i) : in_child(n + i);
    if (pid == 0)
        _exit(0);
    return waitpid(pid, NULL, 0) == pid;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "work", work }, { "inherits", inherits }, { 0 } };
    return serve(argc, argv, table);
}
