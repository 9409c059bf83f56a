/* What does another program call? Probes are there before its first instruction. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "sidestep.h"

int main(void)
{
    const char *const argv[] = { "bash", "-c", "for i in 1 2 3; do echo $i; done >/dev/null; printf .; exit 5", NULL };
    struct sidestep_probe probes[] = { { .place = "bash:echo_builtin" }, { .place = "bash:printf_builtin" } };
    sidestep_session *session = sidestep_spawn(argv, probes, 2);
    int status;
    if (!session || sidestep_wait(session, &status) < 0) {
        fprintf(stderr, "%s\n", sidestep_error());
        return 1;
    }
    printf(" status %d\n", status);
    struct sidestep_info infos[4];
    int count = sidestep_list(session, infos, 4);
    for (int i = 0; i < count && i < 4; i++) {
        const char *file = strrchr(infos[i].object, '/');
        printf("%d %s %s %" PRIu64 " %d\n", infos[i].registration, file ? file + 1 : "", infos[i].name, infos[i].hits,
               infos[i].state);
    }
    return sidestep_detach(session) ? 1 : 0;
}
