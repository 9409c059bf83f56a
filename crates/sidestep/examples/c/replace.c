/* Another malloc runs instead of the C library's, and calls it. */
#include <stdio.h>
#include <stdlib.h>

#include "sidestep.h"

static void *(*original)(size_t);
static volatile size_t largest;

static void *noted(size_t size)
{
    if (size > largest)
        largest = size;
    return original(size);
}

int main(void)
{
    struct sidestep_probe probe = {
        .place = "libc:malloc", .replacement = (const void *)noted, .original = (void **)&original,
    };
    sidestep_session *session = sidestep_own();
    if (!session || sidestep_register(session, &probe, 1) < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    void *volatile block = malloc(12345678);
    free(block);
    if (sidestep_detach(session) < 0)
        return 1;
    block = malloc(23456789);
    free(block);
    printf("largest: %zu\n", (size_t)largest);
    /* The way to the original is still right. */
    block = noted(10);
    printf("block: %s\n", block ? "yes" : "no");
    free(block);
    return 0;
}
