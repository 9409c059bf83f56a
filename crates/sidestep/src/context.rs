//! What a handler sees of a hit, and may change.

use std::ffi::c_void;

use sidestep_wire::arch::WORDS_BEFORE_ARGUMENTS;
use sidestep_wire::{Hit, Regs};

/// A hit, on the stack of the thread that made it: the registers at the probed instruction in the
/// kernel's order (`struct pt_regs`), and one word that lives from the entry of a call to its
/// return.
///
/// What a handler writes into a general register goes on in that register. `rsp`, the flags and the
/// selectors cannot be changed. `rip` can, by a handler of the entry without one of the return: the
/// thread goes on there, with the stack as it is.
///
/// In 32-bit programs `rax` is `eax`, and so on; upper halves are 0, and what is written to them is
/// lost.
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

/// Functions have all arguments on the stack (System V ABI, i386, 2.2.3).
const STACK_ONLY: bool = cfg!(target_arch = "x86");

impl Context {
    /// Argument `n` of a function, counted from 0, if it is one of the six integers and pointers
    /// that are passed in registers. In 32-bit programs none is: see [`Context::word_argument`].
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<u64> {
        let mut regs = self.regs;
        regs.arguments().get(n).map(|register| **register).filter(|_| !STACK_ONLY)
    }

    /// Changes argument `n`. False: it is not passed in a register.
    pub fn set_argument(&mut self, n: usize, value: u64) -> bool {
        let register = self.regs.arguments().into_iter().nth(n).filter(|_| !STACK_ONLY);
        register.map(|register| *register = value).is_some()
    }

    /// At the entry of a function, where word `n` of what is passed on the stack lies, counted from
    /// 0, to read it or to change it. In 32-bit programs that is all: integers and pointers have a
    /// word each, a `long long` and a `double` have two. In 64-bit programs it is what does not fit
    /// into registers; there is nothing behind the last one.
    #[must_use]
    pub fn stack_argument(&self, n: usize) -> *mut usize {
        (self.regs.sp() as *mut usize).wrapping_add(WORDS_BEFORE_ARGUMENTS).wrapping_add(n)
    }

    /// At the entry of a function, where its argument `n` lies, counted from 0, to read it or to
    /// change it: in 64-bit programs and in 32-bit ones, if it and those before it are integers and
    /// pointers of a word at most.
    ///
    /// ```
    /// # #![allow(unsafe_code)]
    /// use sidestep::Context;
    ///
    /// /// # Safety
    /// /// This is the entry of a function whose first argument is a number.
    /// unsafe fn at_most(context: &mut Context, limit: usize) {
    ///     let number = context.word_argument(0);
    ///     // SAFETY: the first argument is a number, which a word holds.
    ///     unsafe { *number = limit.min(*number) };
    /// }
    /// ```
    #[must_use]
    pub fn word_argument(&mut self, n: usize) -> *mut usize {
        // Where there are registers, a word is as long as they are.
        let passed = self.regs.arguments().map(|register| std::ptr::from_mut(register).cast());
        let mut passed = passed.into_iter();
        let in_registers = if STACK_ONLY { 0 } else { passed.len() };
        match passed.nth(n) {
            Some(register) if !STACK_ONLY => register,
            _ => self.stack_argument(n - in_registers),
        }
    }

    /// Argument `n` among those with a point (of type `double`), counted from 0, if it is one of
    /// the eight that are passed in registers. What a function returns is number 0. In 32-bit
    /// programs none is in a register that is seen here.
    #[must_use]
    pub fn double(&self, n: usize) -> Option<f64> {
        self.xmm.get(n).copied().filter(|_| !STACK_ONLY).map(f64::from_bits)
    }

    /// What the function returns, at its return. In 32-bit programs the upper half of a `long long`
    /// is in `regs.rdx`.
    #[must_use]
    pub fn result(&self) -> u64 {
        self.regs.result()
    }

    /// Changes what the function returns, at its return.
    pub fn set_result(&mut self, value: u64) {
        self.regs.set_result(value);
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

/// Runs a handler at a hit. `errno` stays what it was: the probed code may be between a call and
/// its look at it.
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
