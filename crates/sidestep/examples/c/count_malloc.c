/* How often does a piece of this program allocate memory? */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "sidestep.h"

static uint64_t hits(sidestep_session *session)
{
    struct sidestep_info info;
    return sidestep_list(session, &info, 1) == 1 ? info.hits : 0;
}

int main(void)
{
    sidestep_session *session = sidestep_own();
    struct sidestep_probe probe = { .place = "libc:malloc" };
    if (!session || sidestep_register(session, &probe, 1) < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    uint64_t before = hits(session), after;
    void *volatile block;
    for (int i = 0; i < 100; i++) {
        block = malloc(100);
        free(block);
    }
    after = hits(session);
    /* The library allocates, too, while it is asked. */
    printf("at least 100: %s\n", after - before >= 100 && after - before < 200 ? "yes" : "no");
    return sidestep_detach(session) ? 1 : 0;
}
