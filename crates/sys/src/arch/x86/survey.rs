//! Signal frames on stacks, as the kernel writes them: those with a `siginfo_t`, and those of
//! handlers without one.

use sidestep_isa::Va;

use super::super::SignalFrame;

// Words of `struct sigcontext_32`, from the saved instruction pointer
// (arch/x86/include/uapi/asm/sigcontext.h).
const ES: isize = -12;
const DS: isize = -11;
const FRAME_POINTER: isize = -8;
const SP: isize = -7;
const TRAP_NUMBER: isize = -2;
const CS: isize = 1;
const SP_AT_SIGNAL: isize = 3;
const SS: isize = 4;
/// The first 32 signals of the mask; of the old kind the only copy.
const OLD_MASK: isize = 6;
// Of a frame with a `siginfo_t` (`struct rt_sigframe_ia32`, arch/x86/include/asm/sigframe.h).
const UCONTEXT: isize = -19;
/// The address of the ucontext, for the handler.
const UCONTEXT_AT: isize = UCONTEXT - 33;
const INFO: isize = UCONTEXT - 32;
/// The return address of the handler, below its three arguments. A frame of the old kind begins
/// above.
const RESTORER: isize = UCONTEXT_AT - 3;
const MASK: isize = 8;
/// The link of the ucontext, which the kernel leaves empty; then the alternate stack's address,
/// flags and size, as they were when the signal was delivered.
const LINK: isize = UCONTEXT + 1;
const ALTERNATE: isize = UCONTEXT + 2;
/// All flags of a ucontext (arch/x86/include/uapi/asm/ucontext.h).
const UC_FLAGS: u32 = 7;

/// `__USER32_CS`, `__USER_DS` (arch/x86/include/asm/segment.h).
const USER_CS: u32 = 0x23;
const USER_DS: u32 = 0x2b;
const SS_ONSTACK: u32 = 1;
const SS_DISABLE: u32 = 2;
const SS_AUTODISARM: u32 = 1 << 31;

/// All signal frames that a thread with stack pointer `sp` will return through, in the bytes of its
/// stack from `start` (8-aligned, `sp` or a little below).
///
/// A frame on an alternate stack counts only for a thread that is on that very stack: what lies on
/// the stacks of others, or of signals that are long over, does not. Of the kind without a
/// `siginfo_t`, it counts everywhere.
///
/// The words in front of the saved registers say which kind it is, but they are no condition: they
/// are the arguments of the handler, which may use their place for something else; and behind the
/// handler, at the call that ends it, they are below the stack pointer.
#[must_use]
pub fn signal_frames(stack: &[u8], start: Va, sp: Va, _frame_pointer: Va) -> Vec<SignalFrame> {
    let words: Vec<u32> = stack.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
    let at = |index: usize| Va(start.0 + 4 * index as u64);
    let frame = |ip: usize| {
        let word = |offset: isize| words.get(ip.checked_add_signed(offset)?).copied();
        let segments = [word(ES)?, word(DS)?, word(CS)?, word(SS)?].map(|selector| selector & 0xffff);
        if segments != [USER_DS, USER_DS, USER_CS, USER_DS] || word(SP)? != word(SP_AT_SIGNAL)? {
            return None;
        }
        let behind = |offset: isize| at(ip).offset(4 * offset as i64);
        let has_context = || {
            let flags = word(ALTERNATE + 1)?;
            let is_signal = word(INFO).is_some_and(|signal| (1..=64).contains(&signal));
            let is_empty = word(LINK)? == 0 && word(UCONTEXT)? & !UC_FLAGS == 0;
            Some(is_signal && is_empty && flags & !(SS_ONSTACK | SS_DISABLE | SS_AUTODISARM) == 0)
        };
        let is_named = word(UCONTEXT_AT).map(u64::from) == Some(behind(UCONTEXT).0);
        let (mask_at, info_at) = if is_named || has_context() == Some(true) {
            let [base, flags, size] = [word(ALTERNATE)?, word(ALTERNATE + 1)?, word(ALTERNATE + 2)?];
            let alternate = base.into()..u64::from(base) + u64::from(size);
            if flags & SS_DISABLE == 0 && alternate.contains(&at(ip).0) && !alternate.contains(&sp.0) {
                return None;
            }
            (behind(MASK), Some(behind(INFO)))
        } else {
            (behind(OLD_MASK), None)
        };
        let (mask_copy, sp) = (word(OLD_MASK)?, Va(word(SP)?.into()));
        Some(SignalFrame {
            start: behind(RESTORER),
            ip_at: at(ip),
            ip: Va(words[ip].into()),
            sp,
            call_at: None,
            mask_at,
            mask_copy,
            info_at,
            mark: word(TRAP_NUMBER)?,
            frame_pointer: Va(word(FRAME_POINTER)?.into()),
        })
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
        let bytes = stack([0, SS_DISABLE, 0]);
        let found = signal_frames(&bytes, Va(START), Va(START), Va(0));
        let [frame] = found[..] else { panic!("{found:?}") };
        let at = |word: usize| Va(START + 4 * word as u64);
        assert_eq!((frame.ip_at, frame.ip, frame.sp), (at(IP), Va(0x4000), Va(0x7000)));
        assert_eq!((frame.mask_at, frame.info_at), (at(IP + 8), Some(at(IP - 51))));
        assert_eq!(found[0].mask_copy, 1);
    }

    #[test]
    fn a_frame_was_missed_where_the_handler_had_used_its_arguments_for_something_else() {
        let at = |word: usize| Va(START + 4 * word as u64);
        let places = |bytes: &[u8]| {
            signal_frames(bytes, Va(START), Va(START), Va(0)).iter().map(|f| (f.mask_at, f.info_at)).collect::<Vec<_>>()
        };
        let mut bytes = stack([0, SS_DISABLE, 0]);
        let mut set = |word: usize, value: u32| bytes[4 * word..4 * word + 4].copy_from_slice(&value.to_le_bytes());
        // The argument is gone; the context itself is there.
        set(IP - 52, 0);
        set(IP - 51, 11);
        set(IP - 19, 1);
        set(IP - 18, 0);
        assert_eq!(places(&bytes), [(at(IP + 8), Some(at(IP - 51)))]);
        // Of a handler without information: the return address and the number are in front of the
        // registers.
        let mut set = |word: usize, value: u32| bytes[4 * word..4 * word + 4].copy_from_slice(&value.to_le_bytes());
        set(IP - 16, 0xf7fa_8610);
        set(IP - 15, 11);
        assert_eq!(places(&bytes), [(at(IP + 6), None)]);
        // Behind the handler, a detour had these words.
        bytes[4 * (IP - 15)] = 66;
        assert_eq!(places(&bytes), [(at(IP + 6), None)]);
        // So had the stack pointer left them.
        assert_eq!(signal_frames(&bytes[4 * (IP - 14)..], at(IP - 14), at(IP - 14), Va(0)).len(), 1);
        assert_eq!(signal_frames(&bytes[..4 * (IP + 4)], Va(START), Va(START), Va(0)), []);
    }

    #[test]
    fn a_stale_frame_on_an_alternate_stack_is_none_of_a_thread_elsewhere() {
        let bytes = stack([START as u32, 0, 0x1000]);
        assert_eq!(signal_frames(&bytes, Va(START), Va(START), Va(0)).len(), 1);
        assert_eq!(signal_frames(&bytes, Va(START), Va(0x5f00), Va(0)), []);
    }
}
