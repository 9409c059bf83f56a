//! Loads that may fault. Our handler of SIGSEGV and SIGBUS lets a load that failed go on where
//! [`after_fault`] says.
//!
//! Four bytes at a time, but never beyond a page that holds a byte that was asked for. A fault
//! costs a signal; none is paid for what can be told from the address.

use core::arch::{asm, global_asm};

// Nothing but the listed registers, no stack, no flags that live longer than a line: a fault may
// interrupt any load. What is no memory may refuse words that are not aligned, and is read by
// bytes then.
global_asm!(
    ".pushsection .text.sidestep_load,\"ax\",%progbits",
    ".arm",
    ".hidden sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".hidden sidestep_load_string, sidestep_load_string_end, sidestep_load_u64, sidestep_load_u64_end",
    ".globl sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".globl sidestep_load_string, sidestep_load_string_end, sidestep_load_u64, sidestep_load_u64_end",
    ".p2align 4",
    // r0 = to, r1 = from, r2 = length -> r0 = bytes copied; r3 and r12 change
    "sidestep_load:",
    "mov r3, r2",
    "2: cmp r3, #4",
    "blo sidestep_load_bytes",
    "ldr r12, [r1]",
    "str r12, [r0], #4",
    "add r1, r1, #4",
    "sub r3, r3, #4",
    "b 2b",
    // Also after a fault of four bytes, of which some may be there.
    "sidestep_load_bytes:",
    "cmp r3, #0",
    "beq sidestep_load_end",
    "ldrb r12, [r1]",
    "strb r12, [r0], #1",
    "add r1, r1, #1",
    "sub r3, r3, #1",
    "b sidestep_load_bytes",
    "sidestep_load_end:",
    "sub r0, r2, r3",
    "bx lr",
    ".p2align 4",
    // r0 = to, r1 = from, r2 = length -> r0 = bytes before the NUL, -1 if not one can be read; r3
    // and r12 change
    "sidestep_load_string:",
    "mov r3, r2",
    "3: cmp r3, #0",
    "beq 4f",
    "ldrb r12, [r1]",
    "strb r12, [r0]",
    "cmp r12, #0",
    "beq 4f",
    "add r0, r0, #1",
    "add r1, r1, #1",
    "sub r3, r3, #1",
    "b 3b",
    "4: sub r0, r2, r3",
    "bx lr",
    // After a fault.
    "sidestep_load_string_end:",
    "subs r0, r2, r3",
    "mvneq r0, #0",
    "bx lr",
    ".p2align 4",
    // r0 = from -> r0 and r1 = the bytes, r2 = 1; after a fault r2 = 0
    "sidestep_load_u64:",
    "ldr r1, [r0, #4]",
    "ldr r0, [r0]",
    "mov r2, #1",
    "bx lr",
    "sidestep_load_u64_end:",
    "mov r2, #0",
    "bx lr",
    ".popsection",
);

unsafe extern "C" {
    fn sidestep_load();
    fn sidestep_load_bytes();
    fn sidestep_load_end();
    fn sidestep_load_string();
    fn sidestep_load_string_end();
    fn sidestep_load_u64();
    fn sidestep_load_u64_end();
}

/// Copies up to `len` bytes; gives how many there were before the first that cannot be read.
///
/// # Safety
/// `to` is writable for `len` bytes. Our handler is installed, or `from` is readable for `len`
/// bytes.
#[inline(always)]
pub unsafe fn load(to: *mut u8, from: u64, len: u64) -> u64 {
    let got: u32;
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults, if
    // there are any. The code changes only the registers that are listed. Called directly: a call
    // in Rust would go through a table of addresses.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load,
            inout("r0") to => got, inout("r1") from as u32 => _, in("r2") len as u32,
            out("r3") _, out("r12") _, out("lr") _);
    }
    got.into()
}

/// Copies up to a NUL, at most `len` bytes; gives their number, or `u64::MAX` if not one can be
/// read.
///
/// # Safety
/// `to` is writable for `len` bytes, and our handler is installed.
#[inline(always)]
pub unsafe fn load_string(to: *mut u8, from: u64, len: u64) -> u64 {
    let got: u32;
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults. The
    // code changes only the registers that are listed.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load_string,
            inout("r0") to => got, inout("r1") from as u32 => _, in("r2") len as u32,
            out("r3") _, out("r12") _, out("lr") _);
    }
    if got == u32::MAX { u64::MAX } else { got.into() }
}

/// The eight bytes at an address.
///
/// # Safety
/// Our handler is installed.
#[inline(always)]
pub unsafe fn load_u64(from: u64) -> Option<u64> {
    let (low, high, readable): (u32, u32, u32);
    // SAFETY: the caller promises that our handler gets the faults. The code changes only the
    // registers that are listed.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load_u64,
            inout("r0") from as u32 => low, out("r1") high, out("r2") readable, out("lr") _);
    }
    (readable != 0).then_some(u64::from(low) | u64::from(high) << 32)
}

macro_rules! address {
    ($label:ident) => {{
        let at: u32;
        // SAFETY: the address of a label above, from where this is.
        unsafe {
            asm!("movw {at}, #:lower16:({label} - (2f + 8))", "movt {at}, #:upper16:({label} - (2f + 8))",
                "2: add {at}, pc, {at}",
                at = out(reg) at, label = sym $label, options(nomem, nostack, preserves_flags));
        }
        u64::from(at)
    }};
}

/// Where to go on after a fault at `ip`; `None` = that is no load of ours.
#[must_use]
pub fn after_fault(ip: u64) -> Option<u64> {
    let within = |start: u64, end: u64| (start <= ip && ip < end).then_some(end);
    let bytes = address!(sidestep_load_bytes);
    within(address!(sidestep_load), bytes)
        .or_else(|| within(bytes, address!(sidestep_load_end)))
        .or_else(|| within(address!(sidestep_load_string), address!(sidestep_load_string_end)))
        .or_else(|| within(address!(sidestep_load_u64), address!(sidestep_load_u64_end)))
}
