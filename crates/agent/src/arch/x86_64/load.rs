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
    // rdi = to, rsi = from, rdx = length -> rax = bytes copied
    "sidestep_load:",
    "mov rcx, rdx",
    "2: cmp rcx, 8",
    "jb sidestep_load_bytes",
    "mov rax, [rsi]",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rcx, 8",
    "jmp 2b",
    // Also after a fault of eight bytes, of which some may be there.
    "sidestep_load_bytes:",
    "test rcx, rcx",
    "jz sidestep_load_end",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "inc rsi",
    "inc rdi",
    "dec rcx",
    "jmp sidestep_load_bytes",
    "sidestep_load_end:",
    "mov rax, rdx",
    "sub rax, rcx",
    "ret",
    ".p2align 4",
    // rdi = to, rsi = from, rdx = length -> rax = bytes before the NUL, -1 if not one can be read
    "sidestep_load_string:",
    "mov rcx, rdx",
    "movabs r10, 0x8080808080808080",
    "movabs r11, 0x0101010101010101",
    "3: cmp rcx, 8",
    "jb 4f",
    "mov eax, esi",
    "and eax, 4095",
    "cmp eax, 4088",
    "ja 4f",
    "mov rax, [rsi]",
    // The high bit of the first byte that is zero, and perhaps of later ones.
    "mov r9, rax",
    "mov r8, rax",
    "sub r8, r11",
    "not r9",
    "and r8, r9",
    "and r8, r10",
    "jnz 5f",
    "mov [rdi], rax",
    "add rsi, 8",
    "add rdi, 8",
    "sub rcx, 8",
    "jmp 3b",
    // One byte: the end, or the end of a page.
    "4: test rcx, rcx",
    "jz 6f",
    "movzx eax, byte ptr [rsi]",
    "mov [rdi], al",
    "test eax, eax",
    "jz 6f",
    "inc rsi",
    "inc rdi",
    "dec rcx",
    "jmp 3b",
    // The bytes up to the NUL, and behind it what was there.
    "5: lea r9, [r8 - 1]",
    "xor r9, r8",
    "mov r11, r9",
    "not r11",
    "and r11, [rdi]",
    "shr r9, 8",
    "and rax, r9",
    "or rax, r11",
    "mov [rdi], rax",
    "bsf r8, r8",
    "shr r8d, 3",
    "sub rcx, r8",
    "6: mov rax, rdx",
    "sub rax, rcx",
    "ret",
    // After a fault.
    "sidestep_load_string_end:",
    "mov rax, rdx",
    "sub rax, rcx",
    "jnz 7f",
    "dec rax",
    "7: ret",
    ".p2align 4",
    // rdi = from -> rax = the word, rdx = 1; after a fault rdx = 0
    "sidestep_load_word:",
    "mov rax, [rdi]",
    "mov edx, 1",
    "ret",
    "sidestep_load_word_end:",
    "xor eax, eax",
    "xor edx, edx",
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
    // there are any. The code changes only the registers that are listed. Called directly: a call
    // in Rust would go through a table of addresses.
    unsafe {
        asm!("call {load}", load = sym sidestep_load,
            inout("rdi") to => _, inout("rsi") from => _, in("rdx") len, out("rax") got, out("rcx") _);
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
        asm!("call {load}", load = sym sidestep_load_string,
            inout("rdi") to => _, inout("rsi") from => _, in("rdx") len, out("rax") got, out("rcx") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _);
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
    unsafe { asm!("call {load}", load = sym sidestep_load_word, in("rdi") from, out("rax") word, out("rdx") readable) };
    (readable != 0).then_some(word)
}

macro_rules! address {
    ($label:ident) => {{
        let at: u64;
        // SAFETY: the address of a label above.
        unsafe { asm!("lea {}, [rip + {}]", out(reg) at, sym $label, options(nomem, nostack, preserves_flags)) };
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
