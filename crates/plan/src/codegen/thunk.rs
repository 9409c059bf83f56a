//! Code that all detours of a slab share, and process-wide code: what code generators of all
//! instruction sets give.

use std::rc::Rc;

use sidestep_bpf::verify::Verified;
use sidestep_isa::{Isa, Va};

pub use crate::codegen::x86::thunk::{
    RED_ZONE, SETS_THREAD_POINTER_LEN, native, sets_thread_pointer, thread_pointer_through_self,
};
use crate::codegen::x86::{self, detour::Inlined};
use crate::codegen::{a32, a64};
pub use crate::context::Context;
use sidestep_bpf::native::Env as Native;

/// Bytes of a goroutine's stack that finding the thread's state needs (`agent_slot`), and making
/// the thread's own stack (`agent_stack`).
pub const STATE_STACK: i32 = 320;

/// Run-time facts that generated code contains.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// What the code is.
    pub isa: Isa,
    /// Address of the private region.
    pub private: Va,
    /// Address of the first bucket of the lookup table.
    pub buckets: Va,
    /// Address of the array of missed counts.
    pub missed: Va,
    /// Address of the descriptions of the probes.
    pub descs: Va,
    /// `agent_slot`.
    pub agent_slot: Va,
    /// `agent_hit`.
    pub agent_hit: Va,
    /// `agent_return`.
    pub agent_return: Va,
    /// `agent_stack`.
    pub agent_stack: Va,
    /// `agent_busy`.
    pub agent_busy: Va,
    /// `agent_real`.
    pub agent_real: Va,
    /// `agent_signal`.
    pub agent_signal: Va,
    /// What programs read of the context that run at returns, or before the agent watches for one.
    pub context: Context,
    /// What they may change of it.
    pub changes: Context,
    /// The vector registers that the agent's code touches, a bit each.
    pub agent_vectors: u32,
    /// What programs are compiled for.
    pub native: Native,
    /// Every thread has its thread pointer at `%fs:0`, now and from now on; of x86.
    pub self_pointer: bool,
    /// Multiplier of the lookup hash (`wire::lookup`).
    pub hash_multiplier: i32,
    /// Shift of the lookup hash.
    pub hash_shift: u8,
    /// Number of buckets, a power of two.
    pub bucket_count: u32,
    /// The handlers of a site can be switched one by one.
    pub singly: bool,
    /// How the process enters the kernel; of 32-bit x86.
    pub syscall_entry: SyscallEntry,
}

/// The instruction by which 32-bit x86 code enters the kernel. Which of the fast ones there is
/// depends on the CPU and on the kernel: the vDSO knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyscallEntry {
    /// `int $0x80`, which always works. Since Linux 6.7 the kernel asks the interrupt controller
    /// each time whether a device has raised this interrupt (`int80_is_external` in
    /// `arch/x86/entry/common.c`): in virtual machines that takes microseconds.
    #[default]
    Interrupt,
    /// `sysenter`, with the stack pointer in `ebp`.
    Sysenter,
    /// `syscall`.
    Syscall,
}

impl SyscallEntry {
    /// What the code of `__kernel_vsyscall` uses (`arch/x86/entry/vdso/vdso32/system_call.S`).
    ///
    /// ```
    /// use sidestep_plan::thunk::SyscallEntry;
    /// // push %ecx; push %edx; push %ebp; mov %esp,%ebp; sysenter; int $0x80
    /// let vsyscall = [0x51, 0x52, 0x55, 0x89, 0xe5, 0x0f, 0x34, 0xcd, 0x80];
    /// assert_eq!(SyscallEntry::of(&vsyscall), SyscallEntry::Sysenter);
    /// assert_eq!(SyscallEntry::of(&vsyscall[7..]), SyscallEntry::Interrupt);
    /// ```
    #[must_use]
    pub fn of(vsyscall: &[u8]) -> Self {
        const SYSENTER: &[u8] = &[0x51, 0x52, 0x55, 0x89, 0xe5, 0x0f, 0x34, 0xcd, 0x80];
        // mov %ecx,%ebp; syscall
        const SYSCALL: &[u8] = &[0x51, 0x52, 0x55, 0x89, 0xcd, 0x0f, 0x05, 0xcd, 0x80];
        match vsyscall {
            code if code.starts_with(SYSENTER) => Self::Sysenter,
            code if code.starts_with(SYSCALL) => Self::Syscall,
            _ => Self::Interrupt,
        }
    }
}

/// Where the shared code of a slab is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thunks {
    /// Those of the agent's hit function.
    pub agent: Places,
    /// Those of the agent's hit function for probes that may replace the return address.
    pub returns: Places,
    /// Leads to [`Globals::enter`].
    pub enter: Va,
    /// Those of each program that was given, in the same order.
    pub programs: Vec<Option<Places>>,
    /// Those of each end of remembered calls that was given.
    pub ends: Vec<(Side, usize, Places)>,
    /// Programs as parts of the detours of the slab.
    pub inlined: Inlined,
}

/// A thunk for each [`Place`]. All take the number of the probe from the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Places {
    pub(crate) entry: Va,
    pub(crate) bare: Va,
    pub(crate) inside: Va,
    pub(crate) exit: Va,
}

/// Where a site is, as far as thunks care.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At a function entry.
    Entry,
    /// At a function entry where nobody needs `rax`, `r10`, `r11` and the flags any more: at most
    /// of them.
    Bare,
    /// Elsewhere; the detour has stepped over the red zone.
    Inside,
    /// In front of an exit; the detour has stepped over the red zone. The program sees the
    /// registers as they are behind the return.
    Exit,
}

/// Process-wide code: the return trampoline and the signal entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Globals {
    /// Calls a function whose return address was replaced (`watched`).
    pub enter: Va,
    /// What a replaced return address points to.
    pub trampoline: Va,
    /// Handler of the signals of ours.
    pub signal: Va,
    /// Its restorer.
    pub restorer: Va,
}

/// One end of the calls of a probe, with what runs there.
#[derive(Clone, Debug)]
pub struct End {
    /// Which end.
    pub side: Side,
    /// Number of the program: [`crate::codegen::handler::Handler::end`] asks for it.
    pub number: usize,
    /// The program, linked.
    pub program: Rc<Verified>,
}

/// Which end of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Side {
    /// The function is entered: the program runs, and the call is remembered.
    Enter,
    /// The function is about to return: the call is forgotten, and the program runs.
    Leave,
    /// The function is about to jump to another one, where the call ends. No program runs.
    Jump,
}

/// A program as thunks call it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Program {
    /// Its code: a function of the context in `rdi` and the thread state in `r9`.
    pub code: Va,
    /// The same for places inside of functions, where more has to be saved.
    pub inside: Va,
    /// What it reads of the context.
    pub context: Context,
    /// What it may change of it.
    pub changes: Context,
    /// It must not be entered again by a signal handler that interrupts it: such a hit counts as
    /// missed.
    pub exclusive: bool,
    /// It may make the probed function return at once.
    pub overrides: bool,
    /// It is called on the stack of a goroutine, and needs so many bytes: where less is left, it
    /// runs on a stack of the thread's own.
    pub goroutine: Option<i32>,
}

/// The function, and where its code names addresses that are not known yet, in words of the
/// instruction set.
pub struct Interpreted {
    /// Its code.
    pub bytes: Vec<u8>,
    /// Offset of the address of the program's instructions.
    pub slots_at: usize,
    /// Offset of the address of the interpreter.
    pub interpreter_at: usize,
}

impl Thunks {
    /// The thunk of one end of remembered calls, with this program.
    #[must_use]
    pub fn end(&self, side: Side, number: usize) -> Places {
        let found = self.ends.iter().find(|end| (end.0, end.1) == (side, number));
        found.map_or(self.agent, |end| end.2)
    }
}

impl Places {
    /// Its address.
    #[must_use]
    pub fn at(&self, place: Place) -> Va {
        match place {
            Place::Entry => self.entry,
            Place::Bare => self.bare,
            Place::Inside => self.inside,
            Place::Exit => self.exit,
        }
    }
}

/// Whether the lookup table of threads should lie below 2 GiB: whether generated code is shorter if
/// a displacement can name its address.
#[must_use]
pub fn prefers_low_lookup(isa: Isa) -> bool {
    match isa {
        Isa::X86 | Isa::X64 => true,
        Isa::A64 | Isa::A32 | Isa::T32 => false,
        #[cfg(feature = "toy")]
        Isa::Toy => false,
    }
}

/// The shared code at the start of a slab. `enter` is [`Globals::enter`]; of the programs, those
/// and `ends` that its detours need. `goroutine`: the detours are on stacks of goroutines, of which
/// the agent needs so many bytes.
#[must_use]
pub fn thunks(
    at: Va,
    env: &Env,
    enter: Va,
    programs: &[Option<Program>],
    ends: &[End],
    goroutine: Option<i32>,
) -> (Vec<u8>, Thunks) {
    match env.isa {
        Isa::X86 => x86::thunk::short::thunks(at, env, enter, programs),
        Isa::X64 => x86::thunk::thunks(at, env, enter, programs, ends, goroutine),
        Isa::A64 => a64::thunk::thunks(at, env, enter, programs),
        Isa::A32 | Isa::T32 => a32::thunk::thunks(at, env, enter, programs),
        #[cfg(feature = "toy")]
        Isa::Toy => (Vec::new(), Thunks::default()),
    }
}

/// The process-wide code.
#[must_use]
pub fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    match env.isa {
        Isa::X86 => x86::thunk::short::globals(at, env),
        Isa::X64 => x86::thunk::globals(at, env),
        Isa::A64 => a64::thunk::globals(at, env),
        Isa::A32 | Isa::T32 => a32::thunk::globals(at, env),
        #[cfg(feature = "toy")]
        Isa::Toy => (Vec::new(), Globals { enter: at, trampoline: at, signal: at, restorer: at }),
    }
}

/// A program that is not compiled: a function as native code would be, which calls the interpreter
/// in the agent. For a program of `len` instructions that needs `stack` bytes, a multiple of 16.
#[must_use]
pub fn interpreted(isa: Isa, stack: i32, len: usize) -> Interpreted {
    match isa {
        Isa::X86 | Isa::X64 => x86::thunk::interpreted(isa, stack, len),
        Isa::A64 => a64::thunk::interpreted(stack, len),
        Isa::A32 | Isa::T32 => a32::thunk::interpreted(stack, len),
        #[cfg(feature = "toy")]
        Isa::Toy => Interpreted { bytes: Vec::new(), slots_at: 0, interpreter_at: 0 },
    }
}
