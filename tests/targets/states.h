/* For functions that take registers from words of memory and put them there, in programs of both widths. */
#include "widths.h"
#ifdef __i386__
#define WORD    4
#define AT(place) place
#else
#define WORD    8
#define AT(place) place(%rip)
#endif

        .macro  function name
        .globl  \name
        .type   \name, @function
        .p2align 4
\name:
        .endm
