//! Registers and gadgets of x86-32, as a 64-bit kernel runs it: it shows a 32-bit thread to a
//! 32-bit tracer as an i386 kernel would (arch/x86/kernel/ptrace.c, `user_x86_32_view`).
//!
//! However a program enters the kernel, an interrupted call stands behind an `int $0x80`: the vDSO
//! has one where its fast entries return to (arch/x86/entry/vdso/vdso32/system_call.S,
//! `int80_landing_pad`).
#![allow(unsafe_code, reason = "one ptrace request")]

mod frame;
mod survey;

use std::io;

use sidestep_isa::{Isa, Va};

use super::regs::Regs;
use super::vdso::call_of_interrupt;
use crate::process::Process;
use crate::ptrace;

pub use super::processor::LENDING_CALLS;
pub(crate) use super::processor::{first_byte, get_user_regs, set_user_regs, ticks, ticks_usable};
pub(crate) use frame::{FpState, Frame, is_frame};
pub use survey::signal_frames;

/// The general registers, as ptrace gives them.
pub(crate) type UserRegs = libc::user_regs_struct;
/// A word of the target's memory.
pub type Word = u32;
/// What the targets of this build are called.
pub const NAME: &str = "32-bit x86";
/// And those of the other build.
pub const OTHER: &str = "64-bit x86";
/// Class and machine of their files (`ELFCLASS32`, `EM_386`), and of those of the other build
/// (`EM_X86_64`).
pub(crate) const ELF: (u8, u8) = (1, 3);
/// See [`ELF`].
pub(crate) const OTHER_ELF: (u8, u8) = (2, 62);
/// What a relocation by the load address alone is in its files (`R_386_RELATIVE`).
pub const RELATIVE: u32 = 8;
/// A program may set its thread pointer without a system call.
pub const SETS_THREAD_POINTER: bool = false;
/// Signal handlers may return through the vDSO.
pub const RETURNS_IN_VDSO: bool = true;
/// How seccomp filters name the architecture: `AUDIT_ARCH_I386`.
pub(crate) const AUDIT: u32 = 0x4000_0003;
/// The system call that maps memory; the offset is 0 in all of ours.
pub const MMAP: libc::c_long = libc::SYS_mmap2;
/// `futex_time64`: the time has two words of 64 bits.
pub const FUTEX: libc::c_long = 422;
/// In what it counts the offset in the file, in bytes.
pub const MMAP_UNIT: u64 = 4096;
/// The system call of the agent's clock: `clock_gettime64`.
pub const CLOCK_GETTIME: libc::c_long = 403;
/// System calls that change signal masks or actions, or wait with another mask.
pub const SIGNAL_CALLS: &[libc::c_long] = &[
    libc::SYS_rt_sigaction,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_pselect6,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    // pselect6_time64, ppoll_time64, epoll_pwait2
    413,
    414,
    441,
];
/// End of user space (`IA32_PAGE_OFFSET`, arch/x86/include/asm/page_64_types.h).
pub const ADDRESS_END: u64 = 0xffff_e000;
/// The instruction set of targets.
pub const ISA: Isa = Isa::X86;
/// Those that the code of targets is of.
pub const ISAS: &[Isa] = &[ISA];
/// All that map memory and have their arguments in registers.
pub(crate) const MMAPS: &[libc::c_long] = &[libc::SYS_mmap2];
/// The instruction that makes a system call.
pub(crate) const SYSCALL: [u8; 2] = [0xcd, 0x80];

// arch/x86/entry/syscalls/syscall_32.tbl; not in every version of the libc crate.
const CLOCK_NANOSLEEP_TIME64: libc::c_long = 407;
const FUTEX_TIME64: libc::c_long = 422;
/// The calls that end with EINTR when a thread stops and goes on, with no handler in between
/// (signal(7), "Interruption of system calls and library functions by stop signals"; of the calls
/// that wait for events also `io_uring_enter(2)` and `io_getevents(2)`). Those that read and write
/// do so at sockets with a timeout (`SO_RCVTIMEO`, `SO_SNDTIMEO`).
pub(crate) const END_AT_STOPS: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_socketcall,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    RECVMMSG_TIME64,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ipc,
    SEMTIMEDOP_TIME64,
    libc::SYS_rt_sigtimedwait,
    RT_SIGTIMEDWAIT_TIME64,
    libc::SYS_io_uring_enter,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
];
pub(crate) const IO_PGETEVENTS: libc::c_long = 385;
const RECVMMSG_TIME64: libc::c_long = 417;
const SEMTIMEDOP_TIME64: libc::c_long = 420;
const RT_SIGTIMEDWAIT_TIME64: libc::c_long = 421;
/// The calls that the kernel continues (kernel/time, kernel/futex, fs/select.c).
pub(crate) const CONTINUED: [libc::c_long; 6] = [
    libc::SYS_poll,
    libc::SYS_nanosleep,
    libc::SYS_futex,
    libc::SYS_clock_nanosleep,
    FUTEX_TIME64,
    CLOCK_NANOSLEEP_TIME64,
];

/// The number that the code in front of a call at `ip` sets. Where the vDSO makes it, that is where
/// the vDSO was called.
pub(crate) fn number_from_code(process: &Process, ip: Va, sp: Va) -> Option<u32> {
    const MOV_EAX_IMM32: u8 = 0xb8;
    /// Between the number and the call other arguments may be set.
    const LOOK: usize = 32;
    let call = call_of_interrupt(process, ip, sp).unwrap_or(ip);
    let before: [u8; LOOK] = process.read_pod(call.offset(-(LOOK as i64))).ok()?;
    let number = |insn: &[u8]| match insn {
        [MOV_EAX_IMM32, a, b, c, d] => Some(u32::from_le_bytes([*a, *b, *c, *d])),
        _ => None,
    };
    let known = |nr: &u32| CONTINUED.contains(&(*nr as libc::c_long));
    before.windows(5).rev().filter_map(number).find(known)
}

/// Generated code takes the thread pointer from memory.
#[must_use]
pub fn thread_pointer_readable() -> bool {
    true
}

/// The thread pointer of a stopped thread with these registers: the base of the segment that `gs`
/// selects.
pub(crate) fn thread_pointer(tid: i32, raw: &UserRegs) -> io::Result<u64> {
    /// Selectors of the descriptor table that all processes share; none of an own table is used for
    /// TLS any more.
    const LOCAL: i32 = 4;
    let selector = raw.xgs & 0xffff;
    if selector & !3 == 0 || selector & LOCAL != 0 {
        return Ok(0);
    }
    // struct user_desc: entry number, base, limit, flags (arch/x86/include/uapi/asm/ldt.h)
    match ptrace::thread_area(tid, selector >> 3) {
        Ok([_, base, ..]) => Ok(base.into()),
        // One of the kernel's own descriptors.
        Err(e) if e.raw_os_error() == Some(libc::EINVAL) => Ok(0),
        Err(e) => Err(e),
    }
}

impl Regs {
    /// The hardware register: behind the instruction in a system call.
    pub(crate) fn raw_ip(&self) -> Va {
        Va(word(self.raw.eip))
    }

    pub(super) fn set_raw_ip(&mut self, at: Va) {
        self.raw.eip = at.0 as i32;
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> Va {
        Va(word(self.raw.esp))
    }

    /// Frame pointer.
    #[must_use]
    pub fn frame_pointer(&self) -> Va {
        Va(word(self.raw.ebp))
    }

    /// Result of a system call, or whatever is in its register.
    pub(crate) fn result(&self) -> i64 {
        self.raw.eax.into()
    }

    pub(super) fn set_result(&mut self, value: u64) {
        self.raw.eax = value as i32;
    }

    /// What the kernel keeps of the number of a system call; as an `int` below 0 outside of one.
    pub(super) fn kept_number(&self) -> u64 {
        word(self.raw.orig_eax)
    }

    pub(super) fn end_syscall(&mut self) {
        self.raw.orig_eax = -1;
    }

    /// Third argument of a system call.
    pub(super) fn argument3(&self) -> u64 {
        word(self.raw.edx)
    }

    /// The registers from which a system call takes its arguments, in their order.
    pub(crate) fn arguments(&self) -> [u64; 6] {
        let r = &self.raw;
        [r.ebx, r.ecx, r.edx, r.esi, r.edi, r.ebp].map(word)
    }

    /// Sets them.
    pub(crate) fn set_arguments(&mut self, arguments: [u64; 6]) {
        let r = &mut self.raw;
        [r.ebx, r.ecx, r.edx, r.esi, r.edi, r.ebp] = arguments.map(|argument| argument as i32);
    }

    /// A general register by hardware number: eax ecx edx ebx esp ebp esi edi.
    ///
    /// `None` for numbers above 7.
    #[must_use]
    pub fn gpr(&self, n: u8) -> Option<u64> {
        let r = &self.raw;
        [r.eax, r.ecx, r.edx, r.ebx, r.esp, r.ebp, r.esi, r.edi].get(usize::from(n)).copied().map(word)
    }

    /// Does a register hold the address behind a system call that has just returned? None does:
    /// `int $0x80` changes no other register, and the vDSO saves those that `sysenter` needs.
    #[must_use]
    pub fn is_behind_call(&self) -> bool {
        false
    }

    /// See [`Regs::is_behind_call`].
    pub(crate) fn set_behind_call(&mut self, at: Va) {
        self.set_raw_ip(at);
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        word(self.raw.eflags)
    }

    /// The registers that execute a system call with the gadgets `g` and then return into the frame
    /// at `frame`.
    pub(crate) fn for_call(&self, g: Gadgets, frame: Va, nr: u64, args: [u64; 6]) -> Regs {
        /// Trap, direction and resume flag: must not reach the gadget.
        const TF_DF_RF: i32 = 1 << 8 | 1 << 10 | 1 << 16;
        let mut r = self.raw;
        r.eip = g.syscall_ret.0 as i32;
        r.esp = frame.0 as i32;
        r.eax = nr as i32;
        [r.ebx, r.ecx, r.edx, r.esi, r.edi, r.ebp] = args.map(|arg| arg as i32);
        r.eflags &= !TF_DF_RF;
        r.orig_eax = -1;
        Regs { raw: r, ..*self }
    }

    /// The registers that execute [`BATCH_CODE`] at `code` and then return into the frame.
    pub(crate) fn for_batch(&self, g: Gadgets, frame: Va, code: Va, list: Va) -> Regs {
        let mut regs = self.for_call(g, frame, 0, [0; 6]);
        (regs.raw.eip, regs.raw.ebp) = (code.0 as i32, list.0 as i32);
        regs
    }

    /// The call of [`entry_stub`] is not made; the rest of the stub is done here. `saved` is the
    /// stub's stack.
    pub(crate) fn after_stub(&self, saved: StubStack, entry: Va) -> Regs {
        let mut r = self.raw;
        let [eax] = saved;
        r.eax = eax as i32;
        r.esp = r.esp.wrapping_add(size_of_val(&saved) as i32);
        r.eip = entry.0 as i32;
        r.orig_eax = -1;
        Regs { raw: r, ..*self }
    }
}

/// A register as an address or number.
fn word(value: i32) -> u64 {
    u64::from(value as u32)
}

/// Makes the system calls of a list of eight words each (number, arguments, of which the last is
/// not used, result), up to a number below 0, and returns. [`crate::Call`]s with the number
/// [`crate::ADD`] are no system calls. Uses no stack.
pub const BATCH_CODE: &[u8] = &[
    0x8b, 0x45, 0x00, // 0: mov (%ebp), %eax
    0x85, 0xc0, // test %eax, %eax
    0x78, 0x28, // js 1f
    0x8b, 0x5d, 0x04, // mov 4(%ebp), %ebx
    0x8b, 0x4d, 0x08, // mov 8(%ebp), %ecx
    0x3d, 0xff, 0xff, 0xff, 0x7f, // cmp $ADD, %eax
    0x74, 0x13, // je 3f
    0x8b, 0x55, 0x0c, // mov 12(%ebp), %edx
    0x8b, 0x75, 0x10, // mov 16(%ebp), %esi
    0x8b, 0x7d, 0x14, // mov 20(%ebp), %edi
    0xcd, 0x80, // int $0x80
    0x89, 0x45, 0x1c, // 2: mov %eax, 28(%ebp)
    0x83, 0xc5, 0x20, // add $32, %ebp
    0xeb, 0xd9, // jmp 0b
    0xf0, 0x66, 0x01, 0x0b, // 3: lock add %cx, (%ebx)
    0x31, 0xc0, // xor %eax, %eax
    0xeb, 0xf0, // jmp 2b
    0xc3, // 1: ret
];

/// What [`entry_stub`] has on the stack at its system call.
pub(crate) type StubStack = [Word; 1];
/// Room for [`entry_stub`].
pub const ENTRY_STUB_LEN: u64 = 4096;

/// Code that makes a system call (`getpid`) and jumps to `entry`, with all registers as they were.
pub fn entry_stub(entry: Va) -> Vec<u8> {
    let mut code = vec![
        0x50, // push %eax
        0xb8, 20, 0, 0, 0, // mov $20, %eax
        0xcd, 0x80, // int $0x80
        0x58, // pop %eax
        0x68, // push $entry
    ];
    code.extend_from_slice(&(entry.0 as u32).to_le_bytes());
    code.push(0xc3); // ret
    code
}

/// Instructions of the target that a remote call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `int $0x80; ret`.
    pub syscall_ret: Va,
    /// `mov $173, %eax; int $0x80`: `rt_sigreturn`, which the vDSO has as a signal restorer.
    pub sigreturn: Va,
}

const SYSCALL_RET: &[u8] = &[0xcd, 0x80, 0xc3];
const SIGRETURN: &[u8] = &[0xb8, 173, 0, 0, 0, 0xcd, 0x80];

/// Both instructions of a remote call in a row (`Gadgets`), for targets that have none that stay.
pub const GADGET_CODE: [u8; 10] = [0xcd, 0x80, 0xc3, 0xb8, 173, 0, 0, 0, 0xcd, 0x80];

impl Gadgets {
    /// The gadgets if [`GADGET_CODE`] is at `at`.
    pub fn of_code_at(at: Va) -> Gadgets {
        Gadgets { syscall_ret: at, sigreturn: at.offset(SYSCALL_RET.len() as i64) }
    }

    /// Are the instructions still there?
    pub fn check(&self, process: &Process) -> bool {
        let begins = |at: Va, code: &[u8]| {
            let mut buf = vec![0u8; code.len()];
            process.read(at, &mut buf).is_ok() && buf == code
        };
        begins(self.syscall_ret, SYSCALL_RET) && begins(self.sigreturn, SIGRETURN)
    }

    /// Looks for the gadgets in some executable code that lies at `at`, filling in what is still
    /// missing.
    pub fn search(found: &mut (Option<Va>, Option<Va>), at: Va, code: &[u8]) {
        let find = |pattern: &[u8]| code.windows(pattern.len()).position(|w| w == pattern).map(|i| at.offset(i as i64));
        found.0 = found.0.or_else(|| find(SYSCALL_RET));
        found.1 = found.1.or_else(|| find(SIGRETURN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All registers zero but these.
    pub(super) fn regs(eip: i32, eax: i32, orig_eax: i32) -> Regs {
        let raw = UserRegs {
            ebx: 0,
            ecx: 0,
            edx: 0,
            esi: 0,
            edi: 0,
            ebp: 0,
            eax,
            xds: 0x2b,
            xes: 0x2b,
            xfs: 0,
            xgs: 0x63,
            orig_eax,
            eip,
            xcs: 0x23,
            eflags: 0x202,
            esp: 0,
            xss: 0x2b,
        };
        Regs::new(raw, 0)
    }

    #[test]
    fn a_restarting_call_stands_at_its_instruction() {
        let mut r = regs(0x1002, -512, 3);
        assert_eq!(r.ip(), Va(0x1000));
        r.set_ip(Va(0x2000));
        assert_eq!((r.raw.eip, r.ip()), (0x2002, Va(0x2000)));
        // A value like a restart code outside a call is just a value.
        assert_eq!(regs(0x1002, -512, -1).ip(), Va(0x1002));
    }

    #[test]
    fn addresses_of_the_upper_half_are_no_negative_ones() {
        assert_eq!(regs(0xf7f0_1000u32 as i32, 0, -1).ip(), Va(0xf7f0_1000));
    }

    /// mov $162,%eax; int $0x80; nop; nop
    static NANOSLEEP: [u8; 41] = {
        let mut code = [0x90; 41];
        (code[32], code[33], code[34], code[35], code[36]) = (0xb8, 162, 0, 0, 0);
        (code[37], code[38]) = (SYSCALL[0], SYSCALL[1]);
        code
    };

    #[test]
    fn a_sleep_that_was_stopped_just_before_its_restart_begins_anew() {
        let this = Process::open(std::process::id() as i32).unwrap();
        let at = NANOSLEEP.as_ptr() as i32 + 37;
        let number = |eip, eax, orig_eax| {
            let settled = regs(eip, eax, orig_eax).settled(&this).raw;
            (settled.eip - at, settled.eax)
        };
        // Stopped in the call, for the first time and again; stopped between the kernel's decision
        // and the call.
        assert_eq!(number(at + 2, -516, 162), (0, 162));
        assert_eq!(number(at + 2, -516, 0), (0, 162));
        assert_eq!(number(at, 0, 162), (0, 162));
        // A call that gave this number.
        assert_eq!(number(at + 2, 0, 3), (2, 0));
    }

    #[test]
    fn gadgets_are_found_in_our_own_code() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0x1000), &GADGET_CODE);
        let g = Gadgets::of_code_at(Va(0x1000));
        assert_eq!(found, (Some(g.syscall_ret), Some(g.sigreturn)));
    }
}
