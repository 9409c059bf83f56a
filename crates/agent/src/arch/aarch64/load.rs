//! Loads that may fault. Our handler of SIGSEGV and SIGBUS lets a load that failed go on where
//! [`after_fault`] says.
//!
//! Eight bytes at a time, but never beyond a page that holds a byte that was asked for. A fault
//! costs a signal; none is paid for what can be told from the address.

use core::arch::{asm, global_asm};

// Nothing but the listed registers, no stack, no flags that live longer than a line: a fault may
// interrupt any load.
global_asm!(
    ".pushsection .text.sidestep_load,\"ax\",@progbits",
    ".hidden sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".hidden sidestep_load_string, sidestep_load_string_end, sidestep_load_word, sidestep_load_word_end",
    ".globl sidestep_load, sidestep_load_bytes, sidestep_load_end",
    ".globl sidestep_load_string, sidestep_load_string_end, sidestep_load_word, sidestep_load_word_end",
    ".p2align 4",
    // x0 = to, x1 = from, x2 = length -> x0 = bytes copied
    "sidestep_load:",
    "mov x3, x2",
    "2: cmp x3, #8",
    "b.lo sidestep_load_bytes",
    "ldr x4, [x1]",
    "str x4, [x0], #8",
    "add x1, x1, #8",
    "sub x3, x3, #8",
    "b 2b",
    // Also after a fault of eight bytes, of which some may be there.
    "sidestep_load_bytes:",
    "cbz x3, sidestep_load_end",
    "ldrb w4, [x1]",
    "strb w4, [x0], #1",
    "add x1, x1, #1",
    "sub x3, x3, #1",
    "b sidestep_load_bytes",
    "sidestep_load_end:",
    "sub x0, x2, x3",
    "ret",
    ".p2align 4",
    // x0 = to, x1 = from, x2 = length -> x0 = bytes before the NUL, -1 if not one can be read
    "sidestep_load_string:",
    "mov x3, x2",
    "mov x5, #0x0101010101010101",
    "3: cmp x3, #8",
    "b.lo 4f",
    "and x4, x1, #4095",
    "cmp x4, #4088",
    "b.hi 4f",
    "ldr x4, [x1]",
    // The high bit of the first byte that is zero, and perhaps of later ones.
    "sub x6, x4, x5",
    "bic x6, x6, x4",
    "ands x6, x6, #0x8080808080808080",
    "b.ne 5f",
    "str x4, [x0], #8",
    "add x1, x1, #8",
    "sub x3, x3, #8",
    "b 3b",
    // One byte: the end, or the end of a page.
    "4: cbz x3, 6f",
    "ldrb w4, [x1]",
    "strb w4, [x0]",
    "cbz w4, 6f",
    "add x0, x0, #1",
    "add x1, x1, #1",
    "sub x3, x3, #1",
    "b 3b",
    // The bytes up to the NUL, and behind it what was there.
    "5: rbit x6, x6",
    "clz x6, x6",
    "lsr x7, x6, #3",
    "sub x3, x3, x7",
    "7: ldrb w4, [x1], #1",
    "strb w4, [x0], #1",
    "cbnz w4, 7b",
    "6: sub x0, x2, x3",
    "ret",
    // After a fault.
    "sidestep_load_string_end:",
    "subs x0, x2, x3",
    "b.ne 8f",
    "mov x0, #-1",
    "8: ret",
    ".p2align 4",
    // x0 = from -> x0 = the word, x1 = 1; after a fault x1 = 0
    "sidestep_load_word:",
    "ldr x0, [x0]",
    "mov x1, #1",
    "ret",
    "sidestep_load_word_end:",
    "mov x0, #0",
    "mov x1, #0",
    "ret",
    ".popsection",
);

unsafe extern "C" {
    fn sidestep_load();
    fn sidestep_load_bytes();
    fn sidestep_load_end();
    fn sidestep_load_string();
    fn sidestep_load_string_end();
    fn sidestep_load_word();
    fn sidestep_load_word_end();
}

/// Copies up to `len` bytes; gives how many there were before the first that cannot be read.
///
/// # Safety
/// `to` is writable for `len` bytes. Our handler is installed, or `from` is readable for `len`
/// bytes.
#[inline(always)]
pub unsafe fn load(to: *mut u8, from: u64, len: u64) -> u64 {
    let got;
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults, if
    // there are any. The code changes only the registers that are listed.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load,
            inout("x0") to => got, inout("x1") from => _, in("x2") len, out("x3") _, out("x4") _, out("x30") _);
    }
    got
}

/// Copies up to a NUL, at most `len` bytes; gives their number, or `u64::MAX` if not one can be
/// read.
///
/// # Safety
/// `to` is writable for `len` bytes, and our handler is installed.
#[inline(always)]
pub unsafe fn load_string(to: *mut u8, from: u64, len: u64) -> u64 {
    let got;
    // SAFETY: the caller promises that `to` is writable, and that our handler gets the faults. The
    // code changes only the registers that are listed.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load_string,
            inout("x0") to => got, inout("x1") from => _, in("x2") len, out("x3") _, out("x4") _, out("x5") _,
            out("x6") _, out("x7") _, out("x30") _);
    }
    got
}

/// The eight bytes at an address.
///
/// # Safety
/// Our handler is installed.
#[inline(always)]
pub unsafe fn load_u64(from: u64) -> Option<u64> {
    let (word, readable): (u64, u64);
    // SAFETY: the caller promises that our handler gets the faults. The code changes only the
    // registers that are listed.
    unsafe {
        asm!("bl {load}", load = sym sidestep_load_word, inout("x0") from => word, out("x1") readable, out("x30") _);
    }
    (readable != 0).then_some(word)
}

macro_rules! address {
    ($label:ident) => {{
        let at: u64;
        // SAFETY: the address of a label above.
        unsafe {
            asm!("adrp {at}, {label}", "add {at}, {at}, :lo12:{label}", at = out(reg) at, label = sym $label,
                options(nomem, nostack, preserves_flags));
        }
        at
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
        .or_else(|| within(address!(sidestep_load_word), address!(sidestep_load_word_end)))
}
