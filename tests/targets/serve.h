/* The command loop of the target programs: "NAME N" on stdin (or as arguments) runs a command, its answer is one
 * line on stdout. What a command answers is known beforehand, so a wrong answer means that a probe did harm. */
#pragma once
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kept out of line and opaque to the optimizer: a call in the source is a call in the code. */
#define PROBED __attribute__((noipa))

struct command {
    const char *name;
    long (*run)(long n);
};

static long serve_one(const struct command *table, const char *name, long n)
{
    for (; table->name; table++)
        if (!strcmp(table->name, name))
            return table->run(n);
    fprintf(stderr, "no command %s\n", name);
    exit(2);
}

static int serve(int argc, char **argv, const struct command *table)
{
    char line[128], name[64];
    if (argc > 2) {
        printf("%ld\n", serve_one(table, argv[1], atol(argv[2])));
        return argc > 3 ? atoi(argv[3]) : 0;
    }
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        long n = 0;
        if (sscanf(line, "%63s %ld", name, &n) < 1)
            continue;
        printf("%ld\n", serve_one(table, name, n));
        fflush(stdout);
    }
    return 0;
}
