//! Signal frames on stacks, as the kernel writes them.

use sidestep_isa::Va;

use super::super::SignalFrame;

/// The word behind the saved flags in `struct sigcontext`: cs = 0x33, gs = fs = 0, ss = 0x2b
/// (arch/x86/include/uapi/asm/sigcontext.h; arch/x86/include/asm/segment.h, `__USER_CS`,
/// `__USER_DS`).
const SELECTORS: u64 = 0x002b_0000_0000_0033;

/// Distance from the saved instruction pointer of a frame to the signal mask that it restores: the
/// rest of `struct sigcontext` (arch/x86/include/uapi/asm/ucontext.h).
const MASK_BEHIND_IP: u64 = 256 - 16 * 8;
/// Distance to the `siginfo_t` of the signal (`struct rt_sigframe`,
/// arch/x86/include/asm/sigframe.h).
const INFO_BEHIND_IP: u64 = MASK_BEHIND_IP + 8;

/// Words of `struct ucontext` before the saved instruction pointer: the alternate stack's address,
/// flags and size, as they were when the signal was delivered.
const ALT_BEHIND_IP: usize = 19;
const SS_DISABLE: u64 = 2;
/// Distance down to the return address of the handler, in front of `struct ucontext` and its two
/// first words.
const START_BELOW_IP: u64 = 8 * (ALT_BEHIND_IP as u64 + 2 + 1);
/// Distance from the saved instruction pointer down to the saved rcx: … rcx, sp, ip …
const CX_BELOW_IP: u64 = 16;
/// Words from the selectors up to the number of the exception.
const MARK_BEHIND_SELECTORS: usize = 2;
/// Words from the selectors up to the second copy of the mask (`oldmask`).
const MASK_BEHIND_SELECTORS: usize = 3;
/// Words from the selectors down to the saved rcx.
const CX_BEFORE_SELECTORS: usize = 4;

/// All signal frames that a thread with stack pointer `sp` will return through, in the bytes of its
/// stack from `start` (8-aligned, `sp` or a little below).
///
/// A frame on an alternate stack counts only for a thread that is on that very stack: what lies on
/// the stacks of others, or of signals that are long over, does not.
#[must_use]
pub fn signal_frames(stack: &[u8], start: Va, sp: Va, _frame_pointer: Va) -> Vec<SignalFrame> {
    let word = |i: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&stack[i * 8..i * 8 + 8]);
        u64::from_le_bytes(bytes)
    };
    let on_its_stack = |ip: usize| {
        let [base, flags, size] = [0, 1, 2].map(|i| word(ip - ALT_BEHIND_IP + i));
        let alternate = base..base.saturating_add(size);
        let frame = start.0 + ip as u64 * 8;
        flags & SS_DISABLE != 0 || !alternate.contains(&frame) || alternate.contains(&sp.0)
    };
    // … sp, ip, flags, selectors …
    (ALT_BEHIND_IP + 2..(stack.len() / 8).saturating_sub(MASK_BEHIND_SELECTORS))
        .filter(|i| word(*i) == SELECTORS && on_its_stack(i - 2))
        .map(|i| {
            let ip_at = start.0 + (i as u64 - 2) * 8;
            SignalFrame {
                start: Va(ip_at.saturating_sub(START_BELOW_IP)),
                ip_at: Va(ip_at),
                ip: Va(word(i - 2)),
                sp: Va(word(i - 3)),
                call_at: (word(i - CX_BEFORE_SELECTORS) == word(i - 2)).then_some(Va(ip_at - CX_BELOW_IP)),
                mask_at: Va(ip_at + MASK_BEHIND_IP),
                mask_copy: word(i + MASK_BEHIND_SELECTORS) as u32,
                info_at: Some(Va(ip_at + INFO_BEHIND_IP)),
                mark: word(i + MARK_BEHIND_SELECTORS) as u32,
                frame_pointer: Va(0),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stack with a frame whose saved ip is its 20th word, delivered on the given alternate
    /// stack.
    fn stack(alternate: [u64; 3]) -> Vec<u8> {
        let mut words = [1u64; 25];
        words[..3].copy_from_slice(&alternate);
        words[18..22].copy_from_slice(&[0x7000, 0x4000, 0x246, SELECTORS]);
        words[24] = 0xabcd;
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn a_frame_is_found_by_its_selectors() {
        let bytes = stack([0, SS_DISABLE, 0]);
        let found = signal_frames(&bytes, Va(0x6000), Va(0x6000), Va(0));
        let [frame] = found[..] else { panic!("{found:?}") };
        assert_eq!((frame.ip_at, frame.ip, frame.sp), (Va(0x6000 + 19 * 8), Va(0x4000), Va(0x7000)));
        assert_eq!(frame.mask_copy, 0xabcd);
        assert_eq!(signal_frames(&bytes[..24 * 8], Va(0x6000), Va(0x6000), Va(0)), []);
    }

    #[test]
    fn a_stale_frame_on_an_alternate_stack_is_none_of_a_thread_elsewhere() {
        let bytes = stack([0x6000, 0, 0x1000]);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x6000), Va(0)).len(), 1);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x5f00), Va(0)), []);
    }
}
