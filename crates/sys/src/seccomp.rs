//! What a thread's seccomp filters would do to a system call: the filters are read from the kernel
//! and run here.
//!
//! Facts: Documentation/userspace-api/seccomp_filter.rst, include/uapi/linux/seccomp.h (verdicts
//! and their order), include/uapi/linux/filter.h (classic BPF), kernel/seccomp.c
//! (`seccomp_check_filter`: which instructions there are).

use crate::arch::AUDIT;
use crate::ptrace;
use crate::stopped::Stopped;

/// What becomes of a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is made, or fails with an error: no harm either way.
    Harmless,
    /// The thread or process dies, gets a signal, or waits for a supervisor.
    Harmful,
}

/// One instruction of classic BPF: `struct sock_filter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Filter {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

// Return values without their data half; the least, as a signed number, of all filters wins.
const RET_ACTION: u32 = 0xffff_0000;
const RET_ERRNO: u32 = 0x0005_0000;
const RET_LOG: u32 = 0x7ffc_0000;
const RET_ALLOW: u32 = 0x7fff_0000;

impl Stopped {
    /// What the filters of all threads would do to a system call with these arguments;
    /// [`Verdict::Harmful`] if they cannot be read (that needs `CAP_SYS_ADMIN` and a kernel with
    /// checkpoint support).
    #[must_use]
    pub fn seccomp_verdict(&self, number: libc::c_long, args: [u64; 6]) -> Verdict {
        let data = Data { number: number as u32, args };
        let threads = self.threads().iter().filter(|t| {
            // A thread that is gone is not harmed.
            self.process().thread_seccomp(t).is_ok_and(|mode| mode != 0)
        });
        for thread in threads {
            let Some(filters) = filters_of(thread.tid) else { return Verdict::Harmful };
            let least = filters.iter().map(|f| data.run(f) & RET_ACTION).min_by_key(|action| *action as i32);
            if !matches!(least, Some(RET_ERRNO | RET_LOG | RET_ALLOW) | None) {
                return Verdict::Harmful;
            }
        }
        Verdict::Harmless
    }
}

/// All filters of a stopped thread.
fn filters_of(tid: i32) -> Option<Vec<Vec<Filter>>> {
    let mut all = Vec::new();
    loop {
        match ptrace::seccomp_filter(tid, all.len()) {
            Ok(filter) => all.push(filter),
            Err(e) if e.raw_os_error() == Some(libc::ENOENT) && !all.is_empty() => return Some(all),
            Err(_) => return None,
        }
    }
}

/// `struct seccomp_data` without the instruction pointer, which reads as 0.
struct Data {
    number: u32,
    args: [u64; 6],
}

impl Data {
    fn load(&self, at: u32) -> u32 {
        let args = |at: u32| {
            let word = self.args[(at / 8) as usize % 6];
            if at % 8 == 0 { word as u32 } else { (word >> 32) as u32 }
        };
        match at {
            0 => self.number,
            4 => AUDIT,
            16..=60 => args(at - 16),
            _ => 0,
        }
    }

    /// The filter's return value; that of a kill for what the kernel would not have accepted.
    fn run(&self, filter: &[Filter]) -> u32 {
        const KILL: u32 = 0;
        let (mut a, mut x) = (0u32, 0u32);
        let mut memory = [0u32; 16];
        let mut pc = 0;
        while let Some(insn) = filter.get(pc) {
            pc += 1;
            let operand = if insn.code & 0x08 == 0 { insn.k } else { x };
            let slot = insn.k as usize % 16;
            match insn.code {
                0x20 => a = self.load(insn.k), // ld  [k]
                0x00 => a = insn.k,            // ld  #k
                0x01 => x = insn.k,            // ldx #k
                0x60 => a = memory[slot],      // ld  M[k]
                0x61 => x = memory[slot],      // ldx M[k]
                0x80 => a = 64,                // ld  #len
                0x81 => x = 64,                // ldx #len
                0x02 => memory[slot] = a,      // st  M[k]
                0x03 => memory[slot] = x,      // stx M[k]
                0x07 => x = a,                 // tax
                0x87 => a = x,                 // txa
                0x06 => return insn.k,         // ret #k
                0x16 => return a,              // ret a
                0x04 | 0x0c => a = a.wrapping_add(operand),
                0x14 | 0x1c => a = a.wrapping_sub(operand),
                0x24 | 0x2c => a = a.wrapping_mul(operand),
                0x34 | 0x3c => a = a.checked_div(operand).unwrap_or(0),
                0x44 | 0x4c => a |= operand,
                0x54 | 0x5c => a &= operand,
                0xa4 | 0xac => a ^= operand,
                0x64 | 0x6c => a = a.checked_shl(operand).unwrap_or(0),
                0x74 | 0x7c => a = a.checked_shr(operand).unwrap_or(0),
                0x84 => a = a.wrapping_neg(),
                0x05 => pc += insn.k as usize, // ja
                0x15 | 0x1d | 0x25 | 0x2d | 0x35 | 0x3d | 0x45 | 0x4d => {
                    let taken = match insn.code & 0xf0 {
                        0x10 => a == operand,
                        0x20 => a > operand,
                        0x30 => a >= operand,
                        _ => a & operand != 0,
                    };
                    pc += usize::from(if taken { insn.jt } else { insn.jf });
                }
                _ => return KILL,
            }
        }
        KILL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u16, jt: u8, jf: u8, k: u32) -> Filter {
        Filter { code, jt, jf, k }
    }

    #[test]
    fn a_filter_by_number_and_argument() {
        // Allow getpid, and prctl(16, …); errno for the rest; kill another architecture.
        let filter = [
            insn(0x20, 0, 0, 4),
            insn(0x15, 1, 0, AUDIT),
            insn(0x06, 0, 0, 0x8000_0000),
            insn(0x20, 0, 0, 0),
            insn(0x15, 3, 0, 39),
            insn(0x15, 0, 3, 157),
            insn(0x20, 0, 0, 16),
            insn(0x15, 0, 1, 16),
            insn(0x06, 0, 0, RET_ALLOW),
            insn(0x06, 0, 0, RET_ERRNO | 1),
        ];
        let run = |number, first| Data { number, args: [first, 0, 0, 0, 0, 0] }.run(&filter);
        assert_eq!(run(39, 0), RET_ALLOW);
        assert_eq!(run(157, 16), RET_ALLOW);
        assert_eq!(run(157, 15), RET_ERRNO | 1);
        assert_eq!(run(186, 0), RET_ERRNO | 1);
    }
}
