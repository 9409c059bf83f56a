//! What 32-bit and 64-bit x86 do alike.

use std::io;

use sidestep_isa::Va;

use super::cpu::_rdtsc;
use super::host::UserRegs;
use crate::ptrace;

/// System calls that may make a child on its parent's memory.
pub const LENDING_CALLS: &[libc::c_long] = &[libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];

/// The first byte of the code that an address means.
pub(crate) fn first_byte(at: Va) -> Va {
    at
}

/// The registers of a stopped thread.
pub(crate) fn get_user_regs(tid: i32) -> io::Result<UserRegs> {
    ptrace::get_user_regs(tid)
}

/// Sets the registers of a stopped thread.
pub(crate) fn set_user_regs(tid: i32, regs: &UserRegs) -> io::Result<()> {
    ptrace::set_user_regs(tid, regs)
}

/// The time stamp counter.
#[allow(unsafe_code)]
pub(crate) fn ticks() -> u64 {
    // SAFETY: the instruction reads a counter; where user code may not (CR4.TSD), it faults, and no
    // x86 Linux sets that without being asked by prctl.
    unsafe { _rdtsc() }
}

/// Does the counter tick at a constant rate in all sleep states (`constant_tsc`, `nonstop_tsc`),
/// and does the kernel trust it as its own clock, which implies that the CPUs agree?
pub(crate) fn ticks_usable(cpuinfo: &str, clock_source: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_ascii_whitespace().any(|f| f == flag);
    has("constant_tsc") && has("nonstop_tsc") && matches!(clock_source, "tsc" | "kvm-clock")
}
