//! Loads that may fault. Our handler of SIGSEGV and SIGBUS lets a load that failed go on where
//! [`after_fault`] says.
//!
//! Four bytes at a time, but never beyond a page that holds a byte that was asked for. A fault
//! costs a signal; none is paid for what can be told from the address.

use core::arch::{asm, global_asm};

// Nothing but the listed registers, no flags that live longer than a line, and the stack as at the
// entry where a load may fault: a fault may interrupt any of them.
global_asm!(
    ".pushsection .text.sidestep_load,\"ax\",@progbits",
    ".hidden sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".hidden sidestep_load_string, sidestep_load_string_end, sidestep_load_u64, sidestep_load_u64_end",
    ".globl sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".globl sidestep_load_string, sidestep_load_string_end, sidestep_load_u64, sidestep_load_u64_end",
    ".p2align 4",
    // edi = to, eax = from, ecx = length -> ecx = bytes not copied; edx changes
    "sidestep_load:",
    "2: cmp ecx, 4",
    "jb sidestep_load_bytes",
    "mov edx, [eax]",
    "mov [edi], edx",
    "add eax, 4",
    "add edi, 4",
    "sub ecx, 4",
    "jmp 2b",
    // Also after a fault of four bytes, of which some may be there.
    "sidestep_load_bytes:",
    "test ecx, ecx",
    "jz sidestep_load_end",
    "movzx edx, byte ptr [eax]",
    "mov [edi], dl",
    "inc eax",
    "inc edi",
    "dec ecx",
    "jmp sidestep_load_bytes",
    "sidestep_load_end:",
    "ret",
    ".p2align 4",
    // edi = to, eax = from, ecx = length -> ecx = bytes left from the NUL on, edx = 1; after a
    // fault edx = 0
    "sidestep_load_string:",
    "3: test ecx, ecx",
    "jz 4f",
    "movzx edx, byte ptr [eax]",
    "mov [edi], dl",
    "test edx, edx",
    "jz 4f",
    "inc eax",
    "inc edi",
    "dec ecx",
    "jmp 3b",
    "4: mov edx, 1",
    "ret",
    "sidestep_load_string_end:",
    "xor edx, edx",
    "ret",
    ".p2align 4",
    // eax = from -> edx:eax = the bytes, ecx = 1; after a fault ecx = 0
    "sidestep_load_u64:",
    "mov edx, [eax + 4]",
    "mov eax, [eax]",
    "mov ecx, 1",
    "ret",
    "sidestep_load_u64_end:",
    "xor ecx, ecx",
    "ret",
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
    let left: u32;
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults, if
    // there are any. The code changes only the registers that are listed. Called directly: a call
    // in Rust would go through a table of addresses.
    unsafe {
        asm!("call {load}", load = sym sidestep_load,
            inout("edi") to => _, inout("eax") from as u32 => _, inout("ecx") len as u32 => left, out("edx") _);
    }
    len - u64::from(left)
}

/// Copies up to a NUL, at most `len` bytes; gives their number, or `u64::MAX` if not one can be
/// read.
///
/// # Safety
/// `to` is writable for `len` bytes, and our handler is installed.
#[inline(always)]
pub unsafe fn load_string(to: *mut u8, from: u64, len: u64) -> u64 {
    let (left, whole): (u32, u32);
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults. The
    // code changes only the registers that are listed.
    unsafe {
        asm!("call {load}", load = sym sidestep_load_string,
            inout("edi") to => _, inout("eax") from as u32 => _, inout("ecx") len as u32 => left, out("edx") whole);
    }
    let got = len - u64::from(left);
    if got == 0 && whole == 0 { u64::MAX } else { got }
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
        asm!("call {load}", load = sym sidestep_load_u64,
            inout("eax") from as u32 => low, out("edx") high, out("ecx") readable);
    }
    (readable != 0).then_some(u64::from(low) | u64::from(high) << 32)
}

macro_rules! address {
    ($label:ident) => {{
        let at: u32;
        // SAFETY: the address of a label above, from where this is.
        unsafe {
            asm!("call 2f", "2: pop {at:e}", "lea {label} - 2b({at:e}), {at:e}",
                at = out(reg) at, label = sym $label, options(att_syntax, preserves_flags));
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
