//! Signal frames on stacks, as the kernel writes them: those with a `siginfo_t`, and those of
//! handlers without one.

use sidestep_isa::Va;

use super::super::SignalFrame;

// Words of `struct sigcontext_32`, from the saved instruction pointer
// (arch/x86/include/uapi/asm/sigcontext.h).
const ES: isize = -12;
const DS: isize = -11;
const SP: isize = -7;
const CS: isize = 1;
const SP_AT_SIGNAL: isize = 3;
const SS: isize = 4;
/// The first 32 signals of the mask; of the old kind the only copy.
const OLD_MASK: isize = 6;
/// Old kind: the number of the signal.
const SIGNAL: isize = -15;
// Of a frame with a `siginfo_t` (`struct rt_sigframe_ia32`, arch/x86/include/asm/sigframe.h).
const UCONTEXT: isize = -19;
/// The address of the ucontext, for the handler.
const UCONTEXT_AT: isize = UCONTEXT - 33;
const INFO: isize = UCONTEXT - 32;
const MASK: isize = 8;
/// The alternate stack's address, flags and size, as they were when the signal was delivered.
const ALTERNATE: isize = UCONTEXT + 2;

/// `__USER32_CS`, `__USER_DS` (arch/x86/include/asm/segment.h).
const USER_CS: u32 = 0x23;
const USER_DS: u32 = 0x2b;
const SS_DISABLE: u32 = 2;

/// All signal frames that a thread with stack pointer `sp` will return through, in the bytes of its
/// stack from `start` (8-aligned, `sp` or a little below).
///
/// A frame on an alternate stack counts only for a thread that is on that very stack: what lies on
/// the stacks of others, or of signals that are long over, does not. Of the kind without a
/// `siginfo_t`, it counts everywhere.
#[must_use]
pub fn signal_frames(stack: &[u8], start: Va, sp: Va) -> Vec<SignalFrame> {
    let words: Vec<u32> = stack.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let at = |index: usize| Va(start.0 + 4 * index as u64);
    let frame = |ip: usize| {
        let word = |offset: isize| words.get(ip.checked_add_signed(offset)?).copied();
        let segments = [word(ES)?, word(DS)?, word(CS)?, word(SS)?].map(|selector| selector & 0xffff);
        if segments != [USER_DS, USER_DS, USER_CS, USER_DS] || word(SP)? != word(SP_AT_SIGNAL)? {
            return None;
        }
        let behind = |offset: isize| at(ip).offset(4 * offset as i64);
        let (mask_at, info_at) = if word(UCONTEXT_AT).map(u64::from) == Some(behind(UCONTEXT).0) {
            let [base, flags, size] = [word(ALTERNATE)?, word(ALTERNATE + 1)?, word(ALTERNATE + 2)?];
            let alternate = base.into()..u64::from(base) + u64::from(size);
            if flags & SS_DISABLE == 0 && alternate.contains(&at(ip).0) && !alternate.contains(&sp.0) {
                return None;
            }
            (behind(MASK), Some(behind(INFO)))
        } else {
            (behind(OLD_MASK), None)
        };
        if info_at.is_none() && !(1..=64).contains(&word(SIGNAL)?) {
            return None;
        }
        let (mask_copy, sp) = (word(OLD_MASK)?, Va(word(SP)?.into()));
        Some(SignalFrame { ip_at: at(ip), ip: Va(words[ip].into()), sp, call_at: None, mask_at, mask_copy, info_at })
    };
    (0..words.len()).filter_map(frame).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x6000;
    const IP: usize = 55;

    /// A stack with a frame whose saved ip is its word [`IP`], delivered on the given alternate
    /// stack.
    fn stack(alternate: [u32; 3]) -> Vec<u8> {
        let mut words = [1u32; 80];
        let mut set = |offset: isize, value: u32| words[IP.checked_add_signed(offset).unwrap()] = value;
        set(0, 0x4000);
        set(SP, 0x7000);
        set(SP_AT_SIGNAL, 0x7000);
        for (offset, selector) in [(ES, USER_DS), (DS, USER_DS), (CS, USER_CS), (SS, USER_DS)] {
            set(offset, selector);
        }
        set(UCONTEXT_AT, START as u32 + 4 * (IP as u32 - 19));
        for (i, word) in alternate.into_iter().enumerate() {
            set(ALTERNATE + i as isize, word);
        }
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn a_frame_is_found_by_its_selectors() {
        let mut bytes = stack([0, SS_DISABLE, 0]);
        let found = signal_frames(&bytes, Va(START), Va(START));
        let [frame] = found[..] else { panic!("{found:?}") };
        let at = |word: usize| Va(START + 4 * word as u64);
        assert_eq!((frame.ip_at, frame.ip, frame.sp), (at(IP), Va(0x4000), Va(0x7000)));
        assert_eq!((frame.mask_at, frame.info_at), (at(IP + 8), Some(at(IP - 51))));
        assert_eq!(found[0].mask_copy, 1);
        // Of a handler that gets no information, but the number of the signal.
        bytes[4 * (IP - 52)] = 0;
        bytes[4 * (IP - 15)] = 11;
        let found = signal_frames(&bytes, Va(START), Va(START));
        assert_eq!((found[0].mask_at, found[0].info_at), (at(IP + 6), None));
        assert_eq!(signal_frames(&bytes[..4 * (IP + 4)], Va(START), Va(START)), []);
        bytes[4 * (IP - 15)] = 0;
        assert_eq!(signal_frames(&bytes, Va(START), Va(START)), []);
    }

    #[test]
    fn a_stale_frame_on_an_alternate_stack_is_none_of_a_thread_elsewhere() {
        let bytes = stack([START as u32, 0, 0x1000]);
        assert_eq!(signal_frames(&bytes, Va(START), Va(START)).len(), 1);
        assert_eq!(signal_frames(&bytes, Va(START), Va(0x5f00)), []);
    }
}
