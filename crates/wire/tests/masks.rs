//! What masks say of signals of ours, for arm64 on any host.

use sidestep_wire::arch::a64::STAND_INS;
use sidestep_wire::masks::Masks;
use sidestep_wire::signals::{SIGBUS, SIGNALS, SIGSEGV, SIGTRAP, set_of};

const ALL: u64 = !(set_of(9) | set_of(19));
const USER: u64 = set_of(10);
const TRAP: u64 = set_of(SIGTRAP);
const FAULTS: u64 = set_of(SIGSEGV) | set_of(SIGBUS);

/// Sets that programs block.
fn sets() -> impl Iterator<Item = u64> {
    let few = [0, USER, (1 << 31) - 1, ALL, ALL & !USER];
    let ours = (0..1u32 << SIGNALS.len()).map(|some| {
        SIGNALS.iter().enumerate().filter(|(i, _)| some >> i & 1 != 0).fold(0, |set, (_, s)| set | set_of(*s))
    });
    let ours: Vec<u64> = ours.collect();
    few.into_iter().flat_map(move |set| ours.clone().into_iter().flat_map(move |some| [set | some, set & !some]))
}

#[test]
fn a_mask_says_what_the_program_blocks() {
    let stand_ins = STAND_INS.unwrap();
    for ours in [0, TRAP, FAULTS, TRAP | FAULTS, SIGNALS.iter().fold(0, |set, s| set | set_of(*s))] {
        let masks = Masks { ours, own: 0 };
        for set in sets() {
            let kept = stand_ins.kept(masks, set);
            assert_eq!(kept & ours, 0, "{ours:x} {set:x}");
            assert_eq!(stand_ins.told(masks, kept), set, "{ours:x} {set:x} {kept:x}");
            assert_eq!(stand_ins.uses(set), 0, "{set:x}");
            for more in sets() {
                let more_kept = stand_ins.kept(masks, more);
                assert_eq!(kept | more_kept, stand_ins.kept(masks, set | more));
                assert_eq!(kept & !more_kept, stand_ins.kept(masks, set & !more));
            }
        }
    }
}

/// The handler of qemu-user blocks all but these by the mask in its frame.
#[test]
fn a_mask_that_a_handler_has_made_is_told_as_it_is() {
    let (stand_ins, masks) = (STAND_INS.unwrap(), Masks { ours: FAULTS, own: 0 });
    assert_eq!(stand_ins.told(masks, ALL & !FAULTS), ALL & !FAULTS);
    assert_ne!(stand_ins.kept(masks, ALL), ALL & !FAULTS);
    assert_eq!(stand_ins.told(masks, stand_ins.kept(masks, ALL)), ALL);
}

/// A program that waits for a signal with `sigwait` has it blocked all the time.
#[test]
fn a_stand_in_that_the_program_uses_is_left_to_it() {
    let stand_ins = STAND_INS.unwrap();
    let used = stand_ins.of[0];
    assert_eq!(stand_ins.uses(used | USER), used);
    assert_eq!(stand_ins.uses(ALL & !used), used);
    let masks = Masks { ours: TRAP | FAULTS, own: used };
    for set in sets().flat_map(|set| [set | used, set & !used]) {
        let kept = stand_ins.kept(masks, set);
        assert_eq!(kept & used, set & used);
        assert_eq!(stand_ins.told(masks, kept), set & !TRAP, "SIGTRAP counts as open");
    }
}

#[test]
fn more_signals_become_ours_in_masks_that_say_it_of_some() {
    let stand_ins = STAND_INS.unwrap();
    let [some, more, both] = [TRAP, FAULTS, TRAP | FAULTS].map(|ours| Masks { ours, own: 0 });
    for set in sets() {
        assert_eq!(stand_ins.kept(more, stand_ins.kept(some, set)), stand_ins.kept(both, set));
    }
}
