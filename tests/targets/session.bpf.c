/* A program at entries and returns; the returns of odd arguments are not wanted. */
#include "bpf.h"

long runs = 0;

SEC("uprobe.session/probed:other_job")
int session(struct pt_regs *ctx)
{
    __sync_fetch_and_add(&runs, 1);
    return PT_REGS_PARM1(ctx) & 1;
}
