//! Calling a function that is replaced.
//!
//! ```text
//!   code page:  jmp *word           one per original, 16 bytes apart
//!   data page:  word                8 bytes, written by the controller while the threads stand
//! ```
//!
//! The word is the address of the copy of the displaced instructions, which goes on in the
//! function, while the probe is there, and of the function itself afterwards. It is read by the
//! very instruction that jumps, so that no thread holds an address of a detour that is gone: either
//! it has jumped, and the detach finds it in the detour, or it has not.
#![allow(unsafe_code, reason = "makes a page of code")]

use std::io;
use std::ptr::null_mut;
use std::sync::Mutex;

use crate::error::Error;

const PAGE: usize = 4096;
const STUB: usize = 16;
/// As many as fit into a page of code.
const STUBS: usize = PAGE / STUB;

/// The original of a replaced function. It stays for as long as the process does (24 bytes of it),
/// since nobody knows who has kept the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Original {
    stub: usize,
    word: usize,
}

/// The page that is being filled, and how many stubs are taken.
static PAGES: Mutex<Option<(usize, usize)>> = Mutex::new(None);

impl Original {
    /// One that leads nowhere until it is given to a probe ([`crate::Probe::replace`]) that is
    /// registered.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> Result<Original, Error> {
        let mut pages = PAGES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let (at, used) = match *pages {
            Some((at, used)) if used < STUBS => (at, used),
            _ => (page().map_err(|source| Error::Own { what: "make a page of code", source })?, 0),
        };
        *pages = Some((at, used + 1));
        Ok(Original { stub: at + used * STUB, word: at + PAGE + used * 8 })
    }

    /// The address at which the original can be called, with its own signature.
    #[must_use]
    pub fn address(&self) -> *const () {
        self.stub as *const ()
    }

    /// The same as a function.
    ///
    /// # Safety
    /// `F` is a function pointer of the original's type.
    #[must_use]
    pub unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<usize>()) };
        // SAFETY: the stub is code of the original's type, and the caller promises that `F` is a
        // function pointer of that type. The assertion checks the size.
        unsafe { std::mem::transmute_copy(&self.stub) }
    }

    /// Address of the word.
    pub(crate) fn word(&self) -> u64 {
        self.word as u64
    }
}

/// A page of stubs, and behind it the page of their words.
fn page() -> io::Result<usize> {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the memory is new, and no other code knows its address before this returns.
    unsafe {
        let at = libc::mmap(null_mut(), 2 * PAGE, libc::PROT_READ | libc::PROT_WRITE, anonymous, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        for stub in 0..STUBS {
            let code = at.cast::<u8>().add(stub * STUB);
            let word = at as usize + PAGE + stub * 8;
            // 64-bit code names it by the distance from the end of the instruction, 6 bytes behind
            // the stub.
            let operand = if cfg!(target_arch = "x86") { word } else { word - (code as usize + 6) } as u32;
            code.cast::<[u8; 2]>().write([0xff, 0x25]); // jmp *operand
            code.add(2).cast::<[u8; 4]>().write(operand.to_le_bytes());
        }
        if libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_EXEC) != 0 {
            let error = io::Error::last_os_error();
            libc::munmap(at, 2 * PAGE);
            return Err(error);
        }
        Ok(at as usize)
    }
}
