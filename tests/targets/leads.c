/* Calls the functions of leads_asm.S, each n times, and checks what they return. */
#include "serve.h"
#include "call.h"

#define ALL(X) X(lead_push) X(lead_sub) X(lead_mov) X(lead_nop) X(lead_nop5) X(lead_endbr) X(lead_xor) X(lead_test) X(lead_long)
#ifdef __x86_64__
#define WIDE(X) X(lead_push2)
#else
#define WIDE(X)
#endif
#define PINNED(X) X(pinned_load) X(pinned_loop)

#define DECLARE(name) void name(void);
ALL(DECLARE) WIDE(DECLARE) PINNED(DECLARE)

#define CHECK(name) wrong += call_with(name, i, (long)&word, 0) != i + 1;

/* Number of wrong results. */
static long all(long n)
{
    long wrong = 0, word = 7;
    for (long i = 0; i < n; i++) {
        ALL(CHECK) WIDE(CHECK)
    }
    return wrong;
}

static long pinned(long n)
{
    long wrong = 0, word = 7;
    for (long i = 0; i < n; i++) {
        PINNED(CHECK)
    }
    return wrong;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "all", all }, { "pinned", pinned }, { NULL, NULL } };
    return serve(argc, argv, table);
}
