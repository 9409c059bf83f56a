/* Static probes with operands of every form: see operands.S. */
#include "serve.h"

long operands(long n);

static const struct command commands[] = {{"operands", operands}, {NULL, NULL}};

int main(int argc, char **argv)
{
    return serve(argc, argv, commands);
}
