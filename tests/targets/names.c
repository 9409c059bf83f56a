/* Names and strings that act on a terminal and look like rows. The names of the functions are put into the program behind the
 * compiler, in the place of these. */
#include "serve.h"
#include <sys/prctl.h>

/* 32 characters, which the test replaces. */
PROBED long name_that_the_test_replaces_0001(long n, const char *text) { return n + text[0]; }

static const char *const text = "t\x1b[2Jx\nFORGED 7\r\u202e\xff";

static long call(long n)
{
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += name_that_the_test_replaces_0001(i, text);
    return sum;
}

static const struct command commands[] = { { "call", call }, { 0 } };

int main(int argc, char **argv)
{
    prctl(PR_SET_NAME, "c\x1b[1m\nFORGED");
    return serve(argc, argv, commands);
}
