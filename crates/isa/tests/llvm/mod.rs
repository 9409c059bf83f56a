//! LLVM as an independent assembler and disassembler, tests that are skipped for want of a program.
#![allow(dead_code)] // each test binary uses its part

/// The version of LLVM: the extensions that it knows are part of the tests.
const VERSION: &str = "19";

/// Says loudly what is not tested. That is a failure, unless `SIDESTEP_ALLOW_SKIP=1` allows it.
pub fn skip(what: &str) {
    let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
    assert!(allowed, "{what}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
    eprintln!("SKIPPED, NOT TESTED: {what}");
}

/// Whether all of some programs are there. If not, the test is skipped, loudly.
pub fn has(programs: &[&str], cases: usize) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing: Vec<&str> = programs
        .iter()
        .filter(|program| !std::env::split_paths(&path).any(|folder| folder.join(program).is_file()))
        .copied()
        .collect();
    if !missing.is_empty() {
        skip(&format!("{cases} cases of {}, for want of {}", env!("CARGO_CRATE_NAME"), missing.join(" and ")));
    }
    missing.is_empty()
}

/// The name of a tool.
pub fn tool(name: &str) -> String {
    format!("{name}-{VERSION}")
}

/// Whether LLVM is there; otherwise so many cases are skipped.
pub fn has_llvm(cases: usize) -> bool {
    let tools = ["llvm-mc", "llvm-objcopy", "llvm-objdump"].map(tool);
    has(&tools.each_ref().map(String::as_str), cases)
}

/// The number that an environment variable says, or another one.
pub fn count(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
