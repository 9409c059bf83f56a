//! Values of maps as JSON and text. bpftool, where it is, is the judge (Debian's package bpftool;
//! as root).

mod bpftool;
mod in_kernel;
#[path = "../kernel/mod.rs"]
mod kernel;

use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_bpf::dump::{DumpError, Form, MapForm, Style, placed_types, type_named};
use sidestep_bpf::object::{Btf, Object, ObjectMap};

/// Compiles a source to an object, whose path it returns.
fn compile(name: &str, source: &Path) -> PathBuf {
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dump-{name}.bpf.o"));
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-g", "-O2", "-Wall", "-c"]).arg(source).arg("-o").arg(&object);
    let output = clang.output().unwrap_or_else(|e| panic!("clang does not start ({e}): install the package clang"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    object
}

fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dump").join(file)
}

/// `types.c` for the test with this name: tests run side by side.
fn types(name: &str) -> PathBuf {
    compile(name, &source("types.c"))
}

/// The types in text of C that declares variables.
fn declared(name: &str, text: &str) -> Btf {
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dump-{name}.c"));
    std::fs::write(&source, text).unwrap();
    placed_types(&std::fs::read(compile(name, &source)).unwrap()).unwrap().unwrap()
}

fn map<'a>(object: &'a Object, name: &str) -> &'a ObjectMap {
    object.maps.iter().find(|m| m.map.name == name).unwrap()
}

/// A value of a type, as JSON and as text.
fn both(btf: &Btf, ty: &str, bytes: &[u8]) -> [String; 2] {
    let form = Form::Type(btf, type_named(btf, ty).unwrap_or_else(|| panic!("no {ty}")));
    [Style::Json, Style::Text].map(|style| form.print(style, bytes).unwrap())
}

#[test]
fn values_of_each_type() {
    let btf = declared(
        "each",
        "typedef char c; typedef const char text[6]; typedef int (*fn)(void); typedef _Bool b; typedef float f;
         typedef double d; typedef unsigned __int128 w; typedef unsigned char bytes[2]; typedef c cs[2];
         enum e { ONE = 1, LESS = -2 }; typedef enum { BIG = 0xf0000000 } big; typedef enum __attribute__((packed)) { TINY = 200 } small; struct bits { int a : 3; unsigned b : 30; };
         struct nested { struct { int x[2]; } in; union { long l; char s[8]; }; };
         c v1; text v2 = {}; fn v3; b v4; f v5; d v6; w v7; bytes v8; enum e v9; struct bits v10; struct nested v11; cs v12; big v13; small v14;",
    );
    let same = |ty: &str, bytes: &[u8], expected: &str| assert_eq!(both(&btf, ty, bytes), [expected, expected], "{ty}");
    same("c", b"a", "97");
    same("c", &[0x80], "-128");
    same("int", &(-5i32).to_le_bytes(), "-5");
    same("text", b"redis\0", "\"redis\"");
    same("text", b"a\"\\b\0\n", r#""a\"\\b""#);
    same("text", b"a\nb\0cd", "[97,10,98,0,99,100]");
    same("text", b"redis!", "[114,101,100,105,115,33]");
    same("text", &[0; 6], "\"\"");
    same("bytes", b"a\0", "[97,0]");
    same("cs", b"a\0", "[97,0]");
    same("b", &[1], "true");
    same("b", &[0], "false");
    same("f", &1.5f32.to_le_bytes(), "1.5");
    same("d", &(-0.1f64).to_le_bytes(), "-0.1");
    same("d", &f64::NAN.to_le_bytes(), "\"NaN\"");
    same("enum e", &[1, 0, 0, 0], "\"ONE\"");
    same("e", &(-2i32).to_le_bytes(), "\"LESS\"");
    same("e", &(-3i32).to_le_bytes(), "-3");
    same("big", &0xf000_0000u32.to_le_bytes(), "\"BIG\"");
    same("small", &[200], "\"TINY\"");
    let text = |ty: &str, bytes: &[u8], json: &str, text: &str| assert_eq!(both(&btf, ty, bytes), [json, text], "{ty}");
    text("fn", &0x40_1000u64.to_le_bytes(), "4198400", "0x401000");
    text("w", &(1u128 << 64).to_le_bytes(), "\"0x10000000000000000\"", "0x10000000000000000");
    // The second does not fit behind the first.
    text("struct bits", &[0xfb, 0, 0, 0, 7, 0, 0, 0x40], r#"{"a":"0x3","b":"0x7"}"#, r#"{"a": 0x3,"b": 0x7}"#);
    text(
        "struct nested",
        b"\x01\0\0\0\x02\0\0\0hi\0\0\0\0\0\0",
        r#"{"in":{"x":[1,2]},"":{"l":26984,"s":"hi"}}"#,
        r#"{"in": {"x": [1,2]},"": {"l": 26984,"s": "hi"}}"#,
    );
}

#[test]
fn types_are_found_by_name() {
    let btf =
        declared("names", "struct event { int a; } e; union u { int b; } f; typedef struct { int c; } anon; anon g;");
    for name in ["event", "struct event", "union u", "u", "anon", "int"] {
        assert!(type_named(&btf, name).is_some(), "{name}");
    }
    for name in ["union event", "struct u", "enum event", "struct anon", "", "struct ", "g", "nothing"] {
        assert_eq!(type_named(&btf, name), None, "{name}");
    }
}

#[test]
fn entries_of_maps() {
    let file = std::fs::read(types("entries")).unwrap();
    let (object, btf) = (Object::parse(&file).unwrap(), placed_types(&file).unwrap());
    let each = MapForm::of(map(&object, "each"), btf.as_ref());
    let (json, text) = (Style::Json, Style::Text);
    assert_eq!(each.entry(json, &[7, 0, 0, 0], &[1, 0, 2, 0]).unwrap(), r#"{"key":7,"value":{"a":1,"b":2}}"#);
    assert_eq!(each.entry(text, &[7, 0, 0, 0], &[1, 0, 2, 0]).unwrap(), r#"key: 7  value: {"a": 1,"b": 2}"#);
    let values = [(42, &[1, 0, 2, 0][..]), (43, &[3, 0, 4, 0])];
    assert_eq!(
        each.entry_by(json, &[7, 0, 0, 0], "tid", values).unwrap(),
        r#"{"key":7,"values":[{"tid":42,"value":{"a":1,"b":2}},{"tid":43,"value":{"a":3,"b":4}}]}"#
    );
    assert_eq!(
        each.entry_by(text, &[7, 0, 0, 0], "tid", values).unwrap(),
        "key: 7  tid 42: {\"a\": 1,\"b\": 2}\nkey: 7  tid 43: {\"a\": 3,\"b\": 4}"
    );
    let plain = MapForm::of(map(&object, "plain"), btf.as_ref());
    let expected = r#"{"key":["0x01","0x00","0x00","0xff"],"value":["0x0a","0x0b","0x0c"]}"#;
    assert_eq!(plain.entry(json, &[1, 0, 0, 0xff], &[10, 11, 12]).unwrap(), expected);
    assert_eq!(plain.entry(text, &[1, 0, 0, 0xff], &[10, 11, 12]).unwrap(), "key: 01 00 00 ff  value: 0a 0b 0c");
    let untyped = MapForm::of(map(&object, "each"), None);
    assert_eq!(untyped.entry(text, &[1, 0, 0, 0], &[2, 0, 0, 0]).unwrap(), "key: 01 00 00 00  value: 02 00 00 00");
    assert_eq!(Form::Hex.print(json, &[0, 0xab, 7]).unwrap(), "\"00ab07\"");
    assert_eq!(Form::Hex.print(text, &[0, 0xab, 7]).unwrap(), "00ab07");
}

#[test]
fn variables_have_their_names() {
    let file = std::fs::read(types("variables")).unwrap();
    let (object, btf) = (Object::parse(&file).unwrap(), placed_types(&file).unwrap());
    let print = |name: &str, style| {
        let map = map(&object, name);
        let initial =
            if map.map.initial.is_empty() { vec![0; map.map.value_size as usize] } else { map.map.initial.clone() };
        MapForm::of(map, btf.as_ref()).entry(style, &[0; 4], &initial).unwrap()
    };
    let sorted = |text: &str| {
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let data = sorted(&print(".data", Style::Text));
    assert_eq!(data, [r#"colour: "GREEN""#, "hidden: -4", "hits: 3", r#"pair: {"a": 1,"b": 2}"#]);
    assert_eq!(sorted(&print(".rodata", Style::Text)), [r#"greeting: "hello""#, "limit: 7"]);
    assert_eq!(sorted(&print(".bss", Style::Text)), ["hidden_zero: 0", "zero: 0"]);
    let bss = print(".bss", Style::Json);
    let orders = [r#"[{"zero":0},{"hidden_zero":0}]"#, r#"[{"hidden_zero":0},{"zero":0}]"#];
    assert!(orders.map(|order| format!(r#"{{"value":{{".bss":{order}}}}}"#)).contains(&bss), "{bss}");
}

#[test]
fn what_cannot_be_printed_says_why() {
    let btf = declared("short", "struct s { int a, b; } s; struct forward; struct forward *f;");
    let form = Form::Type(&btf, type_named(&btf, "struct s").unwrap());
    let Err(DumpError::Short { needs: 8, has: 7, .. }) = form.print(Style::Json, &[0; 7]) else { panic!("too short") };
    assert_eq!(form.print(Style::Json, &[1; 9]).unwrap(), r#"{"a":16843009,"b":16843009}"#);
    let none = Form::Variables(&btf, ".data").print(Style::Json, &[0; 8]).unwrap_err();
    assert_eq!(none.to_string(), "the object's types know no section '.data'; compile it with -g");
    assert!(matches!(placed_types(b"no object"), Err(DumpError::Elf(_))));
    assert!(matches!(Form::Type(&btf, 0).print(Style::Json, &[0; 8]), Err(DumpError::Btf(_))));
    assert!(matches!(Form::Type(&btf, 9999).print(Style::Json, &[0; 8]), Err(DumpError::Btf(_))));
}

/// Sixteen to the power of eight times the same byte.
#[test]
fn a_value_that_has_no_end_is_refused() {
    let members = |of: &str| ('a'..='p').map(|name| format!("{of} {name}; ")).collect::<String>();
    let levels: String =
        (1..8).map(|n| format!("union u{n} {{ {} }}; ", members(&format!("union u{}", n - 1)))).collect();
    let btf = declared("endless", &format!("union u0 {{ {} }}; {levels} union u7 v;", members("char")));
    let form = |name| Form::Type(&btf, type_named(&btf, name).unwrap());
    assert_eq!(form("u7").print(Style::Json, &[0]), Err(DumpError::TooLong));
    assert_eq!(form("u2").print(Style::Json, &[0]).unwrap().matches('0').count(), 4096);
}

#[test]
fn broken_types_are_errors() {
    let file = std::fs::read(types("broken")).unwrap();
    let start = file.windows(4).position(|w| w == [0x9f, 0xeb, 1, 0]).unwrap();
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let (mut printed, mut refused) = (0, 0);
    for _ in 0..1000 {
        let mut broken = file.clone();
        for _ in 0..=random(8) {
            let at = start + 24 + random(1500);
            broken[at] = random(256) as u8;
        }
        let Ok(Some(btf)) = placed_types(&broken) else { continue };
        for ty in 0..60 {
            for style in [Style::Json, Style::Text] {
                match Form::Type(&btf, ty).print(style, &[0x61; 300]) {
                    Ok(_) => printed += 1,
                    Err(_) => refused += 1,
                }
            }
        }
        for section in [".data", ".bss", ".maps"] {
            let _: Result<String, DumpError> = Form::Variables(&btf, section).print(Style::Json, &[0; 64]);
        }
    }
    assert!(printed > 1000 && refused > 1000, "{printed} printed, {refused} refused");
}
