//! Code that threads of the target execute for us: ours is A32, the target's may be T32 as well.
//!
//! An address of code with bit 0 set means T32 here, as `bx` takes it (DDI 0406C, A2.3.1).

use sidestep_isa::Va;

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

/// The same of T32.
const fn halves<const BYTES: usize>(halves: &[u16]) -> [u8; BYTES] {
    let (mut bytes, mut at) = ([0; BYTES], 0);
    while at < BYTES {
        bytes[at] = halves[at / 2].to_le_bytes()[at % 2];
        at += 1;
    }
    bytes
}

/// `svc #0` and `bx lr` of A32.
const SVC: u32 = 0xef00_0000;
const BX_LR: u32 = 0xe12f_ff1e;
/// `mov r7, #173`: the number of `rt_sigreturn`.
const MOV_SIGRETURN: u32 = 0xe3a0_70ad;
/// `svc #0` and `bx lr` of T32.
const SVC_T32: u16 = 0xdf00;
const BX_LR_T32: u16 = 0x4770;

/// The register in which [`BATCH_CODE`] has its list.
pub(super) const LIST: usize = 8;

/// Makes the system calls of a list of eight words each (number, arguments, result), up to a number
/// below 0, and returns. [`crate::Call`]s with the number [`crate::ADD`] are no system calls. Uses
/// no stack.
pub const BATCH_CODE: &[u8] = &code::<84>(&[
    0xe598_7000, // 0: ldr r7, [r8]
    0xe357_0000, // cmp r7, #0
    0xba00_0010, // blt 1f
    0xe3e0_9102, // mvn r9, #0x80000000: ADD
    0xe157_0009, // cmp r7, r9
    0xe998_003f, // ldmib r8, {r0-r5}
    0x0a00_0003, // beq 3f
    SVC,
    0xe588_001c, // 2: str r0, [r8, #28]
    0xe288_8020, // add r8, r8, #32
    0xeaff_fff4, // b 0b
    0xf57f_f05b, // 3: dmb ish
    0xe1f0_9f9f, // 4: ldrexh r9, [r0]
    0xe089_9001, // add r9, r9, r1
    0xe1e0_af99, // strexh r10, r9, [r0]
    0xe35a_0000, // cmp r10, #0
    0x1aff_fffa, // bne 4b
    0xf57f_f05b, // dmb ish
    0xe3a0_0000, // mov r0, #0
    0xeaff_fff3, // b 2b
    BX_LR,       // 1:
]);

/// Room for [`entry_stub`].
pub(crate) const ENTRY_STUB_LEN: u64 = 4096;

/// Code that makes a system call (`getpid`) and jumps to `entry`, with all registers as they were.
/// The address says by bit 0 which instruction set is there, which a load to `pc` goes by
/// (DDI 0406C, A8.8.63).
pub(crate) fn entry_stub(entry: Va) -> Vec<u8> {
    let words = [
        0xe92d_0081, // push {r0, r7}
        0xe3a0_7014, // mov r7, #20
        SVC,
        0xe8bd_0081, // pop {r0, r7}
        0xe51f_f004, // ldr pc, [pc, #-4]: the next word
        entry.0 as u32,
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Instructions of the target that a remote call uses. Bit 0 of an address says T32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gadgets {
    /// `svc #0; bx lr`.
    pub syscall_ret: Va,
    /// `mov r7, #173; svc #0`: `rt_sigreturn`, which C libraries have, as the return of signal
    /// handlers, and the kernel's page for handlers without a restorer
    /// (arch/arm/kernel/sigreturn_codes.S).
    pub sigreturn: Va,
}

const SYSCALL_RET: [u8; 8] = code(&[SVC, BX_LR]);
const SYSCALL_RET_T32: [u8; 4] = halves(&[SVC_T32, BX_LR_T32]);
const SIGRETURN: [u8; 8] = code(&[MOV_SIGRETURN, SVC]);
/// What the kernel's page has: the number of the old ABI is not looked at.
const SIGRETURN_OLD: [u8; 8] = code(&[MOV_SIGRETURN, SVC | 0x90_0000 | 173]);
/// `mov.w r7, #173; svc #0`
const SIGRETURN_T32: [u8; 6] = halves(&[0xf04f, 0x07ad, SVC_T32]);
/// `movs r7, #173; svc #0`
const SIGRETURN_SHORT: [u8; 4] = halves(&[0x27ad, SVC_T32]);

/// Code, and whether it is T32.
type Pattern = (&'static [u8], bool);
const SYSCALL_RETS: [Pattern; 2] = [(&SYSCALL_RET, false), (&SYSCALL_RET_T32, true)];
const SIGRETURNS: [Pattern; 4] =
    [(&SIGRETURN, false), (&SIGRETURN_OLD, false), (&SIGRETURN_T32, true), (&SIGRETURN_SHORT, true)];

/// Both instructions of a remote call in a row (`Gadgets`), for targets that have none that stay.
pub const GADGET_CODE: [u8; 16] = code(&[SVC, BX_LR, MOV_SIGRETURN, SVC]);

impl Gadgets {
    /// The gadgets if [`GADGET_CODE`] is at `at`.
    pub fn of_code_at(at: Va) -> Gadgets {
        Gadgets { syscall_ret: at, sigreturn: at.offset(SYSCALL_RET.len() as i64) }
    }

    /// Are the instructions still there?
    pub fn check(&self, process: &Process) -> bool {
        let is = |at: Va, patterns: &[Pattern]| {
            patterns.iter().filter(|(_, thumb)| *thumb == super::is_t32(at)).any(|(code, _)| {
                let mut found = vec![0; code.len()];
                process.read(super::first_byte(at), &mut found).is_ok() && found == *code
            })
        };
        is(self.syscall_ret, &SYSCALL_RETS) && is(self.sigreturn, &SIGRETURNS)
    }

    /// Looks for the gadgets in some executable code that lies at `at`, filling in what is still
    /// missing.
    pub fn search(found: &mut (Option<Va>, Option<Va>), at: Va, code: &[u8]) {
        let place = |patterns: &[Pattern]| {
            patterns.iter().find_map(|(wanted, thumb)| {
                let step = if *thumb { 2 } else { 4 };
                let index = code.windows(wanted.len()).step_by(step).position(|window| window == *wanted)?;
                Some(at.offset((step * index) as i64 + i64::from(*thumb)))
            })
        };
        found.0 = found.0.or_else(|| place(&SYSCALL_RETS));
        found.1 = found.1.or_else(|| place(&SIGRETURNS));
    }
}

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

    #[test]
    fn gadgets_of_t32_have_bit_0() {
        let mut found = (None, None);
        let code = [&[0, 0xbf][..], &SYSCALL_RET_T32, &SIGRETURN_T32].concat();
        Gadgets::search(&mut found, Va(0x1000), &code);
        assert_eq!(found, (Some(Va(0x1003)), Some(Va(0x1007))));
        // The words of A32 are none of T32, and are aligned.
        let mut found = (None, None);
        Gadgets::search(&mut found, Va(0x1000), &[&[0, 0xbf][..], &SYSCALL_RET, &SIGRETURN].concat());
        assert_eq!(found, (None, None));
    }

    #[test]
    fn the_stub_ends_with_the_entry_point() {
        let code = entry_stub(Va(0x1_0401));
        assert_eq!((code.len(), &code[20..]), (24, &[1, 4, 1, 0][..]));
    }
}
