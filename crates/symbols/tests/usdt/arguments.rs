//! Arguments in libbpf's structure: its layout, and that it leads to the right values.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::Command;

use object::{Object as _, ObjectSection as _};
use sidestep_isa::{Isa, Va};
use sidestep_symbols::usdt::{ArgumentError, Probe, SpecError, SpecLayout, Syntax, parse_arguments};

use crate::support::{compile, hex, run, scratch, str};
use crate::{NOTE, probes};

#[test]
fn the_layout_is_that_of_the_compiler() {
    // The structure before libbpf 1.7 and since, and, where libbpf is installed, its header.
    let source = r#"
        typedef unsigned long long u64;
        typedef unsigned short u16;
        enum kind { CONST, REG, REG_DEREF, SIB };
        struct plain { u64 val; enum kind type; short reg; _Bool is_signed; char shift; };
        struct indexed { u64 val; enum kind type : 8; u16 index : 12; u16 scale : 4; unsigned char reserved : 8;
            short reg; _Bool is_signed; char shift; };
        #define SECTION(name) __attribute__((section(name)))
        SECTION(".plain") struct { struct plain args[12]; u64 cookie; short count; } plain = { {
            { .val = -42, .type = CONST, .is_signed = 1, .shift = 32 },
            { .type = REG, .reg = 81, .shift = 56 },
            { .val = -8, .type = REG_DEREF, .reg = 32, .is_signed = 1 } }, 0x1122334455667788, 3 };
        SECTION(".indexed") struct { struct indexed args[12]; u64 cookie; short count; } indexed = { {
            { .val = -42, .type = CONST, .is_signed = 1, .shift = 32 },
            { .type = REG, .reg = 81, .shift = 56 },
            { .val = -8, .type = REG_DEREF, .reg = 32, .is_signed = 1 },
            { .val = 16, .type = SIB, .reg = 112, .index = 104, .scale = 3, .shift = 48 } }, 0x1122334455667788, 4 };
        #if defined(__bpf__) && __has_include(<bpf/usdt.bpf.h>)
        #define __TARGET_ARCH_x86
        #include <stdbool.h>
        #include <linux/bpf.h>
        #include <linux/ptrace.h>
        #include <bpf/usdt.bpf.h>
        typedef struct __bpf_usdt_arg_spec theirs;
        #define AT(field, own) _Static_assert(__builtin_offsetof(theirs, field) == (sizeof(theirs) == 16 \
            ? __builtin_offsetof(struct plain, own) : __builtin_offsetof(struct indexed, own)), #field)
        AT(val_off, val);
        AT(reg_off, reg);
        AT(arg_signed, is_signed);
        AT(arg_bitshift, shift);
        typedef struct __bpf_usdt_spec spec;
        _Static_assert(sizeof(spec) == (sizeof(theirs) == 16 ? sizeof plain : sizeof indexed), "size");
        #endif
    "#;
    let dir = scratch("layout");
    let (file, out) = (dir.join("layout.c"), dir.join("layout.o"));
    std::fs::write(&file, source).unwrap();
    for compiler in [&["clang", "-target", "bpf", "-O2", "-I/usr/include/x86_64-linux-gnu"][..], &["cc"]] {
        run(compiler[0], &[&compiler[1..], &["-c", str(&file), "-o", str(&out)]].concat());
        let bytes = std::fs::read(&out).unwrap();
        let compiled = object::File::parse(&*bytes).unwrap();
        let section = |name| compiled.section_by_name(name).unwrap().data().unwrap();
        let text = "-4@$-42 1@%ah -8@-8(%rbp)";
        let own = |text, layout| made_of(text).spec_bytes(layout, 0x1122_3344_5566_7788);
        assert_eq!(own(text, SpecLayout::Plain).unwrap(), section(".plain"), "{compiler:?}");
        let text = &format!("{text} 2@16(%rdi,%rsi,8)");
        assert_eq!(own(text, SpecLayout::Indexed).unwrap(), section(".indexed"), "{compiler:?}");
        assert_eq!(own(text, SpecLayout::Plain), Err(SpecError::Index { argument: 3 }));
        for (name, layout) in [(".plain", SpecLayout::Plain), (".indexed", SpecLayout::Indexed)] {
            assert_eq!(SpecLayout::of_size(section(name).len()), Some(layout));
        }
    }
    assert_eq!(SpecLayout::of_size(216), None);
}

/// A probe at 0x1000 with these arguments.
fn made_of(text: &str) -> Probe {
    let (provider, name) = ("app".into(), "made".into());
    let arguments = parse_arguments(text, Syntax::X64);
    Probe { provider, name, isa: Isa::X64, va: Va(0x1000), semaphore: None, text: text.into(), arguments }
}

#[test]
fn what_libbpf_cannot_express_is_refused() {
    let error = |text: &str| made_of(text).spec_bytes(SpecLayout::Indexed, 0).unwrap_err();
    assert!(matches!(error("8@%xmm0"), SpecError::Float { argument: 0 }));
    assert!(matches!(error("8@%xmm16"), SpecError::Unknown(ArgumentError::Register { .. })));
    assert_eq!(error(&"1@$1 ".repeat(13)), SpecError::TooMany { count: 13 });
    assert_eq!(error("4@%eax 24@(%rsp)"), SpecError::Size { argument: 1, size: 24 });
    assert_eq!(error("8f@%rax"), SpecError::Float { argument: 0 });
    assert_eq!(error("8@x(%rip)"), SpecError::Symbol { argument: 0, name: "x".to_owned() });
    for text in ["8@(%eax)", "8@(%rax,%ebx)", "8@(,%rax,8)", "8@(%ah)"] {
        assert_eq!(error(text), SpecError::Address { argument: 0 }, "{text}");
    }
    assert!(made_of(&"1@$1 ".repeat(12)).spec_bytes(SpecLayout::Plain, 0).is_ok());
}

/// A program whose sites are `int3`. Its handler reads the arguments of the site as `usdt.bpf.h`
/// does, by the structures in the file that it was given, and prints for each what it read and what
/// the program says it is.
const READER: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
typedef unsigned long u64;
extern char __executable_start[];
struct arg {
    u64 val;
#ifdef INDEXED
    unsigned type : 8;
    unsigned short index : 12, scale : 4;
    unsigned char reserved : 8;
#else
    int type;
#endif
    short reg;
    _Bool is_signed;
    char shift;
};
struct spec { struct arg args[12]; u64 cookie; short count; };
struct site { u64 va; struct spec spec; };
static struct site sites[64];
static size_t count;
static void (*expect)(void);
static u64 expected[12];
#define FOR_ASM __attribute__((used, visibility("hidden")))
FOR_ASM u64 saved_sp;
FOR_ASM unsigned char memory[128];
#define R(n) (0x9182a3b4c5d6e7f0UL + (n) * 0x0101UL)

static u64 fetch(const struct arg *arg, const u64 *regs) {
    u64 value = arg->val, base;
    memcpy(&base, (char *)regs + arg->reg, 8);
    switch (arg->type) {
    case 0: break;
    case 1: value = base; break;
    case 2: memcpy(&value, (char *)base + value, 8); break;
#ifdef INDEXED
    case 3: memcpy(&value, (char *)(base + (regs[arg->index / 8] << arg->scale) + value), 8); break;
#endif
    default: abort();
    }
    value <<= arg->shift;
    return arg->is_signed ? (u64)((long)value >> arg->shift) : value >> arg->shift;
}

static void trap(int signal, siginfo_t *info, void *context) {
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    u64 regs[22] = { g[REG_R15], g[REG_R14], g[REG_R13], g[REG_R12], g[REG_RBP], g[REG_RBX], g[REG_R11], g[REG_R10],
        g[REG_R9], g[REG_R8], g[REG_RAX], g[REG_RCX], g[REG_RDX], g[REG_RSI], g[REG_RDI], -1, g[REG_RIP] - 1, 0,
        g[REG_EFL], g[REG_RSP], 0, 0 };
    u64 va = regs[16] - (u64)__executable_start + LINKED;
    if (expect) expect();
    for (size_t n = 0; n < count; n++)
        if (sites[n].va == va)
            for (int a = 0; a < sites[n].spec.count; a++)
                printf("%lx %x %lx %lx\n", va, a, fetch(&sites[n].spec.args[a], regs), expected[a]);
}

/* As in sys/sdt.h: where the compiler has it, the size negated by %n. Memory is read anew for the probe. */
#define ARG(n, x) [s##n] "n" (((__typeof__(x))-1 < 1 ? 1 : -1) * (int)sizeof(x)), [a##n] "nor" (x)
#define CHOSEN3(a, b, c) do { expect = 0; expected[0] = (a); expected[1] = (b); expected[2] = (c); \
    asm volatile("" ::: "memory"); \
    asm volatile("990: int3\n" NOTE("test", "chosen", "0", "%n[s0]@%[a0] %n[s1]@%[a1] %n[s2]@%[a2]") \
        :: ARG(0, a), ARG(1, b), ARG(2, c) : "memory"); } while (0)
struct pair { short low; signed char high; };
static struct pair pairs[16];
static int numbers[16];
volatile unsigned short exported = 0xfedc;
__attribute__((noinline)) void chosen(int *array, long index, struct pair *pair, unsigned char byte) {
    CHOSEN3(array[index], pair->high, byte);
    CHOSEN3((short)-3, (unsigned)7, index);
    CHOSEN3(array[3], numbers[2], exported);
    CHOSEN3(pairs[index].low, (unsigned short)index, pairs[4].high);
}
"#;

/// The program's `main`.
const READER_MAIN: &str = r#"
int main(int argc, char **argv) {
    FILE *file = fopen(argv[1], "r");
    if (!file) return 1;
    count = fread(sites, sizeof sites[0], 64, file);
    struct sigaction action = { .sa_sigaction = trap, .sa_flags = SA_SIGINFO };
    sigaction(SIGTRAP, &action, 0);
    for (unsigned n = 0; n < sizeof memory; n++) memory[n] = 0xf7 - 3 * n;
    for (int n = 0; n < 16; n++) numbers[n] = -1000 * n, pairs[n].low = -30 * n, pairs[n].high = -n;
    rows();
    chosen(numbers, 5 + argc - 2, pairs + 6, 0xf0);
    return 0;
}
"#;

/// The registers that are set before a row's site; `%rdi` points into `memory`, `%rsi` is 2, `%rsp`
/// is the stack.
const FILLED: [&str; 13] = ["rax", "rbx", "rcx", "rdx", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// Arguments, each with what it must be, in C.
fn rows() -> Vec<(String, String)> {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut add = |argument: &str, value: &str| rows.push((argument.to_owned(), value.to_owned()));
    let mut names = |value: &str, names: [&str; 4]| {
        for (name, (size, ty)) in names.iter().zip([(8, "long"), (4, "int"), (2, "short"), (1, "char")]) {
            add(&format!("{size}@%{name}"), &format!("(unsigned {ty})({value})"));
            add(&format!("-{size}@%{name}"), &format!("(signed {ty})({value})"));
        }
    };
    for (n, register) in FILLED.iter().enumerate() {
        let value = format!("R({n})");
        let stem = &register[1..];
        match register.as_bytes() {
            [_, letter, b'x'] => {
                let low = format!("{}l", char::from(*letter));
                names(&value, [register, &format!("e{stem}"), stem, &low]);
            }
            [_, b'b', b'p'] => names(&value, ["rbp", "ebp", "bp", "bpl"]),
            _ => names(&value, [register, &format!("{register}d"), &format!("{register}w"), &format!("{register}b")]),
        }
    }
    names("2", ["rsi", "esi", "si", "sil"]);
    names("(u64)(memory + 16)", ["rdi", "edi", "di", "dil"]);
    names("saved_sp", ["rsp", "esp", "sp", "spl"]);
    for (n, name) in ["ah", "bh", "ch", "dh"].iter().enumerate() {
        add(&format!("1@%{name}"), &format!("(unsigned char)(R({n}) >> 8)"));
        add(&format!("-1@%{name}"), &format!("(signed char)(R({n}) >> 8)"));
    }
    for (argument, value) in [
        ("-4@$-9", "-9"),
        ("4@$-9", "0xfffffff7"),
        ("1@$300", "44"),
        ("8@$0x1122334455667788", "0x1122334455667788"),
        ("8@(%rdi)", "*(u64 *)(memory + 16)"),
        ("-4@8(%rdi)", "*(int *)(memory + 24)"),
        ("2@-3(%rdi)", "*(unsigned short *)(memory + 13)"),
        ("-1@-8+16(%rdi)", "*(signed char *)(memory + 24)"),
        ("8@(%rsp)", "*(u64 *)saved_sp"),
        ("-1@memory+4(%rip)", "*(signed char *)(memory + 4)"),
        ("8@memory(%rip)", "*(u64 *)memory"),
        ("2@exported(%rip)", "0xfedc"),
        ("4@(%rdi,%rsi,8)", "*(unsigned *)(memory + 32)"),
        ("-2@-5(%rdi,%rsi,4)", "*(short *)(memory + 19)"),
        ("8@1(%rdi,%rsi,2)", "*(u64 *)(memory + 21)"),
        ("-8@(%rsi,%rdi)", "*(u64 *)(memory + 18)"),
        ("-4@4(,%rdi)", "*(int *)(memory + 20)"),
    ] {
        add(argument, value);
    }
    rows
}

/// One function a site, with 12 arguments each.
fn reader_source() -> String {
    let mut source = format!("{NOTE}{READER}");
    let rows = rows();
    let sites: Vec<_> = rows.chunks(12).collect();
    for (n, site) in sites.iter().enumerate() {
        let text: Vec<&str> = site.iter().map(|(argument, _)| argument.as_str()).collect();
        write!(source, "static void expect_{n}(void) {{").unwrap();
        for (a, (_, value)) in site.iter().enumerate() {
            write!(source, "expected[{a}] = {value};").unwrap();
        }
        write!(source, "}}\nvoid site_{n}(void);\nasm(\".pushsection .text\\n site_{n}:\\n").unwrap();
        let saved = ["rbx", "rbp", "r12", "r13", "r14", "r15"];
        let each = |verb: &str, names: &mut dyn Iterator<Item = &&str>| -> String {
            names.map(|name| format!("{verb} %{name}\\n ")).collect()
        };
        source += &each("push", &mut saved.iter());
        source += "mov %rsp, saved_sp(%rip)\\n lea memory+16(%rip), %rdi\\n mov $2, %esi\\n ";
        for (n, register) in FILLED.iter().enumerate() {
            let value = 0x9182_a3b4_c5d6_e7f0_u64 + n as u64 * 0x0101;
            write!(source, "movabs ${value:#x}, %{register}\\n ").unwrap();
        }
        write!(source, "990: int3\\n \" NOTE(\"test\", \"row\", \"0\", \"{}\") \"", text.join(" ")).unwrap();
        source += &each("pop", &mut saved.iter().rev());
        source += "ret\\n .popsection\");\n";
    }
    source += "static void rows(void) {\n";
    for n in 0..sites.len() {
        writeln!(source, "expect = expect_{n}; site_{n}();").unwrap();
    }
    source + "}\n" + READER_MAIN
}

#[test]
fn arguments_are_what_the_program_says_they_are() {
    let source = reader_source();
    for (layout, link, linked) in [
        (SpecLayout::Plain, ["-fPIE", "-pie"], "-DLINKED=0"),
        (SpecLayout::Indexed, ["-fPIE", "-pie"], "-DLINKED=0"),
        (SpecLayout::Indexed, ["-fno-pie", "-no-pie"], "-DLINKED=0x400000"),
    ] {
        let dir = scratch("reader");
        let define = if layout == SpecLayout::Indexed { "-DINDEXED" } else { "-DPLAIN" };
        let file = compile(&dir, "reader.c", &source, &["-O2", link[0], link[1], linked, define]);
        let (mut specs, mut wanted, mut without) = (Vec::new(), Vec::new(), 0);
        for probe in probes(&file) {
            let bytes = match probe.spec_bytes(layout, 0) {
                Err(SpecError::Index { .. }) if layout == SpecLayout::Plain => {
                    without += 1;
                    continue;
                }
                other => other.unwrap_or_else(|e| panic!("{}: {e}", probe.text)),
            };
            specs.extend(probe.va.0.to_le_bytes());
            specs.extend(bytes);
            let texts = probe.text.split(' ').map(str::to_owned).enumerate();
            wanted.extend(texts.map(|(n, text)| (probe.va.0, n as u64, text)));
        }
        assert_eq!(without > 0, layout == SpecLayout::Plain);
        let given = dir.join("specs");
        std::fs::write(&given, specs).unwrap();
        let output = Command::new(&file).arg(&given).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let mut read = BTreeSet::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let numbers: Vec<u64> = line.split(' ').map(hex).collect();
            let text = wanted.iter().find(|w| (w.0, w.1) == (numbers[0], numbers[1])).unwrap();
            assert_eq!(numbers[2], numbers[3], "{text:x?}");
            read.insert((numbers[0], numbers[1]));
        }
        assert_eq!(read.len(), wanted.len());
        assert!(read.len() > 100, "{} arguments read", read.len());
        if layout == SpecLayout::Indexed {
            let has = |piece: &str| wanted.iter().any(|(.., text)| text.contains(piece));
            assert!(has("(%rip)") && has("$") && has("("), "{wanted:?}");
        }
    }
}
