//! The source of a random program: functions that call each other, and a `main` that prints a sum
//! of what they return.

use std::fmt::Write;

use super::functions::{self, Allowed, Kind};
use super::{Build, Rng};

/// What the source is written in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// C with GNU extensions.
    C,
    /// C++ with exceptions.
    Cpp,
}

/// What all functions use. `CALL` is bounded by `fuel`, so a program ends whoever calls whom.
const HEAD: &str = r#"#define _GNU_SOURCE
#include <alloca.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

typedef unsigned long u64;
typedef long i64;
typedef unsigned int u32;
typedef unsigned char u8;
typedef int v4 __attribute__((vector_size(16)));
typedef double d2 __attribute__((vector_size(16)));

struct wide { u64 a, b, c; };
struct pair { u64 a; double b; };

#define NOINLINE __attribute__((noinline))
#define COLD __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define CALL(f, a, b) (fuel > 0 ? (fuel--, f((a), (b))) : ((a) ^ (b) * 3))

static volatile u64 sink;
static long fuel;
static u64 state;
static __thread u64 own;
static u64 words[16];
static const u64 first_words[16] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3 };
static const u32 odd[8] = { 1, 3, 5, 7, 11, 13, 17, 19 };

static u64 mix(u64 a, u64 b) { a ^= b + 0x9e3779b97f4a7c15ul + (a << 6) + (a >> 2); return a * 0xff51afd7ed558ccdul ^ a >> 33; }
NOINLINE u64 next_word(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
"#;

/// How a failure leaves its callers.
const FAIL_C: &str = r#"
static jmp_buf *volatile env;
static volatile u64 failed;
COLD __attribute__((noreturn)) void fail(u64 code) { failed = code; longjmp(*env, 1); }
"#;

const FAIL_CPP: &str = r#"
static volatile u64 failed;
struct Guard { u64 *to; u64 by; Guard(u64 *t, u64 b) : to(t), by(b) { *to += b; } ~Guard() { *to ^= by * 3; sink = by; } };
COLD __attribute__((noreturn)) void fail(u64 code) { failed = code; if (code & 1) throw (int)code; throw code; }
static u64 faults[64], fault_count;
extern "C" char __executable_start[];
static void fault(int, siginfo_t *, void *context)
{
    u64 at = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] - (u64)__executable_start, i = 0;
    while (i < fault_count && faults[i] != at) i++;
    if (i == fault_count && i < 64) faults[fault_count++] = at;
    throw 'f';
}
"#;

/// Rounds, from the same state each time. Every second one begins with the first function, the
/// others with each in turn.
const PLAY_C: &str = r#"
NOINLINE static void play(long count)
{
    volatile long rounds = count;
    volatile u64 sum = 0;
    for (volatile long i = 0; i < rounds; i++) {
        jmp_buf here;
        fuel = FUEL;
        env = &here;
        if (setjmp(here) == 0)
            sum = mix(sum, call(i));
        else
            sum = mix(sum, failed + 1);
        sum = mix(sum, own + words[i & 15]);
    }
    printf("%016lx %016lx\n", sum, state);
}
static void prepare(void) { }
"#;

const PLAY_CPP: &str = r#"
NOINLINE static void play(long rounds)
{
    u64 sum = 0;
    fault_count = 0;
    for (long i = 0; i < rounds; i++) {
        fuel = FUEL;
        try {
            sum = mix(sum, call(i));
        } catch (int code) {
            sum = mix(sum, code + 1);
        } catch (u64 code) {
            sum = mix(sum, code + 2);
        } catch (char) {
            sum = mix(sum, 7);
        }
        sum = mix(sum, own + words[i & 15]);
    }
    printf("%016lx %016lx\n", sum, state);
    for (u64 i = 0; i < fault_count; i++) printf("fault %lx\n", faults[i]);
}
static void prepare(void)
{
    struct sigaction action = {};
    action.sa_sigaction = fault;
    action.sa_flags = SA_NODEFER | SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    sigaction(SIGFPE, &action, nullptr);
}
"#;

/// `program ROUNDS [TIMES]`: plays so many times, or, with 0, once for each byte of its input.
/// `RESET` makes what functions keep what it was at the start.
///
/// It is in a section of its own, whose executions are not counted: how often it has run when its
/// output is read is a matter of time.
const MAIN: &str = r#"
__attribute__((section("serve"))) int main(int argc, char **argv)
{
    long rounds = argc > 1 ? atol(argv[1]) : 4, times = argc > 2 ? atol(argv[2]) : 1;
    char byte;
    prepare();
    for (long i = 0; times ? i < times : read(0, &byte, 1) == 1; i++) {
        state = 88172645463325252ul;
        own = 5;
        failed = sink = 0;
        for (int k = 0; k < 16; k++) words[k] = first_words[k];
        RESET
        play(rounds);
        puts("end");
        fflush(stdout);
    }
    return 0;
}
"#;

/// Calls in a round, at most.
const FUEL: usize = 25;

/// Writes the program.
pub fn source(rng: &mut Rng, build: &Build) -> String {
    let cpp = build.language == Language::Cpp;
    let kinds = Kind::possible(build);
    let count = 4 + rng.below(7);
    let drawn: Vec<Kind> = (0..count).map(|i| if i == 0 { Kind::Calls } else { rng.of(&kinds) }).collect();
    let mut text = String::from(HEAD);
    text += if cpp { FAIL_CPP } else { FAIL_C };
    for (i, kind) in drawn.iter().enumerate() {
        writeln!(text, "{}u64 f{i}(u64 a, u64 b);", kind.attributes(rng)).expect("a string");
    }
    // Some are called by a table.
    write!(text, "typedef u64 (*callee)(u64, u64);\nstatic const callee table[4] = {{ ").expect("a string");
    let last: Vec<String> = (0..4).map(|_| format!("f{}", count - 1 - rng.below(count.min(3)))).collect();
    writeln!(text, "{} }};", last.join(", ")).expect("a string");
    // Inlining goes upwards as well as downwards.
    let mut order: Vec<usize> = (0..count).collect();
    if rng.one_in(2) {
        order.reverse();
    }
    let allowed = Allowed { distances: !build.options.contains(&"-flto") && !build.profiled, faults: build.faults() };
    for i in order {
        text.push('\n');
        text += &functions::function(rng, drawn[i], i, count, allowed);
    }
    text += "static u64 call(long i)\n{\n    if (i % 2 == 0) return f0(next_word(), (u64)i);\n";
    writeln!(text, "    switch (i / 2 % {count}) {{").expect("a string");
    (1..count).for_each(|i| text += &format!("    case {i}: return f{i}(next_word(), (u64)i);\n"));
    text += "    default: return 0;\n    }\n}\n";
    text += &if cpp { PLAY_CPP } else { PLAY_C }.replace("FUEL", &FUEL.to_string());
    let reset: Vec<String> =
        (0..count).filter(|i| text.contains(&format!("*made{i}["))).map(|i| format!("made{i}[0] = 0;")).collect();
    text += &MAIN.replace("RESET", &reset.join(" "));
    text
}
