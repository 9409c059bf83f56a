//! `-lv` of types, against gdb.

use std::collections::BTreeSet;
use std::process::Command;

use sidestep_tests::build::installed;
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::tool::sidestep;
use sidestep_tests::{skip, target};

/// Names of members with their offsets in bytes and, of bit-fields, in bits.
type Members = BTreeSet<(String, u64, Option<u64>)>;

/// The name in `unsigned a : 3` or `char tag[6]`.
fn name(declaration: &str) -> String {
    let name = declaration.split([':', '[']).next().unwrap_or_default().trim();
    name.rsplit([' ', '*']).next().unwrap_or_default().to_owned()
}

/// `/*      4: 2   |       4 */    unsigned int a : 3;`
fn of_gdb(text: &str) -> Members {
    let member = |line: &str| {
        let (place, declaration) = line.strip_prefix("/*")?.split_once("*/")?;
        let declaration = declaration.trim().strip_suffix(';')?;
        let (offset, _) = place.split_once('|')?;
        let (byte, bit) = offset.split_once(':').map_or((offset, None), |(byte, bit)| (byte, Some(bit)));
        let number = |text: &str| text.trim().parse().ok();
        Some((name(declaration), number(byte)?, bit.and_then(number)))
    };
    text.lines().filter_map(member).collect()
}

/// `    unsigned int a : 3;  /* offset 4, bit 2 */`
fn of_sidestep(text: &str) -> Members {
    let member = |line: &str| {
        let (declaration, place) = line.trim().split_once(";  /* offset ")?;
        let place = place.strip_suffix(" */")?;
        let (byte, bit) = place.split_once(", bit ").map_or((place, None), |(byte, bit)| (byte, Some(bit)));
        // An array's length is behind its type.
        Some((name(declaration.rsplit(']').next()?), byte.parse().ok()?, bit.and_then(|bit| bit.parse().ok())))
    };
    text.lines().filter_map(member).collect()
}

#[test]
fn members_are_where_gdb_sees_them() {
    let Some(program) = target("records") else { return };
    if !installed("gdb") {
        return skip("no gdb");
    }
    let path = program.to_string_lossy().into_owned();
    for record in ["struct tight", "struct bits", "struct mix", "struct small"] {
        let layout = format!("ptype /o {record}");
        let gdb = run(
            Command::new("gdb").args(["-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", &layout, &path]),
            LIMIT,
        );
        let expected = of_gdb(&gdb.stdout);
        assert!(expected.len() > 2, "{}", gdb.stdout);
        let listed = run(&mut sidestep(&["-lv", record, &path]), LIMIT);
        assert_eq!(of_sidestep(&listed.stdout), expected, "{}\n{}", listed.stdout, gdb.stdout);
    }
    let named = run(&mut sidestep(&["-l", "enum colour", &path]), LIMIT);
    assert_eq!((named.stdout.as_str(), named.code()), ("enum colour\n", 0), "{}", named.stderr);
    let missing = run(&mut sidestep(&["-lv", "struct no_such", &path]), LIMIT);
    assert_eq!(missing.code(), 1);
    assert!(missing.stderr.contains("no type 'struct no_such'"), "{}", missing.stderr);
    assert_eq!(run(&mut sidestep(&["-lv", "struct tight"]), LIMIT).code(), 2);
}

/// The sizes and signs are those that the assembler was given.
#[test]
fn arguments_of_static_probes_have_types() {
    let Some(program) = target("usdt") else { return };
    let path = program.to_string_lossy().into_owned();
    let listed = run(&mut sidestep(&["-lv", &format!("usdt:{path}:demo:fired")]), LIMIT);
    let long = if cfg!(target_pointer_width = "32") { "uint32" } else { "uint64" };
    let expected = format!("    {long} arg0\n    int32 arg1\n    int32 arg2\n    {long} arg3\n    uint32 arg4\n");
    assert_eq!(listed.stdout, format!("usdt:{path}:demo:fired\n{expected}"), "{}", listed.stderr);
}
