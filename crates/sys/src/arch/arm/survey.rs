//! Signal frames on stacks, as the kernel writes them: those with a `siginfo_t`, and those of
//! handlers without one.

use sidestep_isa::Va;

use super::super::SignalFrame;

/// The head of the record of VFP, as one word: magic number and length (`struct vfp_sigframe` in
/// arch/arm/include/asm/ucontext.h).
const VFP: u64 = 288 << 32 | 0x5646_5001;
/// What kernels with iWMMXt write in front of it, with registers or without (there).
const IWMMXT: [u64; 2] = [160 << 32 | 0x12ef_842a, 160 << 32 | 0xb0d9_ed01];
const IWMMXT_LEN: u64 = 160;
/// From the start of `struct ucontext` to parts of it, in bytes: the alternate stack's address,
/// flags and size, as they were when the signal was delivered; the number of an exception; the
/// first 32 signals of the mask; registers; the mask; the records.
const ALTERNATE: u64 = 8;
const TRAP_NUMBER: u64 = 20;
const OLD_MASK: u64 = 20 + 8;
const SP: u64 = 32 + 4 * 13;
const IP: u64 = 32 + 4 * 15;
const CPSR: u64 = 32 + 4 * 16;
const MASK: u64 = 104;
const RECORDS: u64 = 232;
/// `uc_flags` of a frame with a `siginfo_t`, which lies below, and of one without
/// (arch/arm/kernel/signal.c: `setup_rt_frame`, `setup_frame`).
const WITH_INFO: u32 = 0;
const WITHOUT_INFO: u32 = 0x5ac3_c35a;
const INFO_LEN: u64 = 128;
const SS_DISABLE: u32 = 2;
/// The mode of programs, and where the mode is (arch/arm/include/uapi/asm/ptrace.h).
const MODE: u32 = 0x1f;
const USER: u32 = 0x10;

/// All signal frames that a thread with stack pointer `sp` will return through, in the bytes of its
/// stack from `start` (8-aligned, `sp` or a little below).
///
/// A frame on an alternate stack counts only for a thread that is on that very stack: what lies on
/// the stacks of others, or of signals that are long over, does not. Of the kind without a
/// `siginfo_t`, it counts everywhere.
#[must_use]
pub fn signal_frames(stack: &[u8], start: Va, sp: Va, _frame_pointer: Va) -> Vec<SignalFrame> {
    let word = |at: u64| {
        let at = usize::try_from(at.checked_sub(start.0)?).ok()?;
        Some(u32::from_le_bytes(stack.get(at..at + 4)?.try_into().ok()?))
    };
    let pair = |at: u64| Some(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let frame = |record: u64| {
        let is_behind = record.checked_sub(IWMMXT_LEN).and_then(pair).is_some_and(|head| IWMMXT.contains(&head));
        let records = if is_behind { record - IWMMXT_LEN } else { record };
        let context = records.checked_sub(RECORDS)?;
        if word(context + CPSR)? & MODE != USER {
            return None;
        }
        let info_at = match word(context)? {
            WITH_INFO => {
                let [base, flags, size] = [0, 4, 8].map(|more| word(context + ALTERNATE + more).unwrap_or(0));
                let alternate = base.into()..u64::from(base) + u64::from(size);
                if flags & SS_DISABLE == 0 && alternate.contains(&context) && !alternate.contains(&sp.0) {
                    return None;
                }
                Some(Va(context.checked_sub(INFO_LEN)?))
            }
            WITHOUT_INFO => None,
            _ => return None,
        };
        Some(SignalFrame {
            start: Va(context.saturating_sub(INFO_LEN)),
            ip_at: Va(context + IP),
            ip: Va(word(context + IP)?.into()),
            sp: Va(word(context + SP)?.into()),
            call_at: None,
            mask_at: Va(context + MASK),
            mask_copy: word(context + OLD_MASK)?,
            frame_pointer: Va(0),
            info_at,
            mark: word(context + TRAP_NUMBER)?,
        })
    };
    let heads = stack.chunks_exact(8).enumerate();
    let found = heads.filter(|(_, head)| **head == VFP.to_le_bytes());
    found.filter_map(|(index, _)| frame(start.0 + 8 * index as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where `struct ucontext` is.
    const CONTEXT: u64 = 0x6000 + INFO_LEN;

    /// A stack with a frame at its start, delivered on the given alternate stack.
    fn stack(flags: u32, alternate: [u32; 3], has_iwmmxt: bool) -> Vec<u8> {
        let mut bytes = vec![1; 1024];
        let mut put = |at: u64, word: u32| {
            let at = (INFO_LEN + at) as usize;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        };
        let words = [(0, flags), (OLD_MASK, 0xabcd), (SP, 0x7000), (IP, 0x4002), (CPSR, 0x6000_0030), (MASK, 0xabcd)];
        words.into_iter().for_each(|(at, word)| put(at, word));
        (0..).zip(alternate).for_each(|(index, word)| put(ALTERNATE + 4 * index, word));
        let record = if has_iwmmxt { RECORDS + IWMMXT_LEN } else { RECORDS };
        for (at, head) in [(RECORDS, IWMMXT[1]), (record, VFP)] {
            put(at, head as u32);
            put(at + 4, (head >> 32) as u32);
        }
        bytes
    }

    #[test]
    fn a_frame_is_found_by_its_record_of_vfp() {
        for has_iwmmxt in [false, true] {
            let bytes = stack(WITH_INFO, [0, SS_DISABLE, 0], has_iwmmxt);
            let found = signal_frames(&bytes, Va(0x6000), Va(0x6000), Va(0));
            let [frame] = found[..] else { panic!("{found:?}") };
            assert_eq!((frame.ip_at, frame.ip, frame.sp), (Va(CONTEXT + IP), Va(0x4002), Va(0x7000)));
            assert_eq!((frame.mask_at, frame.mask_copy), (Va(CONTEXT + MASK), 0xabcd));
            assert_eq!(frame.info_at, Some(Va(0x6000)));
            // Cut off above and below.
            assert_eq!(signal_frames(&bytes[..520], Va(0x6000), Va(0x6000), Va(0)).len(), usize::from(!has_iwmmxt));
            assert_eq!(signal_frames(&bytes[136..], Va(0x6088), Va(0x6088), Va(0)), []);
        }
    }

    #[test]
    fn a_frame_without_information_says_so() {
        let bytes = stack(WITHOUT_INFO, [0x6000, 0, 0x1000], false);
        let found = signal_frames(&bytes, Va(0x6000), Va(0x5f00), Va(0));
        assert_eq!(found.iter().map(|frame| (frame.ip, frame.info_at)).collect::<Vec<_>>(), [(Va(0x4002), None)]);
        assert_eq!(signal_frames(&stack(7, [0; 3], false), Va(0x6000), Va(0x6000), Va(0)), []);
    }

    #[test]
    fn a_stale_frame_on_an_alternate_stack_is_none_of_a_thread_elsewhere() {
        let bytes = stack(WITH_INFO, [0x6000, 0, 0x1000], false);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x6000), Va(0)).len(), 1);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x5f00), Va(0)), []);
    }
}
