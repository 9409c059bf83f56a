//! Signal frames on stacks, as the kernel writes them.

use sidestep_isa::Va;

use super::super::SignalFrame;

/// The head of the first record behind the registers of a frame, as one word: the magic number of
/// `struct fpsimd_context` and its length (arch/arm64/include/uapi/asm/sigcontext.h). The kernel
/// writes that record first (`setup_sigframe_layout` in arch/arm64/kernel/signal.c).
const FPSIMD: u64 = 528 << 32 | 0x4650_8001;
/// Distance from the saved instruction pointer up to that record: pstate, then aligned to 16.
const FPSIMD_BEHIND_IP: u64 = 24;
/// Distances from the saved instruction pointer of a frame down to parts of it: 31 registers and
/// the stack pointer, the address of a fault and a word of padding, then `struct ucontext` before
/// its `uc_mcontext` and the `siginfo_t` (`struct rt_sigframe`).
const CONTEXT_BELOW_IP: u64 = 264 + 176;
const INFO_BELOW_IP: u64 = CONTEXT_BELOW_IP + 128;
/// From the start of `struct ucontext`: the link, which the kernel leaves empty; the alternate
/// stack's address, flags and size, as they were when the signal was delivered; and the signal
/// mask.
const LINK: u64 = 8;
const ALTERNATE: u64 = 16;
const MASK: u64 = 40;
const SS_DISABLE: u64 = 2;
/// Bytes of `struct rt_sigframe`, behind which the kernel puts a record of x29 and x30; there may
/// be more in between, for registers of extensions.
const FRAME: u64 = 4688;
const MOST_MORE: u64 = 64 << 10;

/// All signal frames that a thread with stack pointer `sp` will return through, in the bytes of its
/// stack from `start` (8-aligned, `sp` or a little below).
///
/// A frame on an alternate stack counts only for a thread that is on that very stack: what lies on
/// the stacks of others, or of signals that are long over, does not.
///
/// The mask is written once. Whether the handler still runs is seen from the address of the record
/// behind the frame: the kernel passes it in x29, which functions keep or save.
#[must_use]
pub fn signal_frames(stack: &[u8], start: Va, sp: Va, frame_pointer: Va) -> Vec<SignalFrame> {
    let number = |word: &[u8]| word.try_into().map_or(0, u64::from_le_bytes);
    let word = |at: u64| stack.chunks_exact(8).nth((at.wrapping_sub(start.0) / 8) as usize).map(number);
    let frame = |at: u64| {
        let ip_at = at.checked_sub(FPSIMD_BEHIND_IP)?;
        let info_at = ip_at.checked_sub(INFO_BELOW_IP).filter(|info| *info >= start.0 && info % 16 == 0)?;
        let context = ip_at - CONTEXT_BELOW_IP;
        let [base, flags, size] = [0, 8, 16].map(|more| word(context + ALTERNATE + more).unwrap_or(0));
        let alternate = base..base.saturating_add(size);
        let is_on_it = flags & SS_DISABLE != 0 || !alternate.contains(&ip_at) || alternate.contains(&sp.0);
        let saved = [ip_at - 24, ip_at - 16].map(word);
        let is_record = |at: u64| {
            let behind = at.wrapping_sub(info_at + FRAME);
            behind <= MOST_MORE && at % 16 == 0 && [at, at + 8].map(word) == saved
        };
        let below = stack.chunks_exact(8).take(((info_at - start.0) / 8) as usize).map(number);
        let runs = below.chain([frame_pointer.0]).any(is_record);
        let mask = word(context + MASK)? as u32;
        Some(SignalFrame {
            start: Va(info_at),
            ip_at: Va(ip_at),
            ip: Va(word(ip_at)?),
            sp: Va(word(ip_at - 8)?),
            call_at: None,
            mask_at: Va(context + MASK),
            mask_copy: if runs { mask } else { !mask },
            frame_pointer: Va(saved[0]?),
            info_at: Some(Va(info_at)),
            mark: word(context + LINK)? as u32,
        })
        .filter(|_| is_on_it)
    };
    let found = stack.chunks_exact(8).enumerate().filter(|(_, word)| number(word) == FPSIMD);
    found.filter_map(|(index, _)| frame(start.0 + 8 * index as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of the first word behind the frame.
    const RECORD: usize = FRAME as usize / 8;
    /// Where it is.
    const AT: Va = Va(0x6000 + FRAME);

    /// A stack with a frame at its start, delivered on the given alternate stack.
    fn stack(alternate: [u64; 3]) -> Vec<u8> {
        let mut words = [1u64; RECORD + 2];
        words[18..21].copy_from_slice(&alternate);
        words[21] = 0xabcd;
        words[68..72].copy_from_slice(&[0x8000, 0x5000, 0x7000, 0x4000]);
        words[74] = FPSIMD;
        words[RECORD..].copy_from_slice(&[0x8000, 0x5000]);
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    #[test]
    fn a_frame_is_found_by_its_first_record() {
        let bytes = stack([0, SS_DISABLE, 0]);
        let found = signal_frames(&bytes, Va(0x6000), Va(0x6000), AT);
        let [frame] = found[..] else { panic!("{found:?}") };
        assert_eq!((frame.ip_at, frame.ip, frame.sp), (Va(0x6000 + 71 * 8), Va(0x4000), Va(0x7000)));
        assert_eq!((frame.mask_copy, frame.info_at), (0xabcd, Some(Va(0x6000))));
        assert_eq!(signal_frames(&bytes[8..], Va(0x6008), Va(0x6008), AT), []);
    }

    /// The mask was changed where a return address was by then.
    #[test]
    fn a_frame_to_which_nothing_points_is_over() {
        let bytes = stack([0, SS_DISABLE, 0]);
        let found = signal_frames(&bytes, Va(0x6000), Va(0x6000), Va(0x9000));
        assert_eq!(found[0].mask_copy, !0xabcd);
        let mut deeper = AT.0.to_le_bytes().to_vec();
        deeper.extend([0; 8]);
        deeper.extend(&bytes);
        let found = signal_frames(&deeper, Va(0x5ff0), Va(0x5ff0), Va(0x9000));
        assert_eq!(found[0].mask_copy, 0xabcd);
    }

    #[test]
    fn a_stale_frame_on_an_alternate_stack_is_none_of_a_thread_elsewhere() {
        let bytes = stack([0x6000, 0, 0x1000]);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x6000), AT).len(), 1);
        assert_eq!(signal_frames(&bytes, Va(0x6000), Va(0x5f00), AT), []);
    }
}
