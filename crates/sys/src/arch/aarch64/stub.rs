//! Code that threads of the target execute for us.

use sidestep_isa::Va;

use super::{SYSCALL, Word};
use crate::process::Process;

/// Instructions as they lie in memory.
const fn code<const BYTES: usize>(words: &[u32]) -> [u8; BYTES] {
    let (mut bytes, mut at) = ([0; BYTES], 0);
    while at < BYTES {
        bytes[at] = words[at / 4].to_le_bytes()[at % 4];
        at += 1;
    }
    bytes
}

const SVC: u32 = u32::from_le_bytes(SYSCALL);
const RET: u32 = 0xd65f_03c0;
/// `mov x8, #139`: the number of `rt_sigreturn`.
const MOV_SIGRETURN: u32 = 0xd280_1168;

/// The register in which [`BATCH_CODE`] has its list.
pub(super) const LIST: usize = 19;

/// Makes the system calls of a list of eight words each (number, arguments, result), up to a number
/// below 0, and returns. [`crate::Call`]s with the number [`crate::ADD`] are no system calls. Uses
/// no stack.
pub const BATCH_CODE: &[u8] = &code::<76>(&[
    0xf940_0268, // 0: ldr x8, [x19]
    0x37f8_0228, // tbnz w8, #31, 1f
    0xa940_8660, // ldp x0, x1, [x19, #8]
    0x12b0_0009, // mov w9, #ADD
    0x6b09_011f, // cmp w8, w9
    0x5400_00e0, // b.eq 3f
    0xa941_8e62, // ldp x2, x3, [x19, #24]
    0xa942_9664, // ldp x4, x5, [x19, #40]
    SVC,
    0xf900_1e60, // 2: str x0, [x19, #56]
    0x9101_0273, // add x19, x19, #64
    0x17ff_fff5, // b 0b
    0x485f_fc09, // 3: ldaxrh w9, [x0]
    0x0b01_0129, // add w9, w9, w1
    0x480a_fc09, // stlxrh w10, w9, [x0]
    0x35ff_ffaa, // cbnz w10, 3b
    0xd280_0000, // mov x0, #0
    0x17ff_fff8, // b 2b
    RET,         // 1:
]);

/// Room for [`entry_stub`].
pub(crate) const ENTRY_STUB_LEN: u64 = 4096;

/// Code that makes a system call (`getpid`) and jumps to `entry`, with all registers as they were
/// but `x16`, which belongs to what is between caller and callee.
pub(crate) fn entry_stub(entry: Va) -> Vec<u8> {
    let words = [
        0xa9bf_23e0, // stp x0, x8, [sp, #-16]!
        0xd280_1588, // mov x8, #172
        SVC,
        0xa8c1_23e0, // ldp x0, x8, [sp], #16
        0x5800_0050, // ldr x16, 8 bytes on
        0xd61f_0200, // br x16
    ];
    let mut code: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    code.extend_from_slice(&entry.0.to_le_bytes());
    code
}

/// Instructions of the target that a remote call uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `svc #0; ret`.
    pub syscall_ret: Va,
    /// `mov x8, #139; svc #0`: `rt_sigreturn`, which the vDSO has, as the return of signal
    /// handlers.
    pub sigreturn: Va,
}

const SYSCALL_RET: [u8; 8] = code(&[SVC, RET]);
const SIGRETURN: [u8; 8] = code(&[MOV_SIGRETURN, SVC]);

/// Both instructions of a remote call in a row (`Gadgets`), for targets that have none that stay.
pub const GADGET_CODE: [u8; 16] = code(&[SVC, RET, MOV_SIGRETURN, SVC]);

impl Gadgets {
    /// The gadgets if [`GADGET_CODE`] is at `at`.
    pub fn of_code_at(at: Va) -> Gadgets {
        Gadgets { syscall_ret: at, sigreturn: at.offset(SYSCALL_RET.len() as i64) }
    }

    /// Are the instructions still there?
    pub fn check(&self, process: &Process) -> bool {
        let is = |at: Va, code: [u8; 8]| process.read_pod(at).is_ok_and(|found: [u8; 8]| found == code);
        is(self.syscall_ret, SYSCALL_RET) && is(self.sigreturn, SIGRETURN)
    }

    /// Looks for the gadgets in some executable code that lies at `at`, filling in what is still
    /// missing.
    pub fn search(found: &mut (Option<Va>, Option<Va>), at: Va, code: &[u8]) {
        let place = |wanted: [u8; 8]| {
            let words = code.chunks_exact(4).zip(code.chunks_exact(4).skip(1));
            let index =
                words.into_iter().position(|(first, second)| first == &wanted[..4] && second == &wanted[4..])?;
            Some(at.offset(4 * index as i64))
        };
        found.0 = found.0.or_else(|| place(SYSCALL_RET));
        found.1 = found.1.or_else(|| place(SIGRETURN));
    }
}

const _: () = assert!(size_of::<Word>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gadgets_are_found_in_our_own_code() {
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0x1000), &GADGET_CODE);
        let gadgets = Gadgets::of_code_at(Va(0x1000));
        assert_eq!(found, (Some(gadgets.syscall_ret), Some(gadgets.sigreturn)));
    }
}
