/* Two handlers at one place, switched one by one, by a jump or a trap. */
#include <stdio.h>

#include "sidestep.h"

__attribute__((noinline)) unsigned twice(unsigned number)
{
    __asm__ volatile("");
    return 2 * number;
}

static void add(struct sidestep_context *context, void *data)
{
    *sidestep_argument(context, 0) += *(const unsigned *)data;
}

int main(void)
{
    static unsigned one = 1, ten = 10;
    struct sidestep_probe probes[] = {
        { .address = (const void *)twice, .on_entry = add, .data = &one },
        { .address = (const void *)twice, .on_entry = add, .data = &ten },
    };
    sidestep_session *session = sidestep_own_live();
    int first = session ? sidestep_register(session, probes, 2) : -1;
    if (first < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    printf("both: %u\n", twice(0));
    if (sidestep_disable(session, first) < 0)
        return 1;
    printf("the second: %u\n", twice(0));
    struct sidestep_info infos[2];
    for (int on = 0; on < 2; on++) {
        if (sidestep_optimize(session, first + 1, on) < 0 || sidestep_list(session, infos, 2) != 2)
            return 1;
        printf("%s: %u\n", infos[1].optimized ? "jump" : "trap", twice(0));
    }
    if (sidestep_enable(session, first) < 0 || sidestep_unregister(session, first + 1) < 0)
        return 1;
    printf("the first: %u\n", twice(0));
    return sidestep_detach(session) ? 1 : 0;
}
