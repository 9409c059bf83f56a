//! Debug information that the compiler has split off: it says what it says unsplit.

mod support;

use std::path::{Path, PathBuf};

use sidestep_symbols::{DataType, DebugInfo, Matcher, Object, TypeError};
use support::{run, scratch, str};

const MAIN: &str = r#"
struct record { char c; struct record *next; unsigned low : 3, high : 13; };
struct only_here { int x; };
int other(struct record *record, long n);
__attribute__((noinline, noclone)) long visit(const struct record *record, const char *name, unsigned char small)
{
    __asm__ volatile("" : : "r"(name), "r"((int)small) : "memory");
    return record->c + other((struct record *)record, small);
}
struct only_here here;
int main(int argc, char **argv)
{
    struct record record = {1, 0, 2, 3};
    return (int)visit(&record, argv[0], argc) + here.x;
}
"#;
const OTHER: &str = r#"
struct record { char c; struct record *next; unsigned low : 3, high : 13; };
struct only_there { short y, z; };
struct only_there there;
static inline __attribute__((always_inline)) int twice(int n)
{
    __asm__ volatile("" : "+r"(n));
    return n * 2;
}
__attribute__((noinline, noclone)) int other(struct record *record, long n)
{
    return twice(record->c) + n + there.y;
}
"#;

/// A compiler, and how it is told to split.
type How<'a> = (&'a str, &'a [&'a str]);

const GCC: &str = "gcc";
const CLANG: &str = "clang";
const HOW: [How; 7] = [
    (GCC, &["-gdwarf-5", "-gsplit-dwarf"]),
    (GCC, &["-gdwarf-4", "-gsplit-dwarf"]),
    (GCC, &["-gdwarf-5", "-gsplit-dwarf", "-fdebug-types-section"]),
    (GCC, &["-gdwarf-4", "-gsplit-dwarf", "-fdebug-types-section"]),
    (CLANG, &["-gdwarf-5", "-gsplit-dwarf"]),
    (CLANG, &["-gdwarf-4", "-gsplit-dwarf"]),
    (CLANG, &["-gdwarf-5", "-gsplit-dwarf=single"]),
];

/// Compiles both files in `dir`, which the compiler is run in.
fn build(dir: &Path, compiler: &str, flags: &[&str]) -> PathBuf {
    for (name, text) in [("main.c", MAIN), ("other.c", OTHER)] {
        std::fs::write(dir.join(name), text).unwrap();
        let object = name.replace(".c", ".o");
        let args = [&["-C", str(dir), compiler, "-O1", "-g", "-c", name, "-o", &object], flags].concat();
        run("env", &args);
    }
    run("env", &["-C", str(dir), compiler, "main.o", "other.o", "-o", "program"]);
    dir.join("program")
}

/// All that there is to say of a program.
fn said(program: &Path) -> String {
    use std::fmt::Write;
    let object = Object::open(program, &[]).unwrap();
    let info = object.debug_info().unwrap();
    let lines = object.lines().unwrap();
    let mut text = String::new();
    for name in ["visit", "other", "main"] {
        let function = object.find(&Matcher::name(name))[0];
        let found = info.function(function.va, name).unwrap();
        for parameter in &found.parameters {
            write!(text, "{} {}, ", parameter.text, parameter.name).unwrap();
        }
        writeln!(text, "-> {} {name} {:?}", found.result_text, found.kept).unwrap();
        for offset in 0..function.size.0 {
            let places = lines.at(function.va.offset(offset as i64));
            let shown = |place: &sidestep_symbols::inlined::Place| {
                let line = place.line.as_ref().map(|(file, line)| (file.rsplit('/').next().unwrap().to_owned(), *line));
                format!("{:?} {line:?}", place.function)
            };
            writeln!(text, "{offset} {:?}", places.iter().map(shown).collect::<Vec<_>>()).unwrap();
        }
    }
    for name in ["struct record", "struct only_here", "struct only_there"] {
        writeln!(text, "{name} {}", layout(&info, name).unwrap()).unwrap();
    }
    writeln!(text, "{:?}", object.line("other.c", 12, None).unwrap().len()).unwrap();
    text
}

fn layout(info: &DebugInfo, name: &str) -> Result<String, TypeError> {
    let DataType::Record { place, .. } = info.find(name, None)? else { return Ok(String::new()) };
    let layout = info.layout(place)?;
    let members = layout.members.iter().map(|m| format!("{} {} {} {:?}", m.text, m.name, m.bit, m.width));
    Ok(format!("{} {:?}", layout.size, members.collect::<Vec<_>>()))
}

fn same(split: &str, whole: &str, how: How) {
    let differs = split.lines().zip(whole.lines()).find(|(a, b)| a != b);
    assert_eq!((differs, split.len()), (None, whole.len()), "{how:?}");
}

/// Each way of those compilers that are installed: where its program is, and one that is not split.
fn each(test: &str, mut with: impl FnMut(&Path, How, &Path)) {
    for (index, how) in HOW.into_iter().enumerate() {
        if !support::has(how.0) {
            continue;
        }
        let whole = scratch(&format!("{test}-{index}-whole"));
        let version = how.1[0];
        let plain = build(&whole, how.0, &[version]);
        let dir = scratch(&format!("{test}-{index}"));
        build(&dir, how.0, how.1);
        with(&dir, how, &plain);
    }
}

#[test]
fn split_files_say_what_is_said_without_them() {
    each("split", |dir, how, plain| {
        same(&said(&dir.join("program")), &said(plain), how);
    });
}

#[test]
fn split_files_are_found_beside_a_program_that_was_moved() {
    each("moved", |dir, how, plain| {
        let moved = scratch(&format!("{}-to", dir.file_name().unwrap().to_str().unwrap()));
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap().path();
            std::fs::rename(&entry, moved.join(entry.file_name().unwrap())).unwrap();
        }
        same(&said(&moved.join("program")), &said(plain), how);
    });
}

#[test]
fn packages_say_what_is_said_without_them() {
    each("package", |dir, how, plain| {
        // That of binutils knows no DWARF 5, that of LLVM no type units of GCC.
        let tool = if how.1[0] == "-gdwarf-4" { "dwp" } else { "llvm-dwp-19" };
        if how.1.contains(&"-gsplit-dwarf=single") || how.1.len() > 2 && tool != "dwp" || !support::has(tool) {
            return;
        }
        run("env", &["-C", str(dir), tool, "-e", "program", "-o", "program.dwp"]);
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap().path();
            if entry.extension().is_some_and(|ext| ext == "dwo") {
                std::fs::remove_file(entry).unwrap();
            }
        }
        same(&said(&dir.join("program")), &said(plain), how);
    });
}

#[test]
fn skeletons_in_a_debug_file() {
    let dir = scratch("split-stripped");
    let program = build(&dir, GCC, &["-gdwarf-5", "-gsplit-dwarf"]);
    let before = said(&program);
    let debug = dir.join("program.debug");
    run("objcopy", &["--only-keep-debug", "--compress-debug-sections", str(&program), str(&debug)]);
    run("strip", &[str(&program)]);
    run("objcopy", &[&format!("--add-gnu-debuglink={}", str(&debug)), str(&program)]);
    same(&said(&program), &before, HOW[0]);
}

#[test]
fn a_missing_file_is_named() {
    each("gone", |dir, how, _| {
        let file = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let single = how.1.contains(&"-gsplit-dwarf=single");
        let is_it = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.ends_with(if single { "other.o" } else { "other.dwo" })
        };
        let gone = file.into_iter().find(is_it).unwrap();
        let other = std::fs::read(&gone).unwrap();
        std::fs::remove_file(&gone).unwrap();
        let program = dir.join("program");
        let object = Object::open(&program, &[]).unwrap();
        let function = |object: &Object, name: &str| {
            let va = object.find(&Matcher::name(name))[0].va;
            object.debug_info().unwrap().function(va, name).map(|f| f.parameters.len())
        };
        assert_eq!(function(&object, "visit"), Ok(3), "{how:?}");
        let error = function(&object, "other").unwrap_err().to_string();
        let name = gone.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name) && error.contains("program.dwp") && error.contains(str(&gone)), "{error}");
        let info = object.debug_info().unwrap();
        assert!(layout(&info, "struct only_here").is_ok());
        assert!(layout(&info, "struct only_there").unwrap_err().to_string().contains(name));
        let lines = object.lines().unwrap();
        assert!(!lines.at(object.find(&Matcher::name("other"))[0].va).is_empty());
        assert!(lines.missing().is_some_and(|missing| missing.contains(name)));
        // Of another build, as if its source had changed; and broken.
        let changed = OTHER.replace("short y, z", "short y, z, q");
        let again = scratch(&format!("{}-again", dir.file_name().unwrap().to_str().unwrap()));
        build(&again, how.0, how.1);
        std::fs::write(again.join("other.c"), changed).unwrap();
        let args = [&["-C", str(&again), how.0, "-O1", "-g", "-c", "other.c", "-o", "other.o"], how.1].concat();
        run("env", &args);
        std::fs::copy(again.join(name), &gone).unwrap();
        let error = function(&object, "other").unwrap_err().to_string();
        assert!(error.contains("it is of another build"), "{error}");
        std::fs::write(&gone, &other[..other.len() / 2]).unwrap();
        assert!(function(&object, "other").is_err());
        std::fs::write(&gone, "").unwrap();
        assert!(function(&object, "other").is_err());
        std::fs::remove_file(&gone).unwrap();
        run("mkfifo", &[str(&gone)]);
        assert!(function(&object, "other").is_err());
    });
}

/// Whatever the files say, something is answered, soon.
#[test]
fn flipped_bytes() {
    for (index, (how, tool)) in [(HOW[0], ""), (HOW[3], ""), (HOW[3], "dwp")].into_iter().enumerate() {
        let dir = scratch(&format!("split-flipped-{index}"));
        let program = build(&dir, how.0, how.1);
        let mut file = dir.join("other.dwo");
        if !tool.is_empty() {
            run("env", &["-C", str(&dir), tool, "-e", "program", "-o", "program.dwp"]);
            std::fs::remove_file(file).unwrap();
            file = dir.join("program.dwp");
        }
        let sample = std::fs::read(&file).unwrap();
        let object = Object::open(&program, &[]).unwrap();
        let function = object.find(&Matcher::name("other"))[0];
        for n in 0..300 {
            let mut bytes = sample.clone();
            let at = (n * 7919) % bytes.len();
            bytes[at] = [0, 0xff, 0x80, bytes[at] ^ 1][n % 4];
            std::fs::write(&file, bytes).unwrap();
            let info = object.debug_info().unwrap();
            let _ = info.function(function.va, "other");
            let _ = (layout(&info, "struct only_there"), info.constant("nothing", function.va));
            let _ = object.lines().unwrap().at(function.va);
        }
    }
}
