// Functions that are probed, at each of their instructions, in A32 or T32.
#ifdef THUMB
#define CODE ".thumb\n"
#define OTHER ".arm\n"
#define UNDEFINED " .short 0xde00\n"
#define BRANCHES                                                                                                  \
    " cbz r0,2f\n1: subs r0,r0,#1\n it ne\n addne r2,r2,r1\n tst r2,#8\n ite eq\n eoreq r2,r2,#1\n ldrne.w r3,number\n" \
    " cmp r0,#2\n itt lo\n adclo r4,r4,r2\n addlo r5,r5,r4\n cmp r0,#0\n bne 1b\n2: b 6f\n nop\n6: cbnz r1,7f\n nop\n"  \
    "7: bx lr\n"
#define COUNTER " mov r10,pc\n add r10,pc\n"
#else
#define CODE ".arm\n"
#define OTHER ".thumb\n"
#define UNDEFINED " .word 0xe7f000f0\n"
#define BRANCHES                                                                                                     \
    " cmp r0,#0\n beq 2f\n1: subs r0,r0,#1\n addne r2,r2,r1\n tst r2,#8\n eoreq r2,r2,#1\n ldrne r3,number\n cmp r0,#2\n" \
    " adclo r4,r4,r2\n addlo r5,r5,r4\n cmp r0,#0\n bne 1b\n2: b 6f\n nop\n6: bx lr\n"
#define COUNTER " mov r10,pc\n add r11,pc,r3\n"
#endif

#define FUNCTION_IN(code, name, body)                                                                     \
    code ".p2align 2\n.globl " #name "\n.type " #name ",%function\n" #name ":\n" body ".globl end_" #name \
         "\nend_" #name ":\n"
#define FUNCTION(name, body) FUNCTION_IN(CODE, name, body)

#define FUNCTIONS                                                                                                   \
    ".syntax unified\n"                                                                                             \
    FUNCTION(plain, " push {r4,r5,r7,lr}\n mov r7,sp\n sub sp,sp,#16\n vstr d8,[sp,#8]\n mov r4,r0\n add r0,r0,r1\n"   \
                    " vmov d8,r0,r1\n bl leaf\n add r0,r0,r4\n adds r5,r0,r1\n vmov r2,r3,d8\n vldr d8,[sp,#8]\n"       \
                    " add sp,sp,#16\n pop {r4,r5,r7,pc}\n")                                                          \
    FUNCTION(leaf, " subs r3,r0,#5\n bhi 1f\n sub r0,r3,r0\n1: adc r12,r3,#1\n eor r0,r0,r12\n bx lr\n")               \
    FUNCTION(near, " adr r2,number\n ldr r3,[r2]\n ldr r5,number\n ldrh r6,number+2\n ldrsb r7,number+5\n"             \
                   " ldrd r8,r9,number\n vldr d1,number\n vldr s5,number+8\n" COUNTER " add r0,r3,r5\n bx lr\n")     \
    FUNCTION(branches, BRANCHES)                                                                                    \
    FUNCTION(calls, " push {r4,lr}\n mov r4,r12\n movw r12,#:lower16:leaf\n movt r12,#:upper16:leaf\n blx r12\n"       \
                    " movw lr,#:lower16:leaf\n movt lr,#:upper16:leaf\n blx lr\n blx mirror\n mov r12,r4\n"            \
                    " pop {r4,lr}\n b leaf\n")                                                                       \
    FUNCTION(odd, " push {lr}\n add r2,sp,#4\n str r0,[sp,#-4]!\n mov r3,#7\n push {r1}\n pop {r3}\n ldr r0,[sp],#4\n" \
                  " pop {pc}\n")                                                                                    \
    FUNCTION(trapped, UNDEFINED " mov r0,#9\n bx lr\n")                                                              \
    FUNCTION(ends, " cmp r0,#4\n bhi leaf\n add r0,r0,#1\n bx lr\n")                                                 \
    FUNCTION(native, " movw r12,#:lower16:NATIVE_CODE\n movt r12,#:upper16:NATIVE_CODE\n bx r12\n")                  \
    FUNCTION(nothing, " bx lr\n")                                                                                    \
    FUNCTION(other, " movw r0,#4242\n bx lr\n")                                                                      \
    FUNCTION_IN(OTHER, mirror, " eor r0,r0,#3\n bx lr\n")                                                            \
    ".p2align 3\nnumber: .word 0x55667788,0x11228344,0x99aabbcc,0x12345678,0\n .arm\n .p2align 2\n"
