/* Waits for its commands at the deepest point that its stack has ever had, but for two pages. */
#include "leaf.h"
#include "serve.h"

PROBED static void touch(void)
{
    volatile char below[8192];
    below[0] = 1;
}

PROBED static int deep(int levels, int argc, char **argv)
{
    static const struct command table[] = { { "work", work }, { 0 } };
    volatile char frame[1000];
    frame[0] = 0;
    touch();
    return frame[0] + (levels ? deep(levels - 1, argc, argv) : serve(argc, argv, table));
}

int main(int argc, char **argv) { return deep(3000, argc, argv); }
