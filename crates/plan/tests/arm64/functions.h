// Functions that are probed, at each of their instructions.
#define FUNCTION(name, body) ".p2align 4\n.globl " #name "\n" #name ":\n" body ".globl end_" #name "\nend_" #name ":\n"

#define FUNCTIONS                                                                                                    \
    FUNCTION(plain, " stp x29,x30,[sp,#-48]!\n mov x29,sp\n stp x19,x20,[sp,#16]\n str d8,[sp,#32]\n mov x19,x0\n"   \
                    " add x0,x0,x1\n fmov d8,x0\n bl leaf\n add x0,x0,x19\n adds x20,x0,x1\n fmov x2,d8\n"           \
                    " ldr d8,[sp,#32]\n ldp x19,x20,[sp,#16]\n ldp x29,x30,[sp],#48\n ret\n")                        \
    FUNCTION(leaf, " subs x9,x0,#5\n b.hi 1f\n sub x0,x9,x0\n1: csinc x10,x9,x0,hi\n eor x0,x0,x10\n ret\n")         \
    FUNCTION(near, " adr x2,number\n ldr x3,[x2]\n adrp x4,number\n add x4,x4,:lo12:number\n ldr x5,number\n"      \
                   " ldr w6,number\n ldrsw x7,number+16\n ldr q0,number\n ldr d1,number+16\n ldr s2,number+16\n" \
                   " prfm pldl1keep,number\n add x0,x3,x5\n ret\n")                                               \
    FUNCTION(branches, " cbz x0,2f\n1: sub x0,x0,#1\n add x2,x2,x1\n tbz x2,#3,3f\n eor x2,x2,#1\n3: tbnz w2,#1,4f\n" \
                       " add x3,x3,x2\n4: cmp x0,#2\n b.lo 5f\n adc x4,x4,x2\n5: cbnz x0,1b\n2: b 6f\n nop\n6: ret\n") \
    FUNCTION(calls, " stp x29,x30,[sp,#-32]!\n str x20,[sp,#16]\n mov x20,x16\n adr x16,leaf\n blr x16\n"            \
                    " adr x9,leaf\n mov x16,x20\n blr x9\n ldr x20,[sp,#16]\n ldp x29,x30,[sp],#32\n b leaf\n")      \
    FUNCTION(signs, " paciasp\n stp x29,x30,[sp,#-16]!\n mov x29,sp\n add x0,x0,#7\n bl leaf\n"                      \
                    " ldp x29,x30,[sp],#16\n autiasp\n ret\n")                                                       \
    FUNCTION(trapped, " brk #0\n mov x0,#9\n ret\n")                                                                 \
    FUNCTION(ends, " cmp x0,#4\n b.hi leaf\n add x0,x0,#1\n ret\n")                                                  \
    FUNCTION(native, " ldr x17,=NATIVE_CODE\n br x17\n .ltorg\n")                                                  \
    FUNCTION(nothing, " ret\n")                                                                                    \
    FUNCTION(other, " movz x0,#4242\n ret\n")                                                                 \
    ".p2align 4\nnumber: .quad 0x1122334455667788,0x99aabbccddeeff00,0x89abcdef80000001\n"
