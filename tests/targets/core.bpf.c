#include "bpf.h"
#include <bpf/bpf_core_read.h>

struct task_struct {
    int pid;
} __attribute__((preserve_access_index));

int last = 0;

SEC("uprobe/probed:job")
int of_the_kernel(struct pt_regs *ctx)
{
    /* Registers are fields of a structure on arm64, which must not become a relocation, too. */
    struct task_struct *task = (struct task_struct *)PT_REGS_PARM1(ctx);

    last = BPF_CORE_READ(task, pid);
    return 0;
}
