/* A function for each technique that a probe at its entry can get. Each is written in assembler within C, so that debug
 * information has its argument. A branch back to the second instruction, which is never taken, keeps a jump of five bytes out;
 * `add $0` as `05 00 00 00 00` leaves a pun no address but one in the function itself. */
#pragma once

#ifdef __i386__
#define BX "%ebx"
#define DI "%edi"
#else
#define BX "%rbx"
#define DI "%rdi"
#endif
#define NOP5 ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"
#define ADD_0 ".byte 0x05, 0x00, 0x00, 0x00, 0x00\n"
#define TECHNIQUE(name, ...) \
    __attribute__((naked, noipa, aligned(64))) long name(void *cell) { __asm__(__VA_ARGS__); }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
/* The first nop may stay in front of the jump. */
TECHNIQUE(t_nop_site, NOP5 NOP5 "ret")
TECHNIQUE(t_jump, "xor %eax, %eax\n mov $1, %eax\n ret")
TECHNIQUE(t_several, "push " BX "\n mov %edi, %ebx\n lea 1(" BX "), %eax\n pop " BX "\n ret")
TECHNIQUE(t_pun, "xor %eax, %eax\n 1: add %edi, %eax\n xor %edx, %edx\n jo 1b\n ret")
/* Where the jump leads is not known. */
TECHNIQUE(t_guarded, "push " BX "\n mov %edi, %ebx\n xor %eax, %eax\n jo 1f\n pop " BX "\n ret\n"
                     "1: add " DI ", " BX "\n jmp *" BX)
/* The padding of this function and the next takes the jump. */
TECHNIQUE(t_short, "xor %eax, %eax\n 1: " ADD_0 "jo 1b\n ret")
/* One byte. */
TECHNIQUE(t_trap, "clc\n 1: " ADD_0 "jo 1b\n ret")
#pragma GCC diagnostic pop
