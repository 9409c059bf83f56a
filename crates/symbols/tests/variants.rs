//! Variants of records, from DWARF that is written by hand.

mod support;

use sidestep_symbols::{DataType, Language, Object, Variants};
use support::{compile, scratch};

/// Abbreviations: a unit, a number, a record, a variant part, a member, and variants with a
/// number, without one, with a list of numbers, and with a number of 16 bytes.
const HEAD: &str = r#"
    .section .debug_abbrev,"",@progbits
    .uleb128 1; .uleb128 0x11; .byte 1; .uleb128 0x13; .uleb128 0x05; .byte 0, 0
    .uleb128 2; .uleb128 0x24; .byte 0; .uleb128 0x0b; .uleb128 0x0b; .uleb128 0x3e; .uleb128 0x0b; .byte 0, 0
    .uleb128 3; .uleb128 0x13; .byte 1; .uleb128 0x03; .uleb128 0x08; .uleb128 0x0b; .uleb128 0x0b; .byte 0, 0
    .uleb128 4; .uleb128 0x33; .byte 1; .byte 0, 0
    .uleb128 5; .uleb128 0x0d; .byte 0; .uleb128 0x03; .uleb128 0x08; .uleb128 0x49; .uleb128 0x13
    .uleb128 0x38; .uleb128 0x0b; .byte 0, 0
    .uleb128 6; .uleb128 0x19; .byte 1; .uleb128 0x16; .uleb128 0x0b; .byte 0, 0
    .uleb128 7; .uleb128 0x19; .byte 1; .byte 0, 0
    .uleb128 8; .uleb128 0x19; .byte 1; .uleb128 0x3d; .uleb128 0x0a; .byte 0, 0
    .uleb128 9; .uleb128 0x19; .byte 1; .uleb128 0x16; .uleb128 0x1e; .byte 0, 0
    .byte 0
    .section .debug_info,"",@progbits
unit:
    .long end - start
start:
    .value 5
    .byte 1, 8
    .long .debug_abbrev
    .uleb128 1; .value 0x1c
number:
    .uleb128 2; .byte 4, 7
    .uleb128 3; .asciz "E"; .byte 8
    .uleb128 4
    .uleb128 5; .asciz "tag"; .long number - unit; .byte 0
"#;
const TAIL: &str = "
    .byte 0, 0, 0
end:
";

/// The names of the members, and the variants, of a record with a tag and these variants.
fn variants(name: &str, variants: &[&str]) -> (Vec<String>, Variants) {
    let source = format!("{HEAD}{}{TAIL}", variants.concat());
    let program = compile(&scratch(name), "variants.s", &source, &["-nostdlib", "-shared"]);
    let info = Object::open(&program, &[]).unwrap().debug_info().unwrap();
    let DataType::Record { place, .. } = info.find("struct E", None).unwrap() else { panic!("no record") };
    let layout = info.layout(place).unwrap();
    assert_eq!(layout.language, Some(Language::Rust));
    (layout.members.into_iter().map(|member| member.name).collect(), layout.variants.unwrap())
}

const ONE: &str = ".uleb128 6; .byte 1; .uleb128 5; .asciz \"One\"; .long number - unit; .byte 4; .byte 0\n";
const OTHER: &str = ".uleb128 7; .uleb128 5; .asciz \"Other\"; .long number - unit; .byte 4; .byte 0\n";
const EMPTY: &str = ".uleb128 6; .byte 2; .byte 0\n";
const LIST: &str =
    ".uleb128 8; .byte 2; .byte 0, 3; .uleb128 5; .asciz \"List\"; .long number - unit; .byte 4; .byte 0\n";
const WIDE: &str = ".uleb128 9; .octa 1 << 80; .uleb128 5; .asciz \"Wide\"; .long number - unit; .byte 4; .byte 0\n";

#[test]
fn variants_have_their_numbers() {
    let (names, found) = variants("variants-known", &[ONE, OTHER]);
    assert_eq!(names, ["tag", "One", "Other"]);
    assert_eq!(found, Variants { tag: Some(0), members: vec![(Some(1), 1), (None, 2)] });
}

#[test]
fn variants_that_cannot_be_told_apart_have_none() {
    for (name, odd) in [("variants-empty", EMPTY), ("variants-list", LIST), ("variants-wide", WIDE)] {
        let (_, found) = variants(name, &[odd, ONE]);
        assert_eq!(found, Variants::default(), "{name}");
    }
}
