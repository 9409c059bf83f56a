//! Runs binutils and compilers, and takes their output apart.
#![allow(dead_code)] // each test binary uses a part of it

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The output of a command that must succeed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).env("LC_ALL", "C").output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Whether a program is in `PATH`. If not, what needs it is skipped, loudly: that is a failure,
/// unless `SIDESTEP_ALLOW_SKIP=1` allows it.
pub fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !is_there {
        let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
        assert!(allowed, "no {program}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
        eprintln!("SKIPPED, NOT TESTED: no {program}");
    }
    is_there
}

/// A directory of this test, empty.
pub fn scratch(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::canonicalize(dir).unwrap()
}

/// Compiles `source` in `dir` (by the name's ending: C or C++) with more flags.
pub fn compile(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, source).unwrap();
    let out = file.with_extension("");
    let compiler = if name.ends_with(".c") { "cc" } else { "g++" };
    let mut args = vec![str(&file), "-o", str(&out)];
    args.extend(flags);
    run(compiler, &args);
    out
}

pub fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

pub fn hex(digits: &str) -> u64 {
    u64::from_str_radix(digits.trim_start_matches("0x"), 16)
        .unwrap_or_else(|_| panic!("{digits} is no hexadecimal number"))
}

/// A function symbol as readelf shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Symbol {
    pub va: u64,
    pub name: String,
    pub ifunc: bool,
}

/// Defined function symbols of both tables (`readelf -s`), without versions.
pub fn readelf_functions(file: &Path) -> BTreeSet<Symbol> {
    run("readelf", &["-sW", str(file)])
        .lines()
        .filter_map(|line| {
            let column: Vec<&str> = line.split_whitespace().collect();
            let [_, va, _, kind @ ("FUNC" | "IFUNC"), _, _, section, name, ..] = column[..] else {
                return None;
            };
            section.parse::<u32>().ok()?;
            let name = name.split('@').next().unwrap().to_owned();
            Some(Symbol { va: hex(va), name, ifunc: kind == "IFUNC" })
        })
        .collect()
}

/// Addresses of executable sections (`readelf -S`).
pub fn readelf_text(file: &Path) -> Vec<std::ops::Range<u64>> {
    run("readelf", &["-SW", str(file)])
        .lines()
        .filter_map(|line| {
            let (_, line) = line.split_once(']')?;
            let column: Vec<&str> = line.split_whitespace().collect();
            let [_, kind, va, _, size, _, flags, ..] = column[..] else {
                return None;
            };
            (kind == "PROGBITS" && flags.contains('X')).then(|| hex(va)..hex(va) + hex(size))
        })
        .collect()
}

/// A relocation as readelf shows it: slot, type, symbol (without version) if there is one, value.
pub struct Relocation {
    pub slot: u64,
    pub kind: String,
    pub symbol: Option<String>,
    pub value: u64,
}

/// Dynamic relocations (`readelf -r`), without packed ones.
pub fn readelf_relocations(file: &Path) -> Vec<Relocation> {
    run("readelf", &["-rW", str(file)])
        .lines()
        .filter_map(|line| {
            let column: Vec<&str> = line.split_whitespace().collect();
            match column[..] {
                [slot, _, kind, value] if kind.starts_with("R_X86_64") => {
                    Some(Relocation { slot: hex(slot), kind: kind.to_owned(), symbol: None, value: hex(value) })
                }
                [slot, _, kind, value, symbol, "+", addend] => Some(Relocation {
                    slot: hex(slot),
                    kind: kind.to_owned(),
                    symbol: symbol.split('@').next().map(str::to_owned),
                    value: hex(value).wrapping_add(hex(addend)),
                }),
                _ => None,
            }
        })
        .collect()
}

/// Addresses in `.relr.dyn` (`readelf -r` unpacks it, an address a line).
pub fn readelf_packed(file: &Path) -> Vec<u64> {
    run("readelf", &["-rW", str(file)])
        .lines()
        .filter(|line| line.len() == 16 && line.bytes().all(|b| b.is_ascii_hexdigit()))
        .map(hex)
        .collect()
}
