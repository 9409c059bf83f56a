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

#[test]
fn the_stack_of_each_function_is_measured() {
    let text = "*(u64 *)(r10 - 24) = 1; call sub; exit; sub: *(u8 *)(r10 - 33) = 1; r0 = 0; exit";
    let verified = verify(&assemble(&lines(text)).unwrap(), &rules(&[])).unwrap();
    let stacks: Vec<u16> = verified.program.functions.iter().map(|f| f.stack).collect();
    assert_eq!(stacks, [24, 40]);
}
