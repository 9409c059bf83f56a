/* Arguments of USDT probes, as users of libbpf write it. */
#include "bpf.h"
#include <bpf/usdt.bpf.h>

long fires = 0, sum = 0, negatives = 0, constants = 0, memory = 0, variables = 0, counts = 0, failures = 0;
long twices = 0, twice_sum = 0;

SEC("usdt/usdt:demo:fired")
int BPF_USDT(on_fired, long n, int negative, int constant, long value)
{
    long variable;

    fires++;
    sum += n;
    negatives += negative;
    constants += constant;
    memory += value;
    if (bpf_usdt_arg(ctx, 4, &variable))
        failures++;
    variables += variable;
    if (!bpf_usdt_arg(ctx, 5, &variable))
        failures++;
    counts += bpf_usdt_arg_cnt(ctx);
    return 0;
}

SEC("usdt")
int BPF_USDT(on_twice, long n)
{
    twices++;
    twice_sum += n;
    return 0;
}
