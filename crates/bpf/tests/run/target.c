// Runs compiled programs of arm64, one after the other, each on a buffer of its own. What is read
// is for each program: the length of its code, the code, and the buffer. What is written: the
// result, the time that was left, whether a register that calls keep has changed, and the buffer.
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t u64;
typedef u64 function(u64, u64, u64, u64, u64, void *);

struct table {
    u64 none[9];
    function *repeat, *stack, *mix;
    u64 cells, stamp;
};

static u64 repeat(u64 times, u64 code, u64 context, u64 d, u64 e, void *table) {
    u64 sum = 0;
    for (u64 i = 0; i < times; i++) sum += ((function *)code)(i, context, 0, 0, 0, table);
    return sum;
}

static u64 mix(u64 a, u64 b, u64 c, u64 d, u64 e, void *table) {
    u64 args[] = {a, b, c, d, e}, sum = 7;
    for (u64 n = 0; n < 5; n++) sum = (sum << 9 | sum >> 55) ^ args[n] * (2 * (n + 1) + 1);
    // What calls may change.
    asm volatile("mov x1, #-1\n mov x2, #-2\n mov x3, #-3\n mov x4, #-4\n mov x5, #-5\n mov x7, #-7\n"
                 "mov x8, #-8\n mov x9, #-9\n mov x10, #-10\n mov x11, #-11\n mov x16, #-16\n mov x17, #-17" ::
                     : "x1", "x2", "x3", "x4", "x5", "x7", "x8", "x9", "x10", "x11", "x16", "x17");
    return sum;
}

u64 stack(u64, u64, u64, u64, u64, void *);
u64 call(void *code, void *context, void *table, u64 *kept);
asm("stack: mov x0, sp\n ret\n"
    "call:\n"
    "stp x29, x30, [sp, #-112]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n"
    "stp x23, x24, [sp, #48]\n stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n str x3, [sp, #96]\n"
    "mov x16, x0\n mov x0, x1\n mov x5, x2\n"
    "mov x19, #19\n mov x20, #20\n mov x21, #21\n mov x22, #22\n mov x23, #23\n mov x24, #24\n"
    "mov x25, #25\n mov x26, #26\n mov x27, #27\n mov x28, #28\n mov x29, #29\n"
    "blr x16\n"
    "ldr x1, [sp, #96]\n stp x19, x20, [x1]\n stp x21, x22, [x1, #16]\n stp x23, x24, [x1, #32]\n"
    "stp x25, x26, [x1, #48]\n stp x27, x28, [x1, #64]\n str x29, [x1, #80]\n"
    "ldp x19, x20, [sp, #16]\n ldp x21, x22, [sp, #32]\n ldp x23, x24, [sp, #48]\n"
    "ldp x25, x26, [sp, #64]\n ldp x27, x28, [sp, #80]\n ldp x29, x30, [sp], #112\n ret\n");

static int all(int write_, void *at, size_t len) {
    while (len) {
        ssize_t n = write_ ? write(1, at, len) : read(0, at, len);
        if (n <= 0) return 0;
        at = (char *)at + n;
        len -= n;
    }
    return 1;
}

int main(void) {
    int rwx = PROT_READ | PROT_WRITE | PROT_EXEC, fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *buffer = mmap((void *)BUFFER, 4096, PROT_READ | PROT_WRITE, fixed, -1, 0);
    char *code = mmap((void *)CODE, CODE_LEN, rwx, fixed, -1, 0);
    if (buffer != (char *)BUFFER || code != (char *)CODE) return 1;
    u64 len;
    while (all(0, &len, 8)) {
        if (len > CODE_LEN || !all(0, code, len) || !all(0, buffer, 256)) return 2;
        __builtin___clear_cache(code, code + len);
        struct table table = {{0}, repeat, stack, mix, (u64)buffer, 0};
        u64 kept[11], out[3] = {0};
        out[0] = call(code, buffer, &table, kept);
        out[1] = table.stamp;
        for (int i = 0; i < 11; i++) out[2] |= kept[i] != 19 + i;
        if (!all(1, out, sizeof out) || !all(1, buffer, 256)) return 3;
    }
    return 0;
}
