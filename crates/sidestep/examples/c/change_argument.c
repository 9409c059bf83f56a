/* A function is called with another argument than the program gave it. */
#include <stdio.h>

#include "sidestep.h"

__attribute__((noinline)) unsigned twice(unsigned number)
{
    __asm__ volatile("");
    return 2 * number;
}

/* Nothing is saved around this handler but general registers. */
__attribute__((target("general-regs-only"))) static void at_most(struct sidestep_context *context, void *data)
{
    uintptr_t limit = *(const uintptr_t *)data, *number = sidestep_argument(context, 0);
    if (*number > limit)
        *number = limit;
}

int main(void)
{
    static uintptr_t limit = 10;
    struct sidestep_probe probe = {
        .address = (const void *)twice, .on_entry = at_most, .data = &limit, .flags = SIDESTEP_GENERAL_ONLY,
    };
    sidestep_session *session = sidestep_own();
    int id = session ? sidestep_register(session, &probe, 1) : -1;
    if (id < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    printf("probed: %u %u\n", twice(5), twice(50));
    if (sidestep_disable(session, id) < 0)
        return 1;
    printf("disabled: %u %u\n", twice(5), twice(50));
    if (sidestep_enable(session, id) < 0)
        return 1;
    printf("enabled: %u %u\n", twice(5), twice(50));
    if (sidestep_unregister(session, id) < 0)
        return 1;
    printf("unregistered: %u %u\n", twice(5), twice(50));
    if (sidestep_enable(session, id) != SIDESTEP_EINVAL)
        return 1;
    printf("%s\n", sidestep_error());
    return sidestep_detach(session) ? 1 : 0;
}
