//! Static probes by our own header and our own macros: what compilers make of them, and who sees
//! them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

use sidestep_tests::build::{checkout, have, installed, target_dir};
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::skip;
use sidestep_tests::tool::{is_32_bit, with_command};

/// Hits of each probe.
const HITS: i64 = 10;
const OPTIMIZATION: [&str; 4] = ["-O0", "-O1", "-O2", "-O3"];
const NAMES: [&str; 6] = ["none", "two", "kinds", "floats", "twelve", "lazy"];

/// Where a program is built, of this width.
fn place(name: &str) -> PathBuf {
    let dir = target_dir().join("test-targets").join(if is_32_bit() { "provider-32" } else { "provider" });
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    // `clang` and `clang++` make different ones.
    dir.join(name.replace('+', "p").replace([' ', '=', '/', ':', ','], ""))
}

/// Makes a file by a command, once: tests that run at the same time need the same files, and would
/// write over one that another test is using.
fn made(file: PathBuf, mut command: Command) -> PathBuf {
    static MADE: Mutex<BTreeMap<PathBuf, Arc<OnceLock<()>>>> = Mutex::new(BTreeMap::new());
    let once = MADE.lock().expect("no test panics with it").entry(file.clone()).or_default().clone();
    once.get_or_init(|| _ = run(&mut command, LIMIT).ok());
    file
}

fn compile(compiler: &str, flags: &[&str]) -> PathBuf {
    let program = place(&format!("{compiler}{}", flags.concat()));
    let (header, source) = (checkout().join("crates/sidestep/include"), checkout().join("tests/targets/provider.c"));
    let language = if compiler.ends_with("++") { "c++" } else { "c" };
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-x", language]).args(flags).arg("-I").arg(header);
    command.arg(source).arg("-o").arg(&program);
    made(program, command)
}

/// What each probe prints must be what the program passed, at each of its hits.
fn assert_seen(program: &Path) {
    let path = program.to_str().expect("UTF-8");
    let all = |n: usize| (0..n).map(|i| format!("arg{i}")).collect::<Vec<_>>().join(", ");
    let script = format!(
        "usdt:{path}:provider:none {{ printf(\"none\\n\") }}
         usdt:{path}:provider:two {{ printf(\"two %d %d\\n\", {}) }}
         usdt:{path}:provider:kinds {{ printf(\"kinds %ld %s %ld %ld %s %ld\\n\", arg0, str(arg1), arg2, arg3, str(arg4), arg5) }}
         usdt:{path}:provider:floats {{ printf(\"floats %ld %ld\\n\", {}) }}
         usdt:{path}:provider:twelve {{ printf(\"twelve %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %ld %s\\n\", {}, str(arg11)) }}
         usdt:{path}:provider:lazy {{ printf(\"lazy %ld\\n\", arg0) }}",
        all(2),
        all(2),
        all(11),
    );
    let (output, report) = with_command(&["-v", "-e", &script], &[path, &HITS.to_string()]);
    assert_eq!((output.code(), output.stdout.trim()), (0, "10"), "{path}: somebody has listened: {output}");
    let mut expected = Vec::new();
    for i in 0..HITS {
        let (d, e) = ((i as f64 * 1.5).to_bits(), (i as f32 * 0.25).to_bits());
        let b = -i;
        expected.push("none".to_owned());
        expected.push(format!("two {i} {b}"));
        expected.push(format!("kinds {i} text -7 {b} array 5"));
        expected.push(format!("floats {d} {e}"));
        let sums = format!("{} {} {i} {} {} {}", i + 1, b + 2, i * 3, b * 4, i - 5);
        expected.push(format!("twelve {i} {b} {sums} 8 {} {} text", i ^ 9, b | 10));
        expected.push(format!("lazy {}", i * 2));
    }
    let seen: Vec<&str> =
        report.0.stdout.lines().filter(|line| NAMES.iter().any(|name| line.starts_with(name))).collect();
    assert_eq!(seen, expected, "{path}: {}", report.0);
    // Nobody listens: nothing is computed.
    assert_eq!(run(Command::new(program).arg("5"), LIMIT).ok().stdout, "0\n");
}

#[test]
pub fn arguments_are_what_compilers_of_c_pass() {
    let compilers: &[&str] = if is_32_bit() { &["i686-linux-gnu-gcc"] } else { &["gcc", "clang", "g++", "clang++"] };
    for compiler in compilers.iter().filter(|compiler| have(&[compiler])) {
        for optimization in OPTIMIZATION {
            for kind in [&["-fPIE", "-pie"][..], &["-static"]] {
                let loader: &[&str] = match (is_32_bit(), kind.contains(&"-static")) {
                    (true, false) => &["-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2", RPATH],
                    _ => &[],
                };
                assert_seen(&compile(compiler, &[&[optimization], kind, loader].concat()));
            }
        }
    }
}

/// Of 32-bit programs.
const RPATH: &str = "-Wl,-rpath,/usr/i686-linux-gnu/lib:/usr/lib32";

/// The program in Rust, made with these flags.
fn rust(flags: &[&str]) -> PathBuf {
    let program = place(&format!("rust{}", flags.concat()));
    let library = place("libsidestep_probe.rlib");
    let width = if is_32_bit() { &["--target", "i686-unknown-linux-gnu"][..] } else { &[] };
    let linker = if is_32_bit() {
        &["-Clinker=i686-linux-gnu-gcc", "-Clink-arg=-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2"][..]
    } else {
        &[]
    };
    let mut command = Command::new("rustc");
    command.args(["--edition=2024", "--crate-type=rlib", "--crate-name=sidestep_probe", "-O"]).args(width);
    command.arg(checkout().join("crates/probe/src/lib.rs")).arg("-o").arg(&library);
    let library = made(library, command);
    let mut command = Command::new("rustc");
    command.args(["--edition=2021", "-Dwarnings", "--crate-name=provider"]).args(width).args(linker).args(flags);
    if is_32_bit() && !flags.contains(&"-Ctarget-feature=+crt-static") {
        command.arg(format!("-Clink-arg={RPATH}"));
    }
    command.arg("--extern").arg(format!("sidestep_probe={}", library.display()));
    command.arg(checkout().join("tests/targets/provider.rs")).arg("-o").arg(&program);
    made(program, command)
}

#[test]
pub fn arguments_are_what_rust_passes() {
    if !have(&["rustc"]) {
        return;
    }
    for optimization in ["-Copt-level=0", "-Copt-level=1", "-Copt-level=2", "-Copt-level=3"] {
        for kind in [&[][..], &["-Ctarget-feature=+crt-static"]] {
            assert_seen(&rust(&[&[optimization], kind].concat()));
        }
    }
}

/// The programs that other tools look at, whose versions in Debian 12 do not know floating-point
/// arguments.
fn programs() -> Vec<PathBuf> {
    let mut programs = Vec::new();
    for compiler in ["gcc", "clang++"].into_iter().filter(|compiler| have(&[compiler])) {
        programs.push(compile(compiler, &["-O2", "-g", "-DSIDESTEP_SDT_FLOATS_AS_BITS"]));
    }
    if have(&["rustc"]) {
        programs.push(rust(&["-O", "-g"]));
    }
    programs
}

#[test]
fn gdb_knows_them() {
    if !have(&["gdb"]) {
        return;
    }
    for program in programs() {
        let commands = [
            "info probes stap provider",
            "break -probe-stap provider:two",
            "run 5",
            "continue",
            "print $_probe_argc",
            "print $_probe_arg0 * 10 + $_probe_arg1",
            "break -probe-stap provider:twelve",
            "continue",
            "print $_probe_argc",
            "print $_probe_arg5 * 10 + $_probe_arg8",
        ];
        let commands = commands.iter().flat_map(|command| ["-ex", command]);
        let output = run(Command::new("gdb").args(["-q", "-batch", "-nx"]).args(commands).arg(&program), LIMIT);
        for name in NAMES {
            let is_it = |line: &str| line.split_whitespace().take(3).eq(["stap", "provider", name]);
            assert!(output.stdout.lines().any(is_it), "{name}: {output}");
        }
        // The second hit of each: 1 and -1; 3 and 8.
        for (number, value) in ["2", "9", "12", "38"].iter().enumerate() {
            assert!(output.stdout.contains(&format!("${} = {value}\n", number + 1)), "{output}");
        }
    }
}

#[test]
fn perf_lists_them() {
    if !have(&["perf"]) {
        return;
    }
    for program in programs() {
        let cache = place("perf-cache");
        let perf = |args: &[&str]| {
            run(Command::new("perf").arg("--buildid-dir").arg(&cache).args(args).env("PAGER", "cat"), LIMIT)
        };
        perf(&["buildid-cache", "--add", program.to_str().expect("UTF-8")]).ok();
        let listed = perf(&["list", "sdt"]).ok();
        std::fs::remove_dir_all(&cache).expect("perf has made it");
        for name in NAMES {
            let is_it = |line: &str| line.split_whitespace().next() == Some(&format!("sdt_provider:{name}"));
            assert!(listed.stdout.lines().any(is_it), "{name} of {}: {listed}", program.display());
        }
    }
}

#[test]
fn bpftrace_counts_them() {
    if !installed("bpftrace") {
        return skip("no bpftrace");
    }
    for program in programs() {
        let path = program.to_str().expect("UTF-8");
        let listed = run(Command::new("bpftrace").args(["-l", &format!("usdt:{path}:*")]), LIMIT);
        for name in NAMES {
            assert!(listed.stdout.contains(&format!("usdt:{path}:provider:{name}\n")), "{listed}");
        }
        let script = format!(
            "usdt:{path}:provider:two {{ @two = sum(arg0); @n = count(); }} usdt:{path}:provider:twelve {{ @twelve = sum(arg5); }}"
        );
        let output = run(Command::new("bpftrace").args(["-e", &script, "-c", &format!("{path} 10")]), LIMIT);
        if output.stderr.contains("Operation not permitted") {
            return skip("bpftrace may not attach here");
        }
        for line in ["@two: 45", "@n: 10", "@twelve: 135"] {
            assert!(output.stdout.lines().any(|l| l == line), "{line}: {output}");
        }
    }
}
