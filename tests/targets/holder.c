/* A process that maps the memory of another one's session, which is none of its business.
 *     holder PID */
#include "serve.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static int take(const char *pid)
{
    char line[512], path[128], access[8];
    unsigned long start, end;
    snprintf(path, sizeof path, "/proc/%s/maps", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (!strstr(line, "/memfd:sidestep") || sscanf(line, "%lx-%lx %7s", &start, &end, access) != 3 || !strchr(access, 's'))
            continue;
        fclose(f);
        snprintf(path, sizeof path, "/proc/%s/map_files/%lx-%lx", pid, start, end);
        int fd = open(path, O_RDWR);
        return fd >= 0 && mmap(NULL, end - start, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED;
    }
    return 0;
}

static long same(long n) { return n; }

static const struct command commands[] = { { "same", same }, { 0 } };

int main(int argc, char **argv)
{
    char *none[] = { argv[0], NULL };
    if (argc < 2 || !take(argv[1]))
        return 3;
    return serve(1, none, commands);
}
