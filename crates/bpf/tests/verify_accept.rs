//! Programs that are safe: each shows something that a verifier must understand to see it.

mod cases;

use cases::accepted::{ACCEPTED, OWN};
use cases::{lines, maps, rules};
use sidestep_bpf::assemble;
use sidestep_bpf::verify::verify;

#[test]
fn safe_programs_are_accepted() {
    let maps = maps();
    for (name, text) in ACCEPTED.iter().chain(OWN) {
        let program = assemble(&lines(text)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", lines(text)));
        if let Err(e) = verify(&program, &rules(&maps)) {
            panic!("{name}: {e}");
        }
    }
}

#[test]
fn branches_that_meet_are_not_walked_twice() {
    let maps = maps();
    let steps = |text: &str| verify(&assemble(&lines(text)).unwrap(), &rules(&maps)).unwrap().steps;
    // 2^30 paths; each meeting place is passed a few times. What is counted in r0 decides nothing.
    assert!(steps("r2 = *(u64 *)(r1 + 0); r0 = 0; BRANCHES exit") < 2000);
}

/// A comparison whose result is kept on the stack until all were made, as scripts have them: each
/// way of the 2^24 decides the branches behind.
#[test]
fn results_of_comparisons_that_are_kept_are_not_too_many() {
    let slots: Vec<usize> = (1..=24).map(|n| 8 * n).collect();
    let keep = |at: &usize| {
        format!("r3 = *(u64 *)(r1 + 0); r0 = 1; if r3 == {at} goto k{at}; r0 = 0; k{at}: *(u64 *)(r10 - {at}) = r0; ")
    };
    let decide = |at: &usize| format!("r0 = *(u64 *)(r10 - {at}); if r0 == 0 goto d{at}; r4 += 1; r4 ^= 5; d{at}: ");
    let kept: String = slots.iter().map(keep).collect();
    let decided: String = slots.iter().map(decide).collect();
    let text = format!("r4 = 0; {kept}{decided}r0 = 0; exit");
    let verified = verify(&assemble(&lines(&text)).unwrap(), &rules(&[])).unwrap();
    assert!(verified.steps < 20_000, "{}", verified.steps);
}

/// What is joined keeps its range: an index of 0 or 1 is one.
#[test]
fn an_index_of_paths_that_are_joined_stays_in_its_range() {
    let maps = maps();
    let keep = |at: usize| {
        format!("r3 = *(u64 *)(r6 + 0); r0 = 1; if r3 == {at} goto k{at}; r0 = 0; k{at}: *(u64 *)(r10 - {at}) = r0; ")
    };
    let kept: String = (2..=24).map(|n| keep(8 * n)).collect();
    let used: String = (2..=24).map(|n| format!("r0 = *(u64 *)(r10 - {}); r7 += r0; ", 8 * n)).collect();
    let text =
        |bytes: u32| format!("r6 = r1; SLOT; r7 = r0; {kept}{used}w0 = *(u8 *)(r7 + {}); r0 = 0; exit", 64 - bytes);
    let verdict = |bytes| verify(&assemble(&lines(&text(bytes))).unwrap(), &rules(&maps));
    assert!(verdict(24).is_ok(), "{:?}", verdict(24).err().map(|error| error.to_string()));
    assert!(verdict(23).is_err());
}

#[test]
fn the_stack_of_each_function_is_measured() {
    let text = "*(u64 *)(r10 - 24) = 1; call sub; exit; sub: *(u8 *)(r10 - 33) = 1; r0 = 0; exit";
    let verified = verify(&assemble(&lines(text)).unwrap(), &rules(&[])).unwrap();
    let stacks: Vec<u16> = verified.program.functions.iter().map(|f| f.stack).collect();
    assert_eq!(stacks, [24, 40]);
}
