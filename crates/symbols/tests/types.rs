//! Types from DWARF, judged by gdb's `ptype /o` and the compiler's own offsets.

mod support;

use std::path::Path;

use sidestep_symbols::{DataType, DebugInfo, FunctionType, Matcher, Object, Passed, TypeError};
use support::{compile, run, scratch, str};

const SOURCE: &str = r#"
#include <stddef.h>
enum colour { RED, GREEN = 5, BELOW = -2 };
typedef unsigned long word;
struct inner { short s; char text[6]; };
union both { int i; double d; };
struct outer {
    char c;
    struct outer *next;
    unsigned low : 3, high : 13;
    long long wide : 37;
    struct inner list[2][3];
    union both both;
    struct { int x, y; };
    enum colour colour;
    float ratio;
    const volatile word *words;
    int (*call)(void);
    _Bool yes;
};
struct outer only;
__attribute__((noipa)) int visit(const struct outer *outer, enum colour colour, struct inner inner, word n, double d)
{
    return outer->c + colour + inner.s + n + d;
}
__attribute__((noipa)) struct inner *nothing(void) { return 0; }
static inline __attribute__((always_inline)) long inlined(long n) { return n + 1; }
long (*volatile pointer)(long) = inlined;
int main(void) { return visit(&only, RED, (struct inner){1, ""}, 2, 3) + (int)inlined(4) + (nothing() != 0); }
"#;

fn opened(dir: &Path, flags: &[&str]) -> (Object, DebugInfo) {
    let program = compile(dir, "program.c", SOURCE, flags);
    let object = Object::open(&program, &[]).unwrap();
    let info = object.debug_info().unwrap();
    (object, info)
}

/// Offsets in bits and widths of the members of a type, as gdb shows them:
/// `/*    8:  0   |     4 */    unsigned int low : 3;`
fn by_gdb(program: &Path, ty: &str) -> Vec<(u64, String)> {
    let text = run("gdb", &["-batch", "-nx", "-ex", &format!("ptype /o {ty}"), str(program)]);
    let mut members = Vec::new();
    let mut depth = 0;
    for line in text.lines() {
        let code = line.split("*/").nth(1).unwrap_or(line).trim();
        let place = line.strip_prefix("/*").and_then(|rest| rest.split('|').next()).map(str::trim).unwrap_or("");
        if code.ends_with('{') {
            depth += 1;
            continue;
        }
        if code.starts_with('}') {
            depth -= 1;
        }
        let numbers: Vec<u64> = place.split(':').filter_map(|n| n.trim().parse().ok()).collect();
        let declares = code.ends_with(';') && depth == 1 && !code.starts_with('}');
        if declares && !numbers.is_empty() {
            let name = code.trim_end_matches(';').split(" : ").next().unwrap_or("");
            let mut name = name.split('[').next().unwrap_or("").split([' ', '*', '(', ')']).filter(|w| !w.is_empty());
            let name = if code.contains("(*") { "call" } else { name.next_back().unwrap_or("") };
            members.push((8 * numbers[0] + numbers.get(1).unwrap_or(&0), name.to_owned()));
        }
    }
    members
}

#[test]
fn members_lie_where_gdb_shows_them() {
    for flags in
        [&["-g"][..], &["-g", "-gdwarf-4"], &["-g", "-gdwarf-3"], &["-g", "-gz"], &["-g", "-fdebug-types-section"]]
    {
        let dir = scratch("types");
        let (object, info) = opened(&dir, flags);
        let DataType::Record { place, name } = info.find("struct outer", None).unwrap() else { panic!("{flags:?}") };
        assert_eq!(name, "struct outer");
        let layout = info.layout(place).unwrap();
        let gdb = by_gdb(object.path(), "struct outer");
        assert!(gdb.len() >= 9, "{gdb:?}");
        for (bit, name) in &gdb {
            let own = layout.members.iter().find(|member| member.name == *name);
            assert_eq!(own.map(|member| member.bit), Some(*bit), "{flags:?} {name}");
        }
        let size = run("gdb", &["-batch", "-nx", "-ex", "p sizeof(struct outer)", str(object.path())]);
        assert_eq!(size.trim(), format!("$1 = {}", layout.size), "{flags:?}");
        let list = layout.members.iter().find(|member| member.name == "list").unwrap();
        let DataType::Array(rows, 2) = &list.ty else { panic!("{:?}", list.ty) };
        assert!(matches!(&**rows, DataType::Array(_, 3)), "{:?}", list.ty);
    }
}

#[test]
fn functions_have_their_parameters() {
    for flags in [&["-g", "-O2"][..], &["-g", "-O0", "-gdwarf-4"]] {
        let (object, info) = opened(&scratch("parameters"), flags);
        let va = |name: &str| object.find(&Matcher::name(name))[0].va;
        let visit = info.function(va("visit"), "visit").unwrap();
        let list: Vec<String> = visit.parameters.iter().map(|p| format!("{} {}", p.text, p.name)).collect();
        let expected = ["const struct outer* outer", "enum colour colour", "struct inner inner", "word n", "double d"];
        assert_eq!(list, expected);
        assert_eq!(visit.result, DataType::Number { bytes: 4, signed: true });
        assert_eq!(visit.parameters[3].ty, DataType::Number { bytes: 8, signed: false });
        let DataType::Enum(colour) = &visit.parameters[1].ty else { panic!("{visit:?}") };
        assert_eq!((colour.signed, colour.values.last()), (true, Some(&("BELOW".to_owned(), -2_i64 as u64))));
        let nothing = info.function(va("nothing"), "nothing").unwrap();
        assert!(nothing.parameters.is_empty() && nothing.result_text == "struct inner*", "{nothing:?}");
        // The copy of an inlined function, which is described where it was declared.
        let inlined = info.function(va("inlined"), "inlined").unwrap();
        assert_eq!(inlined.parameters[0].name, "n");
        let copy = info.function(va("visit"), "visit.constprop.0");
        assert!(matches!(copy, Err(TypeError::Changed { .. })), "{copy:?}");
        assert_eq!(info.constant("GREEN", va("visit")).map(|of| of.name), Some("enum colour".to_owned()));
    }
}

#[test]
fn what_is_missing_is_said() {
    let dir = scratch("untyped");
    let (object, info) = opened(&dir, &["-g"]);
    assert!(info.find("struct nowhere", None).unwrap_err().to_string().contains("no type 'struct nowhere'"));
    assert!(matches!(info.find("word", None), Ok(DataType::Number { bytes: 8, signed: false })));
    run("strip", &["-g", str(object.path())]);
    let error = Object::open(object.path(), &[]).unwrap().debug_info().err().unwrap();
    assert!(matches!(error, TypeError::NoDebugInfo { .. }), "{error}");
}

#[test]
fn debug_files_are_named_or_lie_in_a_directory_that_is() {
    let dir = scratch("named");
    let (object, _) = opened(&dir, &["-g"]);
    let path = object.path().to_owned();
    let other = compile(&dir, "other.c", "int main(void) { return 0; }", &["-g"]);
    let (folder, elsewhere) = (dir.join("debug"), dir.join("elsewhere"));
    let id = run("readelf", &["-n", str(&path)]);
    let id = id.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap().to_owned();
    let by_id = folder.join(".build-id").join(&id[..2]);
    std::fs::create_dir_all(&by_id).unwrap();
    std::fs::create_dir_all(&elsewhere).unwrap();
    let named = elsewhere.join("any name");
    run("objcopy", &["--only-keep-debug", str(&path), str(&named)]);
    std::fs::copy(&named, elsewhere.join("program.debug")).unwrap();
    std::fs::copy(&named, by_id.join(format!("{}.debug", &id[2..]))).unwrap();
    run("strip", &[str(&path)]);
    let find = |given: &Path| {
        let object = Object::open(&path, &[given.to_owned()]).unwrap();
        object.debug_info().and_then(|info| info.find("struct outer", None).map(|_| object.lines().is_some()))
    };
    for given in [&named, &elsewhere.join("program.debug"), &folder] {
        assert_eq!(find(given), Ok(true), "{}", given.display());
    }
    // As the working directory has it.
    let here = std::env::current_dir().unwrap();
    let up: String = here.components().skip(1).map(|_| "../").collect();
    let relative = Path::new(&up).join(folder.strip_prefix("/").unwrap());
    assert_eq!(find(&relative), Ok(true), "{}", relative.display());
    // That of another program.
    let error = find(&other).unwrap_err().to_string();
    assert!(error.contains(&format!("{}: it has another build id", other.display())), "{error}");
    assert!(find(&dir.join("none.debug")).unwrap_err().to_string().contains("none.debug"));
}

/// Before version 5 of DWARF, nothing need say that a constructor is `= default`.
#[test]
fn classes_with_a_defaulted_constructor_were_taken_for_references() {
    let source = r#"
struct view { const char *text; long len; view(const char *t, long n) : text(t), len(n) {} view(const view &) = default; };
struct copied { int n; copied(int n) : n(n) {} copied(const copied &of) : n(of.n + 1) {} };
struct moved { int n; moved(int n) : n(n) {} moved(const moved &) = delete; moved(moved &&) = default; };
struct other { int f() { return 1; } };
__attribute__((noipa)) long takes(view v, copied c) { return v.len + c.n; }
__attribute__((noipa)) copied gives(int n) { return copied(n); }
__attribute__((noipa)) moved moves(moved m, int n) { return moved(m.n + n); }
__attribute__((noipa)) int member(int (other::*of)(), int n) { return of == &other::f ? n : 0; }
int main() { return takes(view("ab", 2), gives(3)) + moves(moved(1), 2).n + member(&other::f, 1); }
"#;
    for (flags, tells) in [
        (&["-g"][..], true),
        (&["-g", "-gdwarf-5"], true),
        (&["-g", "-gdwarf-4"], true),
        (&["-g", "-gdwarf-4", "-gstrict-dwarf"], false),
    ] {
        let program = compile(&scratch("defaulted"), "program.cpp", source, flags);
        let object = Object::open(&program, &[]).unwrap();
        let info = object.debug_info().unwrap();
        let of = |name: &str| info.function(object.find(&Matcher::name(name))[0].va, name).unwrap();
        let is_reference = |ty: &DataType| matches!(ty, DataType::Reference(_) | DataType::Pointer(_));
        let takes = of("takes");
        let are_known = |of: &FunctionType| of.parameters.iter().all(|parameter| parameter.passed == Passed::Abi);
        let (gives, moves) = (of("gives"), of("moves"));
        if tells {
            assert!(!is_reference(&takes.parameters[0].ty) && is_reference(&takes.parameters[1].ty), "{takes:?}");
            assert!(gives.result_in_memory && !moves.result_in_memory && !is_reference(&moves.parameters[0].ty));
        }
        // Where nothing says it, nobody knows.
        assert_eq!([&takes, &gives, &moves].map(are_known), [tells; 3], "{flags:?}");
        let DataType::Array(word, 2) = &of("member").parameters[0].ty else { panic!("{:?}", of("member")) };
        assert_eq!(**word, DataType::Number { bytes: 8, signed: false });
    }
}
