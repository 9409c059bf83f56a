//! What `core` and the compiler expect of a program that has no libc.

use core::arch::asm;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    // Nothing in the agent panics, and a test of the linked image sees to it. A wrong value here is
    // better than a death of the target, but there is no value to go on with.
    loop {
        core::hint::spin_loop();
    }
}

/// Referenced by objects of the precompiled `core`.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// # Safety
/// `from` is readable for `len` bytes, `to` is writable for as many, and they do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    for i in 0..len {
        // SAFETY: the caller promises that `from` and `to` have `len` bytes. The empty asm keeps
        // the loop from being turned into a call of this very function.
        unsafe {
            asm!("", options(nomem, nostack));
            to.add(i).write(from.add(i).read());
        }
    }
    to
}

/// # Safety
/// `to` is writable for `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    for i in 0..len {
        // SAFETY: the caller promises that `to` has `len` bytes. The empty asm keeps the loop from
        // being turned into a call of this very function.
        unsafe {
            asm!("", options(nomem, nostack));
            to.add(i).write(byte as u8);
        }
    }
    to
}
