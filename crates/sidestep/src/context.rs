//! What a handler sees of a hit, and may change.

use std::ffi::c_void;

use sidestep_wire::{Hit, Regs};

/// A hit, on the stack of the thread that made it: the registers at the probed instruction in the kernel's order (`struct
/// pt_regs`), and one word that lives from the entry of a call to its return.
///
/// What a handler writes into a general register goes on in that register. `rsp`, the flags and the selectors cannot be changed. `rip`
/// can, by a handler of the entry without one of the return: the thread goes on there, with the stack as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// The registers.
    pub regs: Regs,
    /// 0 at the entry; at the return, what the handler of the entry has left here.
    pub cookie: u64,
    /// The lower halves of `xmm0` to `xmm7`, to look at: changes stay here.
    pub xmm: [u64; 8],
}

const _: () = assert!(size_of::<Context>() == Hit::CONTEXT);

impl Context {
    /// Argument `n` of a function, counted from 0, if it is one of the six integers and pointers that are passed in registers.
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<u64> {
        let regs = &self.regs;
        [regs.rdi, regs.rsi, regs.rdx, regs.rcx, regs.r8, regs.r9].get(n).copied()
    }

    /// Changes argument `n`. False: it is not passed in a register.
    pub fn set_argument(&mut self, n: usize, value: u64) -> bool {
        let regs = &mut self.regs;
        let register = match n {
            0 => &mut regs.rdi,
            1 => &mut regs.rsi,
            2 => &mut regs.rdx,
            3 => &mut regs.rcx,
            4 => &mut regs.r8,
            5 => &mut regs.r9,
            _ => return false,
        };
        *register = value;
        true
    }

    /// Argument `n` among those with a point (of type `double`), counted from 0, if it is one of the eight that are passed in
    /// registers. What a function returns is number 0.
    #[must_use]
    pub fn double(&self, n: usize) -> Option<f64> {
        self.xmm.get(n).copied().map(f64::from_bits)
    }

    /// What the function returns, at its return.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.regs.rax
    }

    /// Changes what the function returns, at its return.
    pub fn set_result(&mut self, value: u64) {
        self.regs.rax = value;
    }
}

/// The type of a handler in C.
pub type Callback = unsafe extern "C" fn(context: *mut Context, data: *mut c_void);

type Closure = Box<dyn Fn(&mut Context) + Send + Sync>;

/// A handler that is a closure. It stays where it is while probes know its address.
pub(crate) struct Handler(Box<Closure>);

impl Handler {
    pub fn new(handler: impl Fn(&mut Context) + Send + Sync + 'static) -> Handler {
        Handler(Box::new(Box::new(handler)))
    }

    /// The second argument of [`run`].
    pub fn data(&self) -> u64 {
        std::ptr::from_ref::<Closure>(&self.0) as u64
    }
}

/// Runs a handler at a hit. `errno` stays what it was: the probed code may be between a call and its look at it.
pub(crate) extern "C" fn run(context: *mut Context, data: *mut c_void) {
    #[allow(unsafe_code)]
    // SAFETY: the thunk's context, which nobody else has, and a closure that the session keeps.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        (*data.cast::<Closure>())(&mut *context);
        *errno = before;
    }
}
