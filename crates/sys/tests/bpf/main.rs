//! The kernel's eBPF through `sidestep_sys::bpf`: this program probes itself. As root.

mod code;
mod maps;
mod probes;
mod refused;

use sidestep_sys::bpf;

/// Whether the kernel lets us. If not, a line says so that is seen although the test passes.
fn permitted() -> bool {
    match bpf::permitted() {
        Ok(()) => true,
        Err(refusal) => {
            code::say(&format!("NOT TESTED: {refusal}\n"));
            false
        }
    }
}
