/* The functions of short_asm.S, and whether all of them answer rightly. */
#pragma once
#include "call.h"

void loop_at_2(void), loop_at_4(void), three_bytes(void), behind_three(void), only_ret(void), behind_ret(void), ret_padded(void);
void call_near(void), call_inside(void), call_first(void), jumps_away(void), jumped_to(void), branch_first(void);
void counts_down(void), reads_rip(void), red_zone(void), in_rbx(void);

#define SHORT(function, argument) (int)call_with(function, argument, 0, 0)
#define CALLING(function, argument, callee) (int)call_with(function, argument, (long)(callee), 0)

static int answer(void) { return 41; }

/* Number of wrong results of all functions, once each. */
static long check_once(int i)
{
    int k = i % 50;
    long wrong = SHORT(loop_at_2, k + 1) != (k + 1) * (k + 2) / 2;
    wrong += SHORT(loop_at_4, k + 1) != 2 * (k + 1);
    wrong += SHORT(three_bytes, i) != i;
    wrong += SHORT(behind_three, i) != i + 1;
    only_ret();
    wrong += SHORT(behind_ret, i) != i + 2;
    ret_padded();
    wrong += CALLING(call_inside, i, answer) != 42;
    wrong += CALLING(call_first, i, answer) != 42;
    wrong += SHORT(jumps_away, i) != i + 3;
    wrong += SHORT(branch_first, k) != (k ? k + 4 : 77);
    wrong += SHORT(counts_down, k) != k;
    wrong += SHORT(reads_rip, i) != i + 40;
    wrong += SHORT(red_zone, k) != (k < 5 ? k + 100 : k);
    return wrong;
}
