/* Static probes for C and C++ (USDT): places in a program that its authors name, with values to
 * look at there.
 *
 *     #include <sidestep/sdt.h>
 *
 *     SIDESTEP_PROBE(server, request, id, length);
 *
 * A probe that nobody listens to is one long nop, and its arguments are computed. The note that
 * describes it is the one that all tracers read (section .note.stapsdt): Sidestep, bpftrace,
 * perf, gdb, SystemTap. The nop has 8 bytes, room for Sidestep's jump; <sys/sdt.h> has a nop of
 * one byte. It is not the nop of 5 bytes: Linux 6.18 makes a call of that one, which overwrites
 * what a leaf function has below its stack pointer, and kills forked children.
 *
 * Where arguments are expensive, a semaphore counts who listens. It is defined once in a
 * program, in one file:
 *
 *     SIDESTEP_SEMAPHORE(server, request);
 *
 *     SIDESTEP_PROBE_IF_ENABLED(server, request, id, measure(request));
 *
 * Other files declare it by SIDESTEP_SEMAPHORE_DECLARE(server, request). The arguments are only
 * computed while somebody listens.
 *
 * A tracer reads floating-point arguments by the "f" in the note. Those that do not know it, gdb
 * 13 and bpftrace 0.17 among them, show no arguments of such a probe. Where
 * SIDESTEP_SDT_FLOATS_AS_BITS is defined before this file is included, they are described as the
 * numbers that their bits are.
 *
 * Up to 12 arguments: integers, enumerations, pointers, float and double. Processors: x86-64 and
 * x86-32; elsewhere nothing is emitted. Compilers: GCC 5, clang 3.8 and later, C11 (or GNU C)
 * and C++98 and later, AT&T syntax in inline assembly. */
#ifndef SIDESTEP_SDT_H
#define SIDESTEP_SDT_H

/* Warnings about macros of this file are nothing that its users can change. */
#pragma GCC system_header

/* A probe that has no semaphore. */
#define SIDESTEP_PROBE(...) /* provider, name, arguments */ \
    SIDESTEP_SDT_EMIT(SIDESTEP_SDT_COUNT(__VA_ARGS__), SIDESTEP_SDT_NONE, __VA_ARGS__)

/* A probe with a semaphore, which is hit only while somebody listens. */
#define SIDESTEP_PROBE_IF_ENABLED(...) /* provider, name, arguments */                              \
    do {                                                                                            \
        if (SIDESTEP_SDT_ENABLED(__VA_ARGS__, 0))                                                   \
            SIDESTEP_SDT_EMIT(SIDESTEP_SDT_COUNT(__VA_ARGS__), SIDESTEP_SDT_OWN, __VA_ARGS__);      \
    } while (0)

/* Does somebody listen to a probe with a semaphore? */
#define SIDESTEP_PROBE_ENABLED(provider, name) \
    __builtin_expect(*(volatile unsigned short *)&provider##_##name##_semaphore != 0, 0)

/* Defines a semaphore. */
#define SIDESTEP_SEMAPHORE(provider, name)         \
    SIDESTEP_SEMAPHORE_DECLARE(provider, name);    \
    unsigned short provider##_##name##_semaphore __attribute__((section(".probes"), used)) = 0

/* Declares a semaphore that another file defines. */
#ifdef __cplusplus
#define SIDESTEP_SEMAPHORE_DECLARE(provider, name) \
    extern "C" __attribute__((visibility("hidden"))) unsigned short provider##_##name##_semaphore
#else
#define SIDESTEP_SEMAPHORE_DECLARE(provider, name) \
    extern __attribute__((visibility("hidden"))) unsigned short provider##_##name##_semaphore
#endif

/* What follows is not for programs. */

#define SIDESTEP_SDT_ENABLED(provider, name, ...) SIDESTEP_PROBE_ENABLED(provider, name)
#define SIDESTEP_SDT_NONE(provider, name) "0"
#define SIDESTEP_SDT_OWN(provider, name) #provider "_" #name "_semaphore"

#if defined __x86_64__ || defined __i386__

#ifdef __LP64__
#define SIDESTEP_SDT_ADDRESS ".8byte "
#else
#define SIDESTEP_SDT_ADDRESS ".4byte "
#endif

/* An argument is what the compiler has at hand: a number, a register or memory. A register pair
 * has no name in a note, so 32-bit code has its arguments in memory. So has clang wherever it
 * may; as long as registers suffice, it may not. */
#ifdef __i386__
#define SIDESTEP_SDT_FEW "m"
#define SIDESTEP_SDT_MANY "m"
#elif defined __clang__
#define SIDESTEP_SDT_FEW "nr"
#define SIDESTEP_SDT_MANY "nrm"
#else
#define SIDESTEP_SDT_FEW "nro"
#define SIDESTEP_SDT_MANY "nro"
#endif

#ifdef __cplusplus
namespace sidestep_sdt {
template <typename T, bool is_enum = __is_enum(T)> struct kind {
    enum { is_signed = 0, is_float = 0 };
};
template <typename T> struct kind<T, true> {
    enum { is_signed = static_cast<T>(-1) < static_cast<T>(0), is_float = 0 };
};
#define SIDESTEP_SDT_KIND(type, signed_, float_)            \
    template <> struct kind<type, false> {                  \
        enum { is_signed = signed_, is_float = float_ };    \
    };
SIDESTEP_SDT_KIND(char, char(-1) < 0, 0)
SIDESTEP_SDT_KIND(wchar_t, wchar_t(-1) < wchar_t(0), 0)
SIDESTEP_SDT_KIND(signed char, 1, 0)
SIDESTEP_SDT_KIND(short, 1, 0)
SIDESTEP_SDT_KIND(int, 1, 0)
SIDESTEP_SDT_KIND(long, 1, 0)
__extension__ SIDESTEP_SDT_KIND(long long, 1, 0)
SIDESTEP_SDT_KIND(float, 0, 1)
SIDESTEP_SDT_KIND(double, 0, 1)
#undef SIDESTEP_SDT_KIND
/* Never defined: what is passed by value is no array and has no qualifiers. */
template <typename T> char (&is_signed(T))[kind<T>::is_signed + 1];
template <typename T> char (&is_float(T))[kind<T>::is_float + 1];
template <typename T> T value(T);
}
#define SIDESTEP_SDT_SIGNED(x) (int(sizeof(sidestep_sdt::is_signed(x))) - 1)
#define SIDESTEP_SDT_FLOAT(x) (int(sizeof(sidestep_sdt::is_float(x))) - 1)
#define SIDESTEP_SDT_TYPE(x) __typeof__(sidestep_sdt::value(x))
#else
#define SIDESTEP_SDT_SIGNED(x)                                                                      \
    __extension__ _Generic((x), char : (char)-1 < 0, signed char : 1, short : 1, int : 1, long : 1, \
                           long long : 1, default : 0)
#define SIDESTEP_SDT_FLOAT(x) __extension__ _Generic((x), float : 1, double : 1, default : 0)
/* The comma makes a pointer of an array, and nothing else of other values. */
#define SIDESTEP_SDT_TYPE(x) __typeof__(((void)0, (x)))
#endif

#ifdef SIDESTEP_SDT_FLOATS_AS_BITS
#undef SIDESTEP_SDT_FLOAT
#define SIDESTEP_SDT_FLOAT(x) 0
#endif

/* In the note: `-4@%eax`, `8f@-8(%rbp)`. One number says size and kind: GCC allows 30 operands. */
#define SIDESTEP_SDT_TEXT(i)                                                                        \
    ".if %c[sidestep_s" #i "] == 1004\n"                                                            \
    ".ascii \"4f\"\n"                                                                               \
    ".elseif %c[sidestep_s" #i "] == 1008\n"                                                        \
    ".ascii \"8f\"\n"                                                                               \
    ".else\n"                                                                                       \
    ".ascii \"%c[sidestep_s" #i "]\"\n"                                                             \
    ".endif\n"                                                                                      \
    ".ascii \"@%[sidestep_a" #i "]\"\n"
#define SIDESTEP_SDT_SPACE ".ascii \" \"\n"
#define SIDESTEP_SDT_VALUE(i, x) SIDESTEP_SDT_TYPE(x) sidestep_value##i = (x);
#define SIDESTEP_SDT_OPERANDS(i, x, constraint)                                                     \
    [sidestep_s##i] "n"(SIDESTEP_SDT_FLOAT(x) ? 1000 + (int)sizeof(sidestep_value##i)               \
                        : SIDESTEP_SDT_SIGNED(x) ? -(int)sizeof(sidestep_value##i)                  \
                                                 : (int)sizeof(sidestep_value##i)),                 \
    [sidestep_a##i] constraint(sidestep_value##i)

/* The nop, and its note. */
#define SIDESTEP_SDT_SITE(provider, name, semaphore, values, text, ...)                             \
    do {                                                                                            \
        values                                                                                      \
        __asm__ __volatile__(                                                                       \
            "990: .byte 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00\n"                           \
            ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                           \
            ".balign 4\n"                                                                           \
            ".4byte 992f-991f, 994f-993f, 3\n"                                                      \
            "991: .asciz \"stapsdt\"\n"                                                             \
            "992: .balign 4\n"                                                                      \
            "993: " SIDESTEP_SDT_ADDRESS "990b\n"                                                   \
            SIDESTEP_SDT_ADDRESS "_.stapsdt.base\n"                                                 \
            SIDESTEP_SDT_ADDRESS semaphore(provider, name) "\n"                                     \
            ".asciz \"" #provider "\"\n"                                                            \
            ".asciz \"" #name "\"\n"                                                                \
            text                                                                                    \
            ".byte 0\n"                                                                             \
            "994: .balign 4\n"                                                                      \
            ".popsection\n"                                                                         \
            ".ifndef _.stapsdt.base\n"                                                              \
            ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"                 \
            ".weak _.stapsdt.base\n"                                                                \
            ".hidden _.stapsdt.base\n"                                                              \
            "_.stapsdt.base: .space 1\n"                                                            \
            ".size _.stapsdt.base, 1\n"                                                             \
            ".popsection\n"                                                                         \
            ".endif\n" ::__VA_ARGS__                                                                \
            : "memory"); /* What pointers lead to is written before. */                             \
    } while (0)

/* How many arguments there are behind provider and name. */
#define SIDESTEP_SDT_COUNT(...) SIDESTEP_SDT_PICK(__VA_ARGS__, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0)
#define SIDESTEP_SDT_PICK(p, n, a, b, c, d, e, f, g, h, i, j, k, l, count, ...) count
#define SIDESTEP_SDT_EMIT(count, ...) SIDESTEP_SDT_EMIT_(count, __VA_ARGS__)
#define SIDESTEP_SDT_EMIT_(count, ...) SIDESTEP_SDT_##count(__VA_ARGS__)

/* The operand of a site without arguments. */
#define SIDESTEP_SDT_0(semaphore, provider, name) \
    SIDESTEP_SDT_SITE(provider, name, semaphore, ;, "", "n"(0))
/* The values, the text and the operands of so many arguments: those of one less, and one more. */
#define SIDESTEP_SDT_VALUES_1(x1) SIDESTEP_SDT_VALUE(1, x1)
#define SIDESTEP_SDT_VALUES_2(x1, x2) SIDESTEP_SDT_VALUES_1(x1) SIDESTEP_SDT_VALUE(2, x2)
#define SIDESTEP_SDT_VALUES_3(x1, x2, x3) SIDESTEP_SDT_VALUES_2(x1, x2) SIDESTEP_SDT_VALUE(3, x3)
#define SIDESTEP_SDT_VALUES_4(x1, x2, x3, x4)                                                      \
    SIDESTEP_SDT_VALUES_3(x1, x2, x3) SIDESTEP_SDT_VALUE(4, x4)
#define SIDESTEP_SDT_VALUES_5(x1, x2, x3, x4, x5)                                                  \
    SIDESTEP_SDT_VALUES_4(x1, x2, x3, x4) SIDESTEP_SDT_VALUE(5, x5)
#define SIDESTEP_SDT_VALUES_6(x1, x2, x3, x4, x5, x6)                                              \
    SIDESTEP_SDT_VALUES_5(x1, x2, x3, x4, x5) SIDESTEP_SDT_VALUE(6, x6)
#define SIDESTEP_SDT_VALUES_7(x1, x2, x3, x4, x5, x6, x7)                                          \
    SIDESTEP_SDT_VALUES_6(x1, x2, x3, x4, x5, x6) SIDESTEP_SDT_VALUE(7, x7)
#define SIDESTEP_SDT_VALUES_8(x1, x2, x3, x4, x5, x6, x7, x8)                                      \
    SIDESTEP_SDT_VALUES_7(x1, x2, x3, x4, x5, x6, x7) SIDESTEP_SDT_VALUE(8, x8)
#define SIDESTEP_SDT_VALUES_9(x1, x2, x3, x4, x5, x6, x7, x8, x9)                                  \
    SIDESTEP_SDT_VALUES_8(x1, x2, x3, x4, x5, x6, x7, x8) SIDESTEP_SDT_VALUE(9, x9)
#define SIDESTEP_SDT_VALUES_10(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10)                            \
    SIDESTEP_SDT_VALUES_9(x1, x2, x3, x4, x5, x6, x7, x8, x9) SIDESTEP_SDT_VALUE(10, x10)
#define SIDESTEP_SDT_VALUES_11(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11)                       \
    SIDESTEP_SDT_VALUES_10(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10) SIDESTEP_SDT_VALUE(11, x11)
#define SIDESTEP_SDT_VALUES_12(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12)                  \
    SIDESTEP_SDT_VALUES_11(x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11) SIDESTEP_SDT_VALUE(12, x12)
#define SIDESTEP_SDT_TEXTS_1 SIDESTEP_SDT_TEXT(1)
#define SIDESTEP_SDT_TEXTS_2 SIDESTEP_SDT_TEXTS_1 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(2)
#define SIDESTEP_SDT_TEXTS_3 SIDESTEP_SDT_TEXTS_2 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(3)
#define SIDESTEP_SDT_TEXTS_4 SIDESTEP_SDT_TEXTS_3 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(4)
#define SIDESTEP_SDT_TEXTS_5 SIDESTEP_SDT_TEXTS_4 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(5)
#define SIDESTEP_SDT_TEXTS_6 SIDESTEP_SDT_TEXTS_5 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(6)
#define SIDESTEP_SDT_TEXTS_7 SIDESTEP_SDT_TEXTS_6 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(7)
#define SIDESTEP_SDT_TEXTS_8 SIDESTEP_SDT_TEXTS_7 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(8)
#define SIDESTEP_SDT_TEXTS_9 SIDESTEP_SDT_TEXTS_8 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(9)
#define SIDESTEP_SDT_TEXTS_10 SIDESTEP_SDT_TEXTS_9 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(10)
#define SIDESTEP_SDT_TEXTS_11 SIDESTEP_SDT_TEXTS_10 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(11)
#define SIDESTEP_SDT_TEXTS_12 SIDESTEP_SDT_TEXTS_11 SIDESTEP_SDT_SPACE SIDESTEP_SDT_TEXT(12)
#define SIDESTEP_SDT_ALL_1(constraint, x1) SIDESTEP_SDT_OPERANDS(1, x1, constraint)
#define SIDESTEP_SDT_ALL_2(constraint, x1, x2)                                                     \
    SIDESTEP_SDT_ALL_1(constraint, x1), SIDESTEP_SDT_OPERANDS(2, x2, constraint)
#define SIDESTEP_SDT_ALL_3(constraint, x1, x2, x3)                                                 \
    SIDESTEP_SDT_ALL_2(constraint, x1, x2), SIDESTEP_SDT_OPERANDS(3, x3, constraint)
#define SIDESTEP_SDT_ALL_4(constraint, x1, x2, x3, x4)                                             \
    SIDESTEP_SDT_ALL_3(constraint, x1, x2, x3), SIDESTEP_SDT_OPERANDS(4, x4, constraint)
#define SIDESTEP_SDT_ALL_5(constraint, x1, x2, x3, x4, x5)                                         \
    SIDESTEP_SDT_ALL_4(constraint, x1, x2, x3, x4), SIDESTEP_SDT_OPERANDS(5, x5, constraint)
#define SIDESTEP_SDT_ALL_6(constraint, x1, x2, x3, x4, x5, x6)                                     \
    SIDESTEP_SDT_ALL_5(constraint, x1, x2, x3, x4, x5), SIDESTEP_SDT_OPERANDS(6, x6, constraint)
#define SIDESTEP_SDT_ALL_7(constraint, x1, x2, x3, x4, x5, x6, x7)                                 \
    SIDESTEP_SDT_ALL_6(constraint, x1, x2, x3, x4, x5, x6), SIDESTEP_SDT_OPERANDS(7, x7, constraint)
#define SIDESTEP_SDT_ALL_8(constraint, x1, x2, x3, x4, x5, x6, x7, x8)                             \
    SIDESTEP_SDT_ALL_7(constraint, x1, x2, x3, x4, x5, x6, x7),                                    \
    SIDESTEP_SDT_OPERANDS(8, x8, constraint)
#define SIDESTEP_SDT_ALL_9(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9)                         \
    SIDESTEP_SDT_ALL_8(constraint, x1, x2, x3, x4, x5, x6, x7, x8),                                \
    SIDESTEP_SDT_OPERANDS(9, x9, constraint)
#define SIDESTEP_SDT_ALL_10(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10)                   \
    SIDESTEP_SDT_ALL_9(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9),                            \
    SIDESTEP_SDT_OPERANDS(10, x10, constraint)
#define SIDESTEP_SDT_ALL_11(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11)              \
    SIDESTEP_SDT_ALL_10(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10),                      \
    SIDESTEP_SDT_OPERANDS(11, x11, constraint)
#define SIDESTEP_SDT_ALL_12(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12)         \
    SIDESTEP_SDT_ALL_11(constraint, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11),                 \
    SIDESTEP_SDT_OPERANDS(12, x12, constraint)

#define SIDESTEP_SDT_1(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_1(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_1, SIDESTEP_SDT_ALL_1(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_2(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_2(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_2, SIDESTEP_SDT_ALL_2(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_3(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_3(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_3, SIDESTEP_SDT_ALL_3(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_4(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_4(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_4, SIDESTEP_SDT_ALL_4(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_5(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_5(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_5, SIDESTEP_SDT_ALL_5(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_6(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_6(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_6, SIDESTEP_SDT_ALL_6(SIDESTEP_SDT_FEW, __VA_ARGS__))
#define SIDESTEP_SDT_7(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_7(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_7, SIDESTEP_SDT_ALL_7(SIDESTEP_SDT_MANY, __VA_ARGS__))
#define SIDESTEP_SDT_8(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_8(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_8, SIDESTEP_SDT_ALL_8(SIDESTEP_SDT_MANY, __VA_ARGS__))
#define SIDESTEP_SDT_9(semaphore, provider, name, ...)                                             \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_9(__VA_ARGS__),               \
        SIDESTEP_SDT_TEXTS_9, SIDESTEP_SDT_ALL_9(SIDESTEP_SDT_MANY, __VA_ARGS__))
#define SIDESTEP_SDT_10(semaphore, provider, name, ...)                                            \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_10(__VA_ARGS__),              \
        SIDESTEP_SDT_TEXTS_10, SIDESTEP_SDT_ALL_10(SIDESTEP_SDT_MANY, __VA_ARGS__))
#define SIDESTEP_SDT_11(semaphore, provider, name, ...)                                            \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_11(__VA_ARGS__),              \
        SIDESTEP_SDT_TEXTS_11, SIDESTEP_SDT_ALL_11(SIDESTEP_SDT_MANY, __VA_ARGS__))
#define SIDESTEP_SDT_12(semaphore, provider, name, ...)                                            \
    SIDESTEP_SDT_SITE(provider, name, semaphore, SIDESTEP_SDT_VALUES_12(__VA_ARGS__),              \
        SIDESTEP_SDT_TEXTS_12, SIDESTEP_SDT_ALL_12(SIDESTEP_SDT_MANY, __VA_ARGS__))

#else

#define SIDESTEP_SDT_COUNT(...) 0
#define SIDESTEP_SDT_EMIT(...) ((void)0)

#endif

#endif
