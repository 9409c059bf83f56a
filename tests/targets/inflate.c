/* Real code at work: zlib takes apart what it has packed. The library comes without headers. */
#include "serve.h"

int compress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);
int uncompress(unsigned char *, unsigned long *, const unsigned char *, unsigned long);

static unsigned char text[20000], packed[30000], out[sizeof text];

/* Checksum over n rounds. */
static long rounds(long n)
{
    unsigned long packed_len = sizeof packed, sum = 0;
    unsigned seed = 1;
    for (size_t i = 0; i < sizeof text; i++) {
        seed = seed * 1103515245 + 12345;
        text[i] = (seed >> 16) % 7 < 5 ? "the quick brown fox"[i % 19] : seed >> 20;
    }
    if (compress(packed, &packed_len, text, sizeof text))
        return -1;
    for (long k = 0; k < n; k++) {
        unsigned long len = sizeof out;
        memset(out, 0, sizeof out);
        sum = sum * 31 + uncompress(out, &len, packed, packed_len);
        for (size_t i = 0; i < len; i++)
            sum = sum * 31 + out[i];
    }
    return sum & 0x7fffffff;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "rounds", rounds }, { 0 } };
    return serve(argc, argv, table);
}
