//! Compiles the agent into the image that `src/blob.rs` embeds.
//!
//! The agent is no dependency in the usual sense: it is built for a program without libc, by other flags than the rest
//! of the workspace, so the compiler and the linker are called directly. `ld` refuses whatever would make the image
//! depend on the target: imports (`--no-undefined`) and relocations in its text (`-z text`).

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let crates = PathBuf::from(var("CARGO_MANIFEST_DIR")).join("..");
    let (wire, agent) = (crates.join("wire/src"), crates.join("agent/src"));
    let script = crates.join("agent/agent.ld");
    for input in [&wire, &agent, &script] {
        println!("cargo:rerun-if-changed={}", input.display());
    }
    println!("cargo:rerun-if-env-changed=LD");

    let out = PathBuf::from(var("OUT_DIR"));
    let wire_lib = out.join("libsidestep_wire.rlib");
    let agent_lib = out.join("libsidestep_agent.a");
    run(rustc("sidestep_wire", "rlib", &wire_lib).arg(wire.join("lib.rs")));
    let mut external = OsString::from("sidestep_wire=");
    external.push(&wire_lib);
    run(rustc("sidestep_agent", "staticlib", &agent_lib)
        .args(["--cfg", "agent_blob", "--extern"])
        .arg(external)
        .arg(agent.join("lib.rs")));
    run(Command::new(env::var_os("LD").unwrap_or_else(|| "ld".into()))
        .args(["-pie", "--no-dynamic-linker", "--no-undefined", "--gc-sections", "--strip-debug", "--build-id=none"])
        .args(["-z", "text", "-z", "now", "-z", "norelro", "-z", "noexecstack", "-z", "max-page-size=4096"])
        .arg("-T")
        .arg(&script)
        .arg("-o")
        .arg(out.join("agent.elf"))
        .arg(&agent_lib));
}

fn rustc(name: &str, kind: &str, output: &Path) -> Command {
    let mut command = Command::new(var("RUSTC"));
    command
        .args(["--edition", "2024", "--crate-name", name, "--crate-type", kind, "--target"])
        .arg(var("TARGET"))
        .args(["-C", "opt-level=2", "-C", "panic=abort", "-C", "relocation-model=pic"])
        .args(["-C", "force-unwind-tables=no", "-C", "codegen-units=1", "-C", "overflow-checks=off"])
        .args(["-C", "debug-assertions=off", "-C", "no-vectorize-loops", "-C", "no-vectorize-slp"])
        // Two neighbouring words must not travel through an xmm register: the thunks would have to save it.
        .args(["-C", "llvm-args=-combiner-store-merging=0"])
        .args(["--cap-lints", "warn", "-o"])
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
