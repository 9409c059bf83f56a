//! Programs in C, with the header and the shared library that was built for this test, and of the
//! test's own width.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sidestep_tests::process::run;

pub const LIMIT: Duration = Duration::from_secs(300);

#[cfg(target_arch = "x86_64")]
const COMPILER: &[&str] = &["cc"];
/// A 64-bit system has their loader and libraries where the cross compiler has them.
#[cfg(target_arch = "x86")]
const COMPILER: &[&str] = &[
    "i686-linux-gnu-gcc",
    "-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2",
    "-Wl,--disable-new-dtags,-rpath,/usr/i686-linux-gnu/lib",
];

/// Where cargo puts what it builds for this test: the shared library is there.
pub fn libraries() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// Builds a program, once; the source is a path in this crate.
#[track_caller]
pub fn program(source: &str, flags: &[&str]) -> Command {
    static BUILT: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = libraries().join(source.trim_end_matches(".c").replace('/', "-"));
    // Another test may be running it.
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if !built.contains(&program) {
        let mut compile = Command::new(COMPILER[0]);
        compile.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-I"]).arg(here.join("include")).args(flags);
        compile.arg(here.join(source)).args(&COMPILER[1..]);
        compile.arg("-L").arg(libraries()).arg("-lsidestep").arg(format!("-Wl,-rpath,{}", libraries().display()));
        run(compile.arg("-o").arg(&program), LIMIT).ok();
        built.push(program.clone());
    }
    let mut command = Command::new(program);
    // The library is the one that was built for this test, not an older one beside it.
    command.env_remove("LD_LIBRARY_PATH");
    command
}
