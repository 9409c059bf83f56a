//! The Debian packages that the tests need.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Package by package, why.
const PACKAGES: &[(&str, &str)] = &[
    ("gcc", "target programs in C"),
    ("g++", "target programs in C++"),
    ("libc6-dev", "static target programs"),
    ("gcc-i686-linux-gnu", "32-bit target programs"),
    ("libc6-dev-i386-cross", "the C library of those, and 32-bit code to analyse"),
    ("gcc-aarch64-linux-gnu", "arm64 target programs, and the linker of the tool for arm64"),
    ("g++-aarch64-linux-gnu", "those in C++"),
    ("libc6-dev-arm64-cross", "the C library of those"),
    ("libc6-arm64-cross", "arm64 code to analyse, and what the programs of the guest load"),
    ("gcc-arm-linux-gnueabihf", "arm32 target programs, and the linker of the tool for arm32"),
    ("libc6-dev-armhf-cross", "the C library of those"),
    ("libc6-armhf-cross", "arm32 code to analyse, and what the programs of the guest load"),
    ("g++-arm-linux-gnueabihf", "those in C++"),
    ("libstdc++6-armhf-cross", "what C++ programs of the guest load"),
    ("binutils", "linking the agent; objdump, readelf and nm as oracles"),
    ("musl-tools", "target programs with musl"),
    ("golang-go", "target programs in Go"),
    ("default-jdk-headless", "a target program in Java"),
    ("nginx-light", "a server of several processes, and the oracle of what each did"),
    ("redis-server", "a target, and the oracle of its own calls"),
    ("redis-tools", "its client and load"),
    ("clang", "eBPF objects as users build them"),
    ("clang-19", "target programs of a compiler that is newer than the system's"),
    ("libclang-rt-14-dev", "LLVM's XRay, with which programs change their own code"),
    ("libbpf-dev", "the headers that those include"),
    ("bpftool", "prints maps, as an oracle"),
    ("systemtap-sdt-dev", "USDT probes as users write them"),
    ("bash", "a target"),
    ("python3", "a target"),
    ("python3-greenlet", "a library that moves stacks"),
    ("postgresql", "a server that leaves functions by longjmp"),
    ("grep", "a target"),
    ("git", "a large program, to count techniques"),
    ("busybox-static", "a static program, to count techniques"),
    ("strace", "a second tracer"),
    ("bpftrace", "a reader of static probes, and the language as it is elsewhere"),
    ("gdb", "a debugger of programs that are probed"),
    ("linux-perf", "another reader of static probes"),
    ("nodejs", "a target that compiles its code at run time"),
    ("valgrind", "callgrind: how often each instruction runs"),
    ("zlib1g", "a library at work"),
    ("lib32z1", "the same one for 32-bit programs"),
    ("libsqlite3-0", "another one: a bytecode engine"),
    ("libpcre2-8-0", "and a regex engine"),
    ("xz-utils", "compressed symbol tables"),
    ("util-linux", "setpriv: another user"),
    ("libssl3", "a library with thousands of functions"),
    ("openssl", "a TLS server"),
    ("libnss3-tools", "a TLS server and client of NSS"),
    ("curl", "a TLS client"),
    ("bsdutils", "script: a terminal for bash"),
    ("llvm-19", "oracle of eBPF text; 19 is the first that knows version 4 of the instructions; and of arm64 code"),
    ("qemu-user", "runs arm64 and arm32 code, as oracle of copies and of what trap handlers do"),
    ("qemu-system-arm", "runs the arm64 and the arm32 guest"),
];

/// What the programs of Debian's Rust 1.85 load; see `setup-rust-1.85.sh`.
const RUST_LIBRARIES: &[&str] =
    &["libz3-4", "libpcre3", "libxml2", "libedit2", "libcurl4", "libgit2-1.5", "libsqlite3-0", "ca-certificates"];

/// What the build for 32-bit programs is compiled for.
pub const TARGET_32: &str = "i686-unknown-linux-gnu";

/// What the build for arm64 is compiled for.
pub const TARGET_ARM64: &str = "aarch64-unknown-linux-gnu";

/// What the build for arm32 is compiled for.
pub const TARGET_ARM32: &str = "armv7-unknown-linux-gnueabihf";

/// Installs what is missing.
pub fn setup() -> Result<()> {
    packages()?;
    rust_targets()
}

/// What the agent is compiled for there; see `crates/engine/build.rs`.
const AGENT_ARM64: &str = "aarch64-unknown-none-softfloat";
const AGENT_ARM32: &str = "armv7a-none-eabi";

/// The standard libraries of Rust for all other targets, and for the agent.
fn rust_targets() -> Result<()> {
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output().context("rustc")?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot.stdout).trim());
    let targets = [
        (TARGET_32, "32-bit programs"),
        (TARGET_ARM64, "arm64"),
        (TARGET_ARM32, "arm32"),
        (AGENT_ARM64, "the part of arm64 that runs in the target"),
        (AGENT_ARM32, "the part of arm32 that runs in the target"),
    ];
    for (target, why) in targets {
        if sysroot.join("lib/rustlib").join(target).is_dir() {
            continue;
        }
        println!("setup: installing the Rust target {target}, for {why}");
        let status = Command::new("rustup").args(["target", "add", target]).status();
        let status = status.with_context(|| format!("no rustup: install Rust's standard library for {target}"))?;
        ensure!(status.success(), "rustup target add {target} failed");
    }
    Ok(())
}

fn packages() -> Result<()> {
    let wanted = PACKAGES.iter().map(|(name, _)| *name).chain(RUST_LIBRARIES.iter().copied());
    let missing: Vec<&str> = wanted.filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        println!("setup: all Debian packages that the tests need are there");
        return Ok(());
    }
    println!("setup: installing with apt-get, for the tests: {}", missing.join(" "));
    apt(&["update", "-q"])?;
    // A redis-server that the package starts as a service is not wanted: the tests start their own.
    apt(&[&["install", "-q", "-y", "--no-install-recommends"], &missing[..]].concat())
}

fn apt(args: &[&str]) -> Result<()> {
    // invoke-rc.d and systemd's helpers start nothing in run level 1.
    let environment = ["DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"];
    let root = Command::new("id").arg("-u").output().context("id")?.stdout == b"0\n";
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        command.arg("env");
    }
    let status = command.args(environment).arg("apt-get").args(args).status().context("apt-get")?;
    ensure!(status.success(), "apt-get {} failed: the tests need Debian 12 or a relative of it", args.join(" "));
    Ok(())
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}

/// The version of mdBook that the guide is built with.
const MDBOOK: &str = "0.4.52";

/// The program mdbook, built on first use: some two minutes on two processors. Without its server
/// and its search, which nobody needs here.
pub fn mdbook() -> Result<PathBuf> {
    let prefix = cache()?.join(format!("mdbook-{MDBOOK}"));
    let program = prefix.join("bin/mdbook");
    if program.exists() {
        return Ok(program);
    }
    println!("setup: building mdBook {MDBOOK}, for the guide");
    let mut install = Command::new("cargo");
    install.args(["install", "mdbook", "--locked", "--no-default-features", "--version", MDBOOK, "--root"]);
    let status = install.arg(&prefix).status().context("cargo")?;
    ensure!(status.success(), "cargo install mdbook failed: is the registry within reach?");
    Ok(program)
}

/// Where tools are kept that only tests need.
fn cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    Ok(cache.context("HOME is not set")?.join("sidestep"))
}

/// A part of what a guest of Debian's architecture (`arm64`, `armhf`) is made of (see
/// `setup-guest.sh`), fetched on first use.
///
/// The folder is that of all parts. `SIDESTEP_GUEST_ARM64` and `SIDESTEP_GUEST_ARMHF` name another
/// one.
pub fn guest(architecture: &str, part: &str) -> Result<PathBuf> {
    let folder = match std::env::var_os(format!("SIDESTEP_GUEST_{}", architecture.to_uppercase())) {
        Some(folder) => PathBuf::from(folder),
        None => cache()?.join(format!("guest-{architecture}")),
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/setup-guest.sh");
    let mut command = Command::new("bash");
    let status = command.arg(script).arg(architecture).arg(&folder).arg(part).status().context("bash")?;
    ensure!(status.success(), "{script} failed: are the {architecture} packages of Debian 12 within reach?");
    Ok(folder)
}

/// `bin` of a Rust 1.85 toolchain, unpacked on first use; an error says why there is none.
///
/// `SIDESTEP_RUST_185` names another one.
pub fn oldest_rust() -> Result<PathBuf> {
    if let Some(prefix) = std::env::var_os("SIDESTEP_RUST_185") {
        return Ok(PathBuf::from(prefix).join("bin"));
    }
    let prefix = cache()?.join("rust-1.85");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/setup-rust-1.85.sh");
    let status = Command::new("bash").arg(script).arg(&prefix).status().context("bash")?;
    ensure!(status.success(), "{script} failed: are the packages of Rust 1.85 still in Debian 12?");
    Ok(prefix.join("bin"))
}
