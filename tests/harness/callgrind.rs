//! How often each instruction runs, counted by somebody else.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::build::target_dir;
use crate::process::{LIMIT, Output, run};

/// Runs a program under callgrind. Gives the number of executions by link-time address, of the
/// functions whose name `wanted` likes.
///
/// # Panics
/// If valgrind is not installed or the program fails.
pub fn executions(program: &Command, wanted: impl Fn(&str) -> bool) -> BTreeMap<u64, u64> {
    parse(&profile(program).unwrap_or_else(|output| panic!("{output}")), |_, name| wanted(name))
}

/// The same of all code of an object, by the start of its file's name.
///
/// # Panics
/// As [`executions`].
pub fn executions_in(program: &Command, object: &str) -> BTreeMap<u64, u64> {
    try_executions_in(program, object).unwrap_or_else(|output| panic!("{output}"))
}

/// The same.
///
/// # Errors
/// If the program fails: callgrind does not know all instructions.
pub fn try_executions_in(program: &Command, object: &str) -> Result<BTreeMap<u64, u64>, Output> {
    let profile = profile(program)?;
    Ok(parse(&profile, |path, _| path.rsplit('/').next().is_some_and(|name| name.starts_with(object))))
}

fn profile(program: &Command) -> Result<String, Output> {
    let dir = target_dir().join("test-targets");
    let _ = std::fs::create_dir_all(&dir);
    static PROFILES: AtomicU64 = AtomicU64::new(0);
    let number = PROFILES.fetch_add(1, Ordering::Relaxed);
    let file = dir.join(format!("callgrind.{}.{number}", std::process::id()));
    let mut command = Command::new("valgrind");
    command.args(["-q", "--tool=callgrind", "--dump-instr=yes", "--compress-strings=no", "--compress-pos=no"]);
    // Else jumps of the linkage table count at the call.
    command.arg("--skip-plt=no");
    command.arg(format!("--callgrind-out-file={}", file.display())).arg(program.get_program()).args(program.get_args());
    let output = run(&mut command, LIMIT);
    let profile = std::fs::read_to_string(&file);
    let _ = std::fs::remove_file(&file);
    if output.code() != 0 {
        return Err(output);
    }
    Ok(profile.expect("callgrind's profile"))
}

/// The format is in valgrind's manual, "Callgrind Format Specification": `ob=` is the object of the
/// functions behind it, `fn=` begins a function, a line behind `calls=` is what the callee cost.
/// `wanted` gets object and function.
fn parse(profile: &str, wanted: impl Fn(&str, &str) -> bool) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    let (mut inside, mut of_callee, mut object) = (false, false, "");
    for line in profile.lines() {
        if let Some(path) = line.strip_prefix("ob=") {
            object = path;
        } else if let Some(name) = line.strip_prefix("fn=") {
            // Recursion and symbols of one address: `f'2`, `f@@VERSION`.
            inside = wanted(object, name.split(['\'', '@']).next().unwrap_or(name));
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if let Some(rest) = line.strip_prefix("0x") {
            let mut words = rest.split(' ');
            let address = words.next().and_then(|word| u64::from_str_radix(word, 16).ok());
            let cost = words.next_back().and_then(|word| word.parse::<u64>().ok());
            if let (true, false, Some(address), Some(cost)) = (inside, of_callee, address, cost) {
                *all.entry(address).or_default() += cost;
            }
            of_callee = false;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_of_callees_are_not_the_callers() {
        let profile = "fn=g\n0x10 1 5\nfn=f@@V1\n0x20 1 3\n0x24 2 3\ncfn=g\ncalls=3 0x10 1\n0x24 2 15\n0x28 3 3\nfn=f'2\n0x20 1 1\n";
        assert_eq!(parse(profile, |_, name| name == "f"), [(0x20, 4), (0x24, 3), (0x28, 3)].into());
    }

    #[test]
    fn an_object_goes_on_until_the_next() {
        let profile = "ob=/lib/a.so.1\nfn=f\n0x10 1 5\nfn=g\n0x20 1 1\ncob=/lib/b.so\ncfn=h\ncalls=3 0x10 1\n0x24 2 15\nob=/lib/b.so\nfn=h\n0x10 1 7\n";
        assert_eq!(parse(profile, |object, _| object == "/lib/a.so.1"), [(0x10, 5), (0x20, 1)].into());
    }
}
