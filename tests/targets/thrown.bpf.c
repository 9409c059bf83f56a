/* A USDT probe of a library. */
#include "bpf.h"
#include <bpf/usdt.bpf.h>

long throws = 0, objects = 0;

SEC("usdt/libstdc++.so.6:libstdcxx:throw")
int BPF_USDT(on_throw, void *exception, void *type)
{
    __sync_fetch_and_add(&throws, 1);
    if (exception && type)
        __sync_fetch_and_add(&objects, 1);
    return 0;
}
