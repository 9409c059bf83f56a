/* Has libcrypto mapped, and waits: for the time that attaching many functions takes. */
#include "serve.h"

/* Declared here: the headers are not needed, libcrypto.so.3 is. */
const char *OpenSSL_version(int);

static long version(long n) { return (long)strlen(OpenSSL_version(0)) * n; }

int main(int argc, char **argv)
{
    static const struct command table[] = { { "version", version }, { 0 } };
    return serve(argc, argv, table);
}
