/* The main thread is nearly always as deep on its stack as it has ever been, and the stack is full of data: as that of
 * programs that collect their garbage when the stack is used up. */
#include "serve.h"
#include "leaf.h"
#include <poll.h>
#include <stdint.h>

static volatile long rounds;

/* The lowest address of the main stack. */
static uintptr_t lowest(void)
{
    char line[256];
    unsigned long start = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]"))
            sscanf(line, "%lx", &start);
    fclose(maps);
    return start;
}

static __attribute__((noinline)) void spin(long n)
{
    for (volatile long i = 0; i < n; i++)
        leaf(i);
}

/* Goes down to the end of the mapping, and stays there for a while. */
static __attribute__((noinline)) void descend(uintptr_t end)
{
    volatile char data[256];
    memset((char *)data, 0x55, sizeof data);
    if ((uintptr_t)data > end + 1024)
        descend(end);
    else
        spin(20000);
    data[0]++;
}

static long progress(long n) { return rounds + n; }

int main(int argc, char **argv)
{
    static const struct command table[] = { { "rounds", progress }, { 0 } };
    struct pollfd input = { .fd = 0, .events = POLLIN };
    char line[128], name[64];
    long n = 0;
    uintptr_t end = lowest();
    if (argc > 2)
        return serve(argc, argv, table);
    descend(end);
    printf("ready\n");
    fflush(stdout);
    for (;; rounds++) {
        descend(end);
        spin(2000);
        if (poll(&input, 1, 0) == 0)
            continue;
        if (!fgets(line, sizeof line, stdin) || sscanf(line, "%63s %ld", name, &n) < 1)
            return 0;
        printf("%ld\n", serve_one(table, name, n));
        fflush(stdout);
    }
}
