//! Compiles the agent into the image that `src/blob.rs` embeds.
//!
//! The agent is no dependency in the usual sense: it is built for a program without libc, by other
//! flags than the rest of the workspace, so the compiler and the linker are called directly. `ld`
//! refuses whatever would make the image depend on the target: imports (`--no-undefined`) and
//! relocations in its text (`-z text`).

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let crates = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("..");
    let (wire, agent, bpf) = (crates.join("wire/src"), crates.join("agent/src"), crates.join("bpf/src"));
    let script = crates.join("agent/agent.ld");
    let ops = ["x86", "a32", "a64"].map(|isa| crates.join("isa/src").join(isa).join("emulate/op.rs"));
    for input in [&wire, &agent, &bpf, &script].into_iter().chain(&ops) {
        println!("cargo:rerun-if-changed={}", input.display());
    }
    println!("cargo:rerun-if-env-changed=LD");

    let out = PathBuf::from(var("OUT_DIR"));
    let wire_lib = out.join("libsidestep_wire.rlib");
    let bpf_lib = out.join("libsidestep_bpf.rlib");
    run(rustc("sidestep_wire", "rlib", &wire_lib).arg(wire.join("lib.rs")));
    run(rustc("sidestep_bpf", "rlib", &bpf_lib).arg("--cap-lints=allow").arg(bpf.join("lib.rs")));
    for image in ["agent", "interpreter"] {
        let library = out.join(format!("lib{image}.a"));
        let mut compile = rustc("sidestep_agent", "staticlib", &library);
        compile.args(["--cfg", "agent_blob", "--extern"]).arg(named("sidestep_wire", &wire_lib));
        let mut link = Command::new(env::var_os("LD").unwrap_or_else(linker));
        if image == "interpreter" {
            // In one piece, or the tables of its jumps would need relocations.
            compile
                .args(["--cfg", "agent_interpreter", "-C", "lto=fat", "--extern"])
                .arg(named("sidestep_bpf", &bpf_lib));
            link.args(["-u", "agent_interpret"]);
        }
        run(compile.arg(agent.join("lib.rs")));
        if var("CARGO_CFG_TARGET_ARCH") == "x86" {
            // Binutils of x86-64 link both.
            link.args(["-m", "elf_i386"]);
        }
        run(link
            .args([
                "-pie",
                "--no-dynamic-linker",
                "--no-undefined",
                "--gc-sections",
                "--strip-debug",
                "--build-id=none",
            ])
            .args(["-z", "text", "-z", "now", "-z", "norelro", "-z", "noexecstack", "-z", "max-page-size=4096"])
            .arg("-T")
            .arg(&script)
            .arg("-o")
            .arg(out.join(format!("{image}.elf")))
            .arg(&library));
    }
}

/// What the agent is compiled for. On Arm, that is the target without vector registers: there is
/// no other way to keep the compiler from them.
fn target() -> OsString {
    match var("CARGO_CFG_TARGET_ARCH") {
        arch if arch == "aarch64" => "aarch64-unknown-none-softfloat".into(),
        arch if arch == "arm" => "armv7a-none-eabi".into(),
        _ => var("TARGET"),
    }
}

fn linker() -> OsString {
    let (arch, host) = (var("CARGO_CFG_TARGET_ARCH"), var("HOST"));
    if host.to_string_lossy().starts_with(&*arch.to_string_lossy()) {
        return "ld".into();
    }
    match &*arch.to_string_lossy() {
        "aarch64" => "aarch64-linux-gnu-ld".into(),
        "arm" => "arm-linux-gnueabihf-ld".into(),
        _ => "ld".into(),
    }
}

/// `NAME=PATH`, as `--extern` takes it.
fn named(name: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(format!("{name}="));
    argument.push(path);
    argument
}

fn rustc(name: &str, kind: &str, output: &Path) -> Command {
    let mut command = Command::new(var("RUSTC"));
    command
        .args(["--edition", "2024", "--crate-name", name, "--crate-type", kind, "--target"])
        .arg(target())
        .args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "relocation-model=pic"])
        .args(["-C", "force-unwind-tables=no", "-C", "codegen-units=1", "-C", "overflow-checks=off"])
        .args(["-C", "debug-assertions=off", "-C", "no-vectorize-loops", "-C", "no-vectorize-slp"])
        // Two neighbouring words must not travel through an xmm register: the thunks would have to
        // save it.
        .args(["-C", "llvm-args=-combiner-store-merging=0"])
        .arg("-o")
        .arg(output);
    command
}

fn var(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo did not set {name}"))
}

fn run(command: &mut Command) {
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{command:?}: {status}"),
        Err(error) => panic!("{command:?}: {error} (the agent needs a linker: install binutils, or set LD)"),
    }
}
