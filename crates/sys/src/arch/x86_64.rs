//! Registers and gadgets of x86-64.

use sidestep_isa::Va;

use crate::memory::MemoryError;
use crate::process::Process;

/// Length of the `syscall` instruction.
pub const SYSCALL_LEN: u64 = SYSCALL.len() as u64;
/// The instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

// include/linux/errno.h: what an interrupted system call leaves in rax for the kernel's own signal code.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;

/// The registers of a stopped thread.
#[derive(Clone, Copy, Debug)]
pub struct Regs {
    pub(crate) raw: libc::user_regs_struct,
}

impl Regs {
    /// The address of the instruction that the thread executes next. If it was stopped inside a system call that the
    /// kernel will restart, this is the `syscall` instruction, although the hardware register is already behind it.
    #[must_use]
    pub fn ip(&self) -> Va {
        if self.restarts() { Va(self.raw.rip.wrapping_sub(SYSCALL_LEN)) } else { Va(self.raw.rip) }
    }

    /// Makes the thread go on at `at`. If [`Regs::restarts`], there must be a `syscall` instruction, too.
    pub(crate) fn set_ip(&mut self, at: Va) {
        self.raw.rip = if self.restarts() { at.0.wrapping_add(SYSCALL_LEN) } else { at.0 };
    }

    /// Was the thread stopped inside a system call that the kernel will restart when it goes on?
    #[must_use]
    pub fn restarts(&self) -> bool {
        self.syscall().is_some()
            && matches!(self.raw.rax as i64, ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK)
    }

    /// Will the restart use state that the kernel keeps for this thread (`restart_syscall(2)`), which a
    /// signal return would throw away?
    pub(crate) fn restarts_from_block(&self) -> bool {
        self.restarts() && self.raw.rax as i64 == ERESTART_RESTARTBLOCK
    }

    /// Stack pointer.
    #[must_use]
    pub fn sp(&self) -> Va {
        Va(self.raw.rsp)
    }

    /// Number of the system call that the thread is in or has just finished.
    #[must_use]
    pub fn syscall(&self) -> Option<u64> {
        // Negative as int, like the kernel looks at it (syscall_get_nr).
        (self.raw.orig_rax as i32 >= 0).then_some(self.raw.orig_rax)
    }

    /// A general register by hardware number: rax rcx rdx rbx rsp rbp rsi rdi r8 … r15.
    ///
    /// `None` for numbers above 15.
    #[must_use]
    pub fn gpr(&self, n: u8) -> Option<u64> {
        let r = &self.raw;
        [r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15]
            .get(usize::from(n))
            .copied()
    }

    /// Flags.
    #[must_use]
    pub fn flags(&self) -> u64 {
        self.raw.eflags
    }

    /// Thread pointer.
    #[must_use]
    pub fn fs_base(&self) -> Va {
        Va(self.raw.fs_base)
    }

    /// The other segment base.
    #[must_use]
    pub fn gs_base(&self) -> Va {
        Va(self.raw.gs_base)
    }

    /// The registers with which user code goes on if the kernel's restart logic is not asked again, as after a
    /// signal return: the same as `arch_do_signal_or_restart` makes (arch/x86/kernel/signal.c), except that a call which
    /// would be continued from kernel state begins anew; its argument registers are still there.
    pub(crate) fn settled(&self, process: &Process) -> Regs {
        let mut regs = *self;
        if self.restarts() || self.is_restarting(process) {
            regs.raw.rip = self.ip().0;
            regs.raw.rax = self.number_from_code(process).unwrap_or(self.raw.orig_rax);
        }
        regs.raw.orig_rax = u64::MAX;
        regs
    }

    /// Stopped again between the kernel's decision to continue a call (`restart_syscall` in rax, the instruction pointer
    /// back at `syscall`) and the call?
    fn is_restarting(&self, process: &Process) -> bool {
        self.syscall().is_some()
            && self.raw.rax as i64 == libc::SYS_restart_syscall
            && process.read_pod(self.ip()).is_ok_and(|code: [u8; 2]| code == SYSCALL)
    }

    /// A call that was interrupted twice has become a `restart_syscall`, and no register tells what it was. The
    /// instruction before `syscall` does, in most code (not in musl's: there the call returns EINTR if we die).
    fn number_from_code(&self, process: &Process) -> Option<u64> {
        /// The calls that the kernel continues (kernel/time, kernel/futex, fs/select.c).
        const CONTINUED: [i64; 4] = [libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_futex, libc::SYS_clock_nanosleep];
        const MOV_EAX_IMM32: u8 = 0xb8;
        if self.raw.orig_rax as i64 != libc::SYS_restart_syscall {
            return None;
        }
        let [op, imm @ ..]: [u8; 5] = process.read_pod(self.ip().offset(-5)).ok()?;
        let nr = i64::from(u32::from_le_bytes(imm));
        (op == MOV_EAX_IMM32 && CONTINUED.contains(&nr)).then_some(nr as u64)
    }

    /// The registers that execute a system call with the gadgets `g` and then return into the frame at `frame`.
    pub(crate) fn for_call(&self, g: Gadgets, frame: Va, nr: u64, args: [u64; 6]) -> Regs {
        /// Trap, direction and resume flag: must not reach the gadget.
        const TF_DF_RF: u64 = 1 << 8 | 1 << 10 | 1 << 16;
        let mut r = self.raw;
        r.rip = g.syscall_ret.0;
        r.rsp = frame.0;
        r.rax = nr;
        [r.rdi, r.rsi, r.rdx, r.r10, r.r8, r.r9] = args;
        r.eflags &= !TF_DF_RF;
        r.orig_rax = u64::MAX;
        Regs { raw: r }
    }
}

/// Registers at the entry of a system call, for following the start of a program.
impl Regs {
    /// The hardware register, at a system call always behind the instruction.
    pub(crate) fn raw_ip(&self) -> Va {
        Va(self.raw.rip)
    }

    /// A system call that changes mappings.
    pub(crate) fn changes_maps(&self) -> bool {
        let calls = [libc::SYS_mmap, libc::SYS_munmap, libc::SYS_mprotect, libc::SYS_mremap, libc::SYS_brk];
        self.syscall().is_some_and(|nr| calls.contains(&(nr as i64)))
    }

    /// A system call that may make code appear: the third argument of `mmap` and `mprotect` is the protection.
    pub(crate) fn maps_code(&self) -> bool {
        let calls = [libc::SYS_mmap, libc::SYS_mprotect];
        self.syscall().is_some_and(|nr| calls.contains(&(nr as i64))) && self.raw.rdx & libc::PROT_EXEC as u64 != 0
    }

    /// The call is not made now: the thread goes back to the instruction before it.
    pub(crate) fn before_syscall(&self) -> Regs {
        let mut r = self.raw;
        r.rip = r.rip.wrapping_sub(SYSCALL_LEN);
        r.rax = r.orig_rax;
        r.orig_rax = u64::MAX;
        Regs { raw: r }
    }

    /// The call of [`entry_stub`] is not made; the rest of the stub is done here. `saved` is the stub's stack.
    pub(crate) fn after_stub(&self, saved: [u64; 3], entry: Va) -> Regs {
        let mut r = self.raw;
        [r.r11, r.rcx, r.rax] = saved;
        r.rsp = r.rsp.wrapping_add(size_of_val(&saved) as u64);
        r.rip = entry.0;
        r.orig_rax = u64::MAX;
        Regs { raw: r }
    }
}

/// Room for [`entry_stub`].
pub const ENTRY_STUB_LEN: u64 = 4096;

/// Code that makes a system call (`getpid`) and jumps to `entry`, with all registers as they were.
pub fn entry_stub(entry: Va) -> Vec<u8> {
    let mut code = vec![
        0x50, // push %rax
        0x51, // push %rcx
        0x41, 0x53, // push %r11
        0xb8, 39, 0, 0, 0, // mov $39, %eax
        0x0f, 0x05, // syscall
        0x41, 0x5b, // pop %r11
        0x59, // pop %rcx
        0x58, // pop %rax
        0xff, 0x25, 0, 0, 0, 0, // jmp *0(%rip)
    ];
    code.extend_from_slice(&entry.0.to_le_bytes());
    code
}

/// Instructions of the target that a remote call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `syscall; ret`.
    pub syscall_ret: Va,
    /// `mov $15, %eax; syscall`: `rt_sigreturn`, which every C library has as a signal restorer.
    pub sigreturn: Va,
}

const SYSCALL_RET: &[u8] = &[0x0f, 0x05, 0xc3];
const SIGRETURN: [&[u8]; 2] = [
    &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], // mov $15, %rax; syscall
    &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05],             // mov $15, %eax; syscall
];

/// Both gadgets in a row, for targets that have none.
pub const GADGET_CODE: [u8; 12] = [0x0f, 0x05, 0xc3, 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];

impl Gadgets {
    /// The gadgets if [`GADGET_CODE`] is at `at`.
    pub fn of_code_at(at: Va) -> Gadgets {
        Gadgets { syscall_ret: at, sigreturn: at.offset(SYSCALL_RET.len() as i64) }
    }

    /// Are the instructions still there?
    pub fn check(&self, process: &Process) -> bool {
        let begins = |at: Va, code: &[u8]| {
            let mut buf = [0u8; 9];
            let Some(buf) = buf.get_mut(..code.len()) else {
                return false;
            };
            process.read(at, buf).is_ok() && buf == code
        };
        begins(self.syscall_ret, SYSCALL_RET) && SIGRETURN.iter().any(|code| begins(self.sigreturn, code))
    }

    /// Looks for the gadgets in some executable code that lies at `at`, filling in what is still missing.
    pub fn search(found: &mut (Option<Va>, Option<Va>), at: Va, code: &[u8]) {
        let mut from = 0;
        // The byte pair 0f 05 is rare; everything hangs on it.
        while let Some(i) = code.get(from..).and_then(|c| c.windows(2).position(|w| w == [0x0f, 0x05])) {
            let i = from + i;
            if found.0.is_none() && code.get(i..).is_some_and(|c| c.starts_with(SYSCALL_RET)) {
                found.0 = Some(at.offset(i as i64));
            }
            for pattern in SIGRETURN {
                let start = (i + SYSCALL_LEN as usize).wrapping_sub(pattern.len());
                if found.1.is_none() && code.get(start..).is_some_and(|c| c.starts_with(pattern)) {
                    found.1 = Some(at.offset(start as i64));
                }
            }
            if found.0.is_some() && found.1.is_some() {
                return;
            }
            from = i + 2;
        }
    }
}

/// If a thread with these registers stands in a restartable sequence: where its abort handler is, and the address of the
/// word (`rseq_cs`) to be cleared. The kernel would abort the sequence, as the thread has been preempted; it looks
/// at the instruction pointer to know, and does not find it if we let the thread execute something else in between
/// (kernel/rseq.c).
pub fn rseq_abort(process: &Process, area: Va, ip: Va) -> Result<Option<(Va, Va)>, MemoryError> {
    // struct rseq { u32 cpu_id_start, cpu_id; u64 rseq_cs; … }
    let word = area.offset(8);
    let descriptor: u64 = process.read_pod(word)?;
    if descriptor == 0 {
        return Ok(None);
    }
    // struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }
    let [_, start, len, abort]: [u64; 4] = process.read_pod(Va(descriptor))?;
    Ok((ip.0.wrapping_sub(start) < len).then_some((Va(abort), word)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs(rip: u64, rax: i64, orig_rax: i64) -> Regs {
        // Built field by field: the type has no Default.
        let raw = libc::user_regs_struct {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            rbp: 0,
            rbx: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rax: rax as u64,
            rcx: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            orig_rax: orig_rax as u64,
            rip,
            cs: 0x33,
            eflags: 0x202,
            rsp: 0,
            ss: 0x2b,
            fs_base: 0,
            gs_base: 0,
            ds: 0,
            es: 0,
            fs: 0,
            gs: 0,
        };
        Regs { raw }
    }

    #[test]
    fn a_restarting_call_stands_at_its_syscall_instruction() {
        let mut r = regs(0x1002, -512, 0);
        assert_eq!(r.ip(), Va(0x1000));
        r.set_ip(Va(0x2000));
        assert_eq!((r.raw.rip, r.ip()), (0x2002, Va(0x2000)));
    }

    #[test]
    fn a_value_like_a_restart_code_outside_a_call_is_just_a_value() {
        let r = regs(0x1002, -512, -1);
        assert_eq!(r.ip(), Va(0x1002));
        assert!(!r.restarts());
        // A finished call that returned EINTR goes on behind it.
        assert_eq!(regs(0x1002, -4, 232).ip(), Va(0x1002));
    }

    /// mov $35,%eax; syscall; nop; nop
    static NANOSLEEP: [u8; 9] = [0xb8, 35, 0, 0, 0, 0x0f, 0x05, 0x90, 0x90];

    #[test]
    fn a_sleep_that_was_stopped_just_before_its_restart_begins_anew() {
        let this = Process::open(std::process::id() as i32).unwrap();
        let at = NANOSLEEP.as_ptr() as u64 + 5;
        let number = |rip, rax, orig_rax| {
            let settled = regs(rip, rax, orig_rax).settled(&this).raw;
            (settled.rip - at, settled.rax)
        };
        // Stopped in the call, for the first time and again; stopped between the kernel's decision and the call.
        assert_eq!(number(at + 2, ERESTART_RESTARTBLOCK, libc::SYS_nanosleep), (0, 35));
        assert_eq!(number(at + 2, ERESTART_RESTARTBLOCK, libc::SYS_restart_syscall), (0, 35));
        assert_eq!(number(at, libc::SYS_restart_syscall, libc::SYS_nanosleep), (0, 35));
        assert_eq!(number(at, libc::SYS_restart_syscall, libc::SYS_restart_syscall), (0, 35));
        // A call that gave this number.
        assert_eq!(number(at + 2, libc::SYS_restart_syscall, libc::SYS_read), (2, 219));
    }

    #[test]
    fn gadgets_are_found_in_our_own_code() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0x1000), &GADGET_CODE);
        let g = Gadgets::of_code_at(Va(0x1000));
        assert_eq!(found, (Some(g.syscall_ret), Some(g.sigreturn)));
    }

    #[test]
    fn the_short_form_of_sigreturn_is_found_at_the_very_start() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0), &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]);
        assert_eq!(found, (None, Some(Va(0))));
    }
}
