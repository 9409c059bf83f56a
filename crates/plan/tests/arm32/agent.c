// The agent's part, for `libc.c`.
typedef unsigned int u32;
typedef unsigned long long u64;
#define PROBES 4096
struct entry {
    u64 key, cells, state, owner;
};
struct entry buckets[8192];
u64 hits[PROBES], cells[PROBES];
char descs[PROBES * DESC_LEN];
asm(".section .generated,\"awx\"\n .globl generated\n generated: .skip 0x200000\n .text\n");
#define CLOBBER() \
    asm volatile("mov r1,#1\n mov r2,#2\n mov r3,#3\n mov r12,#12\n cmp r0,r0\n" ::: "r1", "r2", "r3", "r12", "lr", "cc", "memory")

struct entry *agent_slot(u32 private, u64 tp) {
    // sidestep_wire::lookup::bucket. Before there is a thread pointer, nothing is counted.
    struct entry *entry = &buckets[(tp * 0x1e3779b1u >> 32) & 8191];
    if (tp)
        *entry = (struct entry){tp, (u32)cells, (u32)hits, tp};
    CLOBBER();
    return tp ? entry : 0;
}

u64 agent_hit(void *regs, u32 state, u32 private, u32 probe) {
    hits[probe]++;
    CLOBBER();
    return 0;
}
