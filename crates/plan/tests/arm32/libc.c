// Uses the C library, of which `arm32/libc.rs` probes functions, and says how often each probe was hit.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ctype.h>

#define PROBES 4096
extern unsigned long long hits[PROBES], cells[PROBES];
static unsigned long long counts[2][PROBES];
static unsigned long long text[64];
static char *words[200];

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int main(void) {
    unsigned long long random = 88172645463325252ull;
    char line[256];
    double sum = 0;
    for (int i = 0; i < 200; i++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int len = snprintf(line, sizeof line, "%llx-%d-%s-%.3f", random, i * 37, i % 3 ? "odd" : "even", i / 7.0);
        words[i] = malloc(len + 1);
        memcpy(words[i], line, len + 1);
        sum += strtod(words[i] + (strrchr(words[i], '-') - words[i]) + 1, 0);
        sum += strtol(words[i], 0, 16) % 1000;
    }
    qsort(words, 200, sizeof *words, compare);
    unsigned long long hash = 5381;
    for (int i = 0; i < 200; i++) {
        for (char *at = words[i]; *at; at++)
            hash = hash * 33 + toupper((unsigned char)*at);
        hash += strlen(words[i]) + (strstr(words[i], "odd") != 0) + (memchr(words[i], '7', 8) != 0);
        words[i] = realloc(words[i], 300 + i);
        memset(words[i] + 100, i, 100);
    }
    for (int i = 0; i < 200; i++)
        free(words[i]);
    // Before the probes see how this is written.
    for (int i = 0; i < PROBES; i++)
        counts[0][i] = hits[i], counts[1][i] = cells[i];
    fwrite(counts, sizeof counts, 1, stdout);
    printf("%llu %.6f\n", hash, sum);
    return 0;
}
