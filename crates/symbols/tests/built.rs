//! Programs made for the purpose: what the compiler, the linker and objcopy did is known.

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use sidestep_isa::Va;
use sidestep_isa::object::{Rewriter, Rewritten};
use sidestep_symbols::{DebugSearch, FunctionKind, Kind, Matcher, Object, ObjectError, Outcome, Source, by_address};
use support::{compile, hex, readelf_functions, readelf_relocations, run, scratch, str};

const PROGRAM: &str = r#"
#include <stdio.h>
__attribute__((noinline)) static int hidden_helper(int x) { return x * 7; }
int visible_function(int x) { return hidden_helper(x) + 1; }
int main(int argc, char **argv) { printf("%d\n", visible_function(argc)); return 0; }
"#;

/// The functions of a file as readelf shows them.
fn names(file: &Path) -> BTreeSet<(u64, String)> {
    readelf_functions(file).into_iter().map(|s| (s.va, s.name)).collect()
}

fn own_names(object: &Object) -> BTreeSet<(u64, String)> {
    object.functions().iter().map(|f| (f.va.0, f.name.to_string())).collect()
}

/// Moves the symbols of a program to `program.debug` and leaves a debug link.
fn split_symbols(program: &Path, debug: &Path) {
    run("objcopy", &["--only-keep-debug", str(program), str(debug)]);
    run("strip", &["--strip-all", str(program)]);
    run("objcopy", &["--add-gnu-debuglink", str(debug), str(program)]);
}

#[test]
fn debug_link_beside_the_program_in_dot_debug_and_in_a_global_directory() {
    let dir = scratch("debuglink");
    let program = compile(&dir, "program.c", PROGRAM, &["-g", "-Wl,--build-id=none"]);
    let wanted = names(&program);
    let debug = dir.join("program.debug");
    split_symbols(&program, &debug);
    let open = || Object::open(&program, &[dir.join("global")]).unwrap();

    let object = open();
    assert_eq!(own_names(&object), wanted);
    let hidden = object.find(&Matcher::name("hidden_helper"));
    assert_eq!(hidden[0].source, Source::DebugFile);

    for place in [".debug".into(), format!("global{}", str(&dir))] {
        let place = dir.join(place);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::rename(&debug, place.join("program.debug")).unwrap();
        assert_eq!(own_names(&open()), wanted, "{}", place.display());
        std::fs::rename(place.join("program.debug"), &debug).unwrap();
    }

    // Below the root of a process in another mount namespace.
    let root = dir.join("root");
    let below = root.join("opt/tool");
    std::fs::create_dir_all(&below).unwrap();
    std::fs::copy(&debug, below.join("program.debug")).unwrap();
    let search = DebugSearch::default().in_root(&root);
    let object = Object::open_at(Path::new("/opt/tool/program"), &program, &search).unwrap();
    assert_eq!(own_names(&object), wanted);
    assert_eq!(object.path(), Path::new("/opt/tool/program"));

    // Any other file of that name is not used, and the error says why.
    let mut bytes = std::fs::read(&debug).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&debug, bytes).unwrap();
    let object = open();
    assert!(object.find(&Matcher::name("hidden_helper")).is_empty());
    let message = object.not_found("hidden_helper").to_string();
    assert!(message.contains("program.debug not used: its checksum is"), "{message}");

    std::fs::remove_file(&debug).unwrap();
    let message = open().not_found("hidden_helper").to_string();
    assert!(message.contains("no .symtab"), "{message}");
    assert!(message.contains(&format!("no debug file {} nor in 5 other places", debug.display())), "{message}");
}

#[test]
fn build_id_file() {
    let dir = scratch("buildid");
    let program = compile(&dir, "program.c", PROGRAM, &["-Wl,--build-id=0xabcdef0123456789"]);
    let other = compile(&dir, "other.c", PROGRAM, &["-Wl,--build-id=0xabcdef0123456788"]);
    let wanted = names(&program);
    let place = dir.join(".build-id/ab");
    std::fs::create_dir_all(&place).unwrap();
    let debug = place.join("cdef0123456789.debug");
    run("objcopy", &["--only-keep-debug", str(&program), str(&debug)]);
    run("strip", &["--strip-all", str(&program)]);
    let object = Object::open(&program, std::slice::from_ref(&dir)).unwrap();
    assert_eq!(own_names(&object), wanted);
    assert_eq!(object.build_id(), Some(&[0xab, 0xcd, 0xef, 1, 0x23, 0x45, 0x67, 0x89][..]));

    std::fs::copy(&other, &debug).unwrap();
    let object = Object::open(&program, &[dir]).unwrap();
    let rejected = object.searched().iter().find(|s| s.place.contains("cdef0123456789")).unwrap();
    assert_eq!(rejected.outcome, Outcome::Rejected("it has another build id".to_owned()));
}

#[test]
fn gnu_debugdata() {
    let dir = scratch("debugdata");
    let program = compile(&dir, "program.c", PROGRAM, &[]);
    let wanted = names(&program);
    let mini = dir.join("mini");
    run("objcopy", &["--only-keep-debug", str(&program), str(&mini)]);
    run("xz", &["-f", str(&mini)]);
    run("strip", &["--strip-all", str(&program)]);
    let section = format!(".gnu_debugdata={}", str(&dir.join("mini.xz")));
    run("objcopy", &["--add-section", &section, str(&program)]);
    let object = Object::open(&program, &[]).unwrap();
    assert_eq!(own_names(&object), wanted);
    let hidden = object.find(&Matcher::name("hidden_helper"))[0];
    assert_eq!(hidden.source, Source::DebugData);
    assert!(hidden.size.0 > 0);
}

const INDIRECT: &str = r#"
static int plain(int x) { return x + 1; }
static int fancy(int x) { return x + 2; }
typedef int fn(int);
static fn *choose(void) { __builtin_cpu_init(); return __builtin_cpu_supports("sse2") ? fancy : plain; }
int chosen(int) __attribute__((ifunc("choose")));
extern int puts(const char *);
fn *volatile pointer = chosen;
int main(int argc, char **argv) { puts("x"); return chosen(argc) + pointer(1); }
"#;

#[test]
fn ifunc_slots() {
    let dir = scratch("ifunc");
    for (name, flags, kind) in [
        ("pie.c", &["-fPIE", "-pie"][..], Kind::PieProgram),
        ("fixed.c", &["-no-pie"], Kind::Program),
        ("static.c", &["-static"], Kind::Program),
        ("staticpie.c", &["-static-pie"], Kind::PieProgram),
    ] {
        let program = compile(&dir, name, INDIRECT, flags);
        let object = Object::open(&program, &[]).unwrap();
        assert_eq!(object.kind(), kind, "{name}");
        assert_eq!(object.is_static(), name.starts_with("static"), "{name}");
        let chosen = object.find(&Matcher::name("chosen"))[0];
        let resolver = object.find(&Matcher::name("choose"))[0];
        assert_eq!(chosen.kind, FunctionKind::Ifunc);
        assert_eq!(chosen.va, resolver.va);
        let wanted: BTreeSet<u64> = readelf_relocations(&program)
            .iter()
            .filter(|r| r.kind.starts_with("R_X86_64_IRELATIV") && r.value == resolver.va.0)
            .map(|r| r.slot)
            .collect();
        assert!(!wanted.is_empty(), "{name}");
        let own: BTreeSet<u64> = object.irelative_slots(resolver.va).iter().map(|va| va.0).collect();
        assert_eq!(own, wanted, "{name}");
        assert!(object.irelative_slots(Va(resolver.va.0 + 1)).is_empty());
        assert_eq!(object.import_slots("puts").len(), usize::from(!object.is_static()), "{name}");
    }
}

const THROWS: &str = r#"
#include <stdexcept>
#include <string>
#include <cstdio>
struct Guard { const char *name; explicit Guard(const char *n) : name(n) {} ~Guard() { std::puts(name); } };
namespace ns {
struct Shape { virtual ~Shape() {} virtual int area(int x) const { Guard g("area"); if (x > 3) throw std::runtime_error("big"); return x; } };
template <typename T> __attribute__((noinline)) T twice(T x) { Guard g("twice"); return x + x; }
int many(int x) {
    Guard one("one");
    try {
        Guard two("two");
        Shape shape;
        return shape.area(x) + twice<int>(x);
    } catch (const std::runtime_error &e) { std::puts(e.what()); return -1; }
    catch (int) { return -2; }
}
}
int main(int argc, char **) { return ns::many(argc + 3) + ns::many(0) > 0; }
"#;

/// Labels of landing pads in the assembler text of GCC: the third value of each record of a
/// call-site table.
fn landing_pad_labels(assembly: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    let mut values: Option<Vec<&str>> = None;
    for line in assembly.lines().map(str::trim) {
        if line.starts_with(".LLSDACSB") {
            values = Some(Vec::new());
        } else if line.starts_with(".LLSDACSE") {
            for record in values.take().unwrap().chunks(4) {
                if record[2] != "0" {
                    labels.insert(record[2].split('-').next().unwrap().to_owned());
                }
            }
        } else if let (Some(values), Some(value)) = (&mut values, line.strip_prefix(".uleb128")) {
            values.push(value.trim());
        }
    }
    labels
}

/// gold gives `.eh_frame` a type of x86-64, whose number is that of the exception tables of arm32.
/// So the linker of Haskell's compiler made programs that were taken for corrupt.
#[test]
fn program_of_gold_was_taken_for_corrupt() {
    let dir = scratch("gold");
    let program = compile(&dir, "program.c", PROGRAM, &["-fuse-ld=gold"]);
    assert!(run("readelf", &["-SW", str(&program)]).contains("X86_64_UNWIND"));
    let object = Object::open(&program, &[]).unwrap();
    assert_eq!(own_names(&object), names(&program));
    let code = object.code().unwrap();
    let has =
        |name: &str| object.find(&Matcher::name(name)).iter().all(|f| code.extents.iter().any(|e| e.start == f.va));
    assert!(has("hidden_helper") && has("main"));
}

/// C has landing pads for what is cleaned up.
const CLEANS: &str = r#"
int work(int) __attribute__((noipa));
static void end(int *x) { work(*x); }
int one(int n) { int x __attribute__((cleanup(end))) = n; return work(n + 1); }
int two(int n) {
    int x __attribute__((cleanup(end))) = n, y __attribute__((cleanup(end))) = work(n);
    for (int i = 0; i < n; i++) { int z __attribute__((cleanup(end))) = work(i); work(z + y); }
    return work(x) + y;
}
int work(int n) { asm volatile("" : "+r"(n)); return n; }
int main(int argc, char **argv) { return one(argc) + two(argc); }
"#;

#[test]
fn landing_pads_are_where_the_compiler_put_them() {
    let dir = scratch("pads");
    for (compiler, level, source, file) in [
        ("g++", &["-O0"][..], THROWS, "throws.cc"),
        ("g++", &["-O2"], THROWS, "throws.cc"),
        ("i686-linux-gnu-gcc", &["-O0", "-fexceptions", "-fPIE", "-pie"], CLEANS, "cleans.c"),
        ("i686-linux-gnu-gcc", &["-O1", "-fexceptions", "-fno-inline", "-no-pie", "-fno-pic"], CLEANS, "cleans.c"),
    ] {
        let (source_file, program, assembly) = (dir.join(file), dir.join("program"), dir.join("assembly.s"));
        std::fs::write(&source_file, source).unwrap();
        // Labels that begin with .L are kept in the symbol table.
        run(compiler, &[level, &["-Wa,--keep-locals", "-o", str(&program), str(&source_file)]].concat());
        run(compiler, &[level, &["-S", "-o", str(&assembly), str(&source_file)]].concat());
        let labels = landing_pad_labels(&std::fs::read_to_string(&assembly).unwrap());
        assert!(labels.len() >= 3, "{level:?}: {labels:?}");
        let wanted: BTreeSet<u64> = run("nm", &[str(&program)])
            .lines()
            .filter_map(|line| {
                let column: Vec<&str> = line.split_whitespace().collect();
                (column.len() == 3 && labels.contains(column[2])).then(|| hex(column[0]))
            })
            .collect();
        assert_eq!(wanted.len(), labels.len(), "{level:?}: nm does not show the labels");
        let object = Object::open(&program, &[]).unwrap();
        let code = object.code().unwrap();
        let own: BTreeSet<u64> = code.landing_pads.iter().map(|va| va.0).collect();
        assert_eq!(own, wanted, "{level:?}");
    }
}

/// A function whose unlikely half the compiler moves away, while registers are saved on the stack.
const SPLIT: &str = r#"
int use(int);
__attribute__((cold)) void bad(int a) { use(a); use(a + 1); }
int keep(int a, int b) {
    int c = use(a);
    if (c == b) { bad(a); bad(b); return use(b) * 2; }
    return use(c) + a + b;
}
__attribute__((noinline)) int use(int a) { __asm__ volatile("" : "+r"(a)); return a; }
int main(int argc, char **argv) { (void)argv; return keep(argc, 7); }
"#;

#[test]
fn parts_of_functions_are_known_by_their_unwind_information() {
    let dir = scratch("parts");
    let program = compile(&dir, "split.c", SPLIT, &["-O2"]);
    let nm = run("nm", &[str(&program)]);
    let cold = |line: &str| line.ends_with(" keep.cold").then(|| hex(line.split(' ').next().unwrap()));
    let wanted: Vec<u64> = nm.lines().filter_map(cold).collect();
    assert_eq!(wanted.len(), 1, "the compiler has not split it:\n{nm}");
    for stripped in [false, true] {
        if stripped {
            run("strip", &[str(&program)]);
        }
        let object = Object::open(&program, &[]).unwrap();
        let code = object.code().unwrap();
        let of_ours = code.parts.iter().map(|va| va.0).filter(|va| nm_names(&nm, *va));
        assert_eq!(of_ours.collect::<Vec<_>>(), wanted, "stripped: {stripped}");
        // A symbol of a part is no name of a function.
        let nameless = |name: &str| {
            let row = nm.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
            code.nameless.contains(&Va(hex(row.split(' ').next().unwrap())))
        };
        assert_eq!((nameless("keep"), nameless("keep.cold")), (stripped, true), "stripped: {stripped}");
    }
}

/// Frames that no call makes, in a CIE (which `simple` gives a frame description of its own) and in
/// the description itself, and functions with an ordinary frame.
const ODD: &str = r#"
__asm__(".text\n"
    ".macro function name:req, simple\n"
    ".globl \\name\n .type \\name, @function\n \\name: .cfi_startproc \\simple\n"
    ".endm\n"
    ".macro end name:req\n ret\n .cfi_endproc\n .size \\name, . - \\name\n .endm\n"
    "function odd_cie simple\n .cfi_def_cfa 7, 24\n .cfi_offset 16, -8\n nop\n end odd_cie\n"
    "function odd_own\n .cfi_adjust_cfa_offset 16\n nop\n end odd_own\n"
    "function odd_register simple\n .cfi_def_cfa 6, 8\n .cfi_offset 16, -8\n nop\n end odd_register\n"
    "function outermost\n .cfi_undefined 16\n nop\n end outermost\n"
    "function outermost_cie simple\n .cfi_def_cfa 7, 8\n .cfi_undefined 16\n nop\n end outermost_cie\n"
    "function plain\n nop\n end plain\n"
    "function plain_cie simple\n .cfi_def_cfa 7, 8\n .cfi_offset 16, -8\n nop\n end plain_cie\n"
    "function pushes\n push %rbx\n .cfi_adjust_cfa_offset 8\n pop %rbx\n .cfi_adjust_cfa_offset -8\n end pushes\n"
    "function forgets\n nop\n .cfi_undefined 16\n nop\n end forgets\n");
int main(void) { return 0; }
"#;

#[test]
fn a_frame_that_no_call_makes_was_not_seen_in_a_cie() {
    let dir = scratch("odd");
    let program = compile(&dir, "odd.c", ODD, &["-O2"]);
    let object = Object::open(&program, &[]).unwrap();
    let code = object.code().unwrap();
    assert!(code.odd_frames.is_sorted());
    let is_in = |list: &[Va], name: &str| {
        let function = object.find(&Matcher::name(name));
        list.binary_search(&function.first().unwrap_or_else(|| panic!("no {name}")).va).is_ok()
    };
    for odd in ["odd_cie", "odd_own", "odd_register", "outermost", "outermost_cie", "_start"] {
        assert!(is_in(&code.odd_frames, odd), "{odd} is taken for a function that calls lead to");
    }
    for plain in ["plain", "plain_cie", "pushes", "forgets", "main"] {
        assert!(!is_in(&code.odd_frames, plain), "{plain} is taken for code that no call leads to");
    }
}

/// Whether nm shows a symbol at an address: start-up code and PLTs may be there, too.
fn nm_names(nm: &str, va: u64) -> bool {
    nm.lines().any(|line| line.split(' ').next().is_some_and(|word| word.len() == 16 && hex(word) == va))
}

#[test]
fn cxx_functions_by_all_their_names() {
    let dir = scratch("cxx");
    let program = compile(&dir, "throws.cc", THROWS, &["-O0"]);
    let object = Object::open(&program, &[]).unwrap();
    let find = |text: &str| -> BTreeSet<String> {
        let found = object.find(&Matcher::glob(text));
        found.iter().map(|f| f.name.to_string()).collect()
    };
    let one = |name: &str| BTreeSet::from([name.to_owned()]);
    for text in ["_ZN2ns4manyEi", "ns::many", "ns::many(int)", "ns::man?", "ns::many( int )", "_ZN2ns4many*"] {
        assert_eq!(find(text), one("_ZN2ns4manyEi"), "{text}");
    }
    assert_eq!(find("ns::Shape::area"), one("_ZNK2ns5Shape4areaEi"));
    assert_eq!(find("ns::Shape::area(int) const"), one("_ZNK2ns5Shape4areaEi"));
    assert_eq!(find("ns::twice<int>"), one("_ZN2ns5twiceIiEET_S1_"));
    assert_eq!(find("int ns::twice<int>(int)"), one("_ZN2ns5twiceIiEET_S1_"));
    assert!(find("ns::*").len() >= 5);
    // The complete and the base object's constructor and destructor share their code.
    for name in ["Guard::Guard", "Guard::Guard(char const*)", "Guard::~Guard"] {
        let found = object.find(&Matcher::name(name));
        assert_eq!((found.len(), by_address(&found).len()), (2, 1), "{name}");
    }
    assert!(find("many").is_empty());
    assert_eq!(object.find(&Matcher::glob("ns::many"))[0].short_name(), "ns::many");
    let near = object.not_found("ns::manny").to_string();
    assert!(near.contains("did you mean `ns::many`?"), "{near}");
    let near = object.not_found("many").to_string();
    assert!(near.contains("did you mean `ns::many`?"), "a name without its path: {near}");
}

#[test]
fn cold_parts_are_no_functions_for_globs() {
    let source = r"
        #include <stdlib.h>
        __attribute__((cold, noinline)) void die(int x) { exit(x); }
        __attribute__((noinline)) int work(int x) { if (__builtin_expect(x > 3, 0)) { die(x); die(x + 1); } return x; }
        int main(int argc, char **argv) { return work(argc); }
    ";
    let program = compile(&scratch("cold"), "cold.c", source, &["-O2"]);
    let object = Object::open(&program, &[]).unwrap();
    let cold = object.find(&Matcher::name("work.cold"));
    assert_eq!(cold[0].kind, FunctionKind::Cold);
    let names: Vec<&str> = object.find(&Matcher::glob("work*")).iter().map(|f| &*f.name).collect();
    assert_eq!(names, ["work"]);
    assert!(object.code().unwrap().labels.contains(&cold[0].va));
}

#[test]
fn packed_relocations_store_the_same_pointers() {
    let source = r"
        int a(void) { return 1; } int b(void) { return 2; }
        int (*table[200])(void) = { [0 ... 99] = a, [100] = 0, [101 ... 199] = b };
        int main(int argc, char **argv) { return table[argc](); }
    ";
    let dir = scratch("relr");
    let pack = "-Wl,-z,pack-relative-relocs";
    let [plain, packed] = [("plain.c", "-g0"), ("packed.c", pack)].map(|(name, flag)| {
        let program = compile(&dir, name, source, &["-pie", "-fPIE", flag]);
        let object = Object::open(&program, &[]).unwrap();
        let pointers = object.code().unwrap().pointers;
        let names: BTreeSet<String> = pointers
            .iter()
            .filter_map(|va| object.function_at(*va).map(|(f, offset)| format!("{}+{offset}", f.name)))
            .collect();
        names
    });
    assert!(plain.contains("a+0") && plain.contains("b+0"));
    assert_eq!(plain, packed);
}

#[test]
fn a_fixed_program_has_its_code_pointers_in_data() {
    let source = r"
        int a(void) { return 1; }
        int (*table[3])(void) = { 0, a, 0 };
        int main(int argc, char **argv) { return table[argc](); }
    ";
    let program = compile(&scratch("fixed"), "fixed.c", source, &["-no-pie", "-fno-pie"]);
    let object = Object::open(&program, &[]).unwrap();
    let a = object.find(&Matcher::name("a"))[0].va;
    assert!(object.code().unwrap().pointers.contains(&a));
}

#[test]
fn other_files_get_one_clear_line() {
    let dir = scratch("other");
    let text = dir.join("text");
    std::fs::write(&text, "hello, this is no program\n").unwrap();
    let empty = dir.join("empty");
    std::fs::write(&empty, "").unwrap();
    let source = dir.join("object.c");
    std::fs::write(&source, "int x(void) { return 1; }").unwrap();
    let relocatable = dir.join("object.o");
    run("cc", &["-c", "-o", str(&relocatable), str(&source)]);
    // Of MIPS.
    let mut other = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    (other[4], other[18]) = (1, 8);
    std::fs::write(dir.join("mips"), &other).unwrap();
    let short = dir.join("short");
    std::fs::write(&short, &other[..6]).unwrap();
    let pipe = dir.join("pipe");
    run("mkfifo", &[str(&pipe)]);
    for (file, wanted) in [
        (text, "is not an ELF file"),
        (empty, "is not an ELF file"),
        (relocatable, "is an object file that is not linked yet: not supported yet"),
        (dir.join("mips"), "is a 32-bit program for another machine (e_machine 8): not supported yet"),
        (short, "is corrupt: it ends within the file header"),
        (dir.clone(), "is not a regular file"),
        (pipe, "is not a regular file"),
        (dir.join("none"), "No such file"),
    ] {
        let message = Object::open(&file, &[]).unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
        assert!(message.contains(str(&file)), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
}

#[test]
fn a_large_program_is_read_without_its_debug_information() {
    let dir = scratch("large");
    let program = compile(&dir, "program.c", PROGRAM, &["-g"]);
    let wanted = names(&program);
    let filler = dir.join("filler");
    std::fs::write(&filler, vec![0x5a; 8 << 20]).unwrap();
    let section = format!(".debug_filler={}", str(&filler));
    run("objcopy", &["--add-section", &section, str(&program)]);
    let object = Object::open(&program, &[]).unwrap();
    assert_eq!(own_names(&object), wanted);
    assert!(object.code().is_ok());

    let bytes = std::fs::read(&program).unwrap();
    for keep in [bytes.len() / 2, bytes.len() - 100, 2 << 20] {
        std::fs::write(&program, &bytes[..keep]).unwrap();
        let error = Object::open(&program, &[]).unwrap_err();
        assert!(matches!(error, ObjectError::Corrupt { .. }), "{error}");
    }
}

#[test]
fn restartable_sequences_are_where_their_descriptions_say() {
    let source = "
        .section __rseq_cs,\"aw\"
        .balign 32
        .long 0,0
        .quad 1f,2f-1f,3f
        .text
        .globl main
        .type main,@function
        main: nop
        1: mov %rdi,%rax
        add $1,%rax
        2: ret
        .byte 0x0f,0xb9,0x3d
        .long 0x53053053
        3: jmp 2b
        .size main,.-main
        .section .note.GNU-stack,\"\",@progbits";
    let dir = scratch("restartable");
    for flags in [&["-no-pie"][..], &["-pie"], &["-shared"], &["-pie", "-Wl,-z,pack-relative-relocs"]] {
        let program = compile(&dir, "sequence.s", source, flags);
        let object = Object::open(&program, &[]).unwrap();
        let main = object.find(&Matcher::name("main"))[0].va;
        let found: Vec<_> = object.code().unwrap().restartable.iter().map(|e| (e.start.since(main), e.len.0)).collect();
        assert_eq!(found, [(1, 7), (12, 4)], "{flags:?}");
    }
}

#[test]
fn places_that_programs_change_are_where_their_tables_say() {
    let source =
        "__attribute__((noinline)) int twice(int x) { return 2 * x; }\nint main(int n, char **v) { return twice(n); }";
    let dir = scratch("rewritten");
    for (flags, by, lens) in [
        (&["-fpatchable-function-entry=5"][..], Rewriter::Patchable, [5, 5]),
        (&["-fpatchable-function-entry=16,14", "-fcf-protection"], Rewriter::Patchable, [20, 20]),
        (&["-fpatchable-function-entry=3", "-Wl,-z,pack-relative-relocs"], Rewriter::Patchable, [3, 3]),
        (&["-fpatchable-function-entry=3", "-no-pie"], Rewriter::Patchable, [3, 3]),
    ] {
        let program = compile(&dir, "rewritten.c", source, &[flags, &["-O1"]].concat());
        let object = Object::open(&program, &[]).unwrap();
        let code = object.code().unwrap();
        let places: Vec<_> = ["main", "twice"]
            .into_iter()
            .filter_map(|name| {
                let va = object.find(&Matcher::name(name))[0].va;
                let is_here = |p: &&Rewritten| p.extent.start <= va.offset(4) && va < p.extent.start.plus(p.extent.len);
                let place = code.rewritten.iter().find(is_here)?;
                // Nothing jumps to the places.
                assert!(!code.pointers.contains(&place.extent.start), "{flags:?}");
                Some((place.by, place.extent.len.0))
            })
            .collect();
        assert_eq!(places, lens.map(|len| (by, len)), "{flags:?}");
    }
}

#[test]
fn what_mono_has_compiled_is_known_by_its_table() {
    let dir = scratch("mono");
    for (name, is_mono) in [("mono_aot_file_info", true), ("mono_aot_file", false)] {
        let source = format!("int {name}[4] = {{ 1 }}; int twice(int x) {{ return 2 * x; }}");
        let library = compile(&dir, &format!("{name}.c"), &source, &["-shared", "-fPIC", "-s"]);
        assert_eq!(Object::open(&library, &[]).unwrap().code().unwrap().mono, is_mono, "{name}");
    }
}
