//! Sites that other sites keep from being jumps: the plan for both, and its detour.

use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::handler::Handler;
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::thunk::{Env, thunks};
use sidestep_plan::{Index, Patch, Plan, Technique, detour, plan, promotable};

const F: Va = Va(0x1000);
const BIAS: i64 = 0x10_0000;
/// lea 1(%rdi),%eax; add %edi,%eax; add $3,%eax; ret
const TWO: [u8; 9] = [0x8d, 0x47, 0x01, 0x01, 0xf8, 0x83, 0xc0, 0x03, 0xc3];

/// The plan for `F`, with sites at these offsets beside it.
fn blocked(text: &[u8], others: &[u64]) -> Option<Plan> {
    let index = Index::new(ObjectCode {
        text: vec![Bytes { name: ".text", va: F, data: text }],
        extents: vec![Extent { start: F, len: Len(text.len() as u64) }],
        ..ObjectCode::new(Isa::X64)
    });
    let trap = plan(&index, F, true).expect("a plan");
    assert_eq!(trap.technique, Technique::Trap);
    let others = others.iter().map(|offset| F.plus(Len(*offset)));
    promotable(&index, &trap, |range| others.filter(|site| range.contains(site)).collect())
}

fn built(plan: &Plan) -> detour::Detour {
    let env = Env { hash_shift: 32, bucket_count: 1, ..Env::default() };
    let thunks = thunks(Va(0x3000), &env, Va(0x9000), &[], &[], None).1;
    detour::build(plan, &[Handler::Agent { probe: 1 }], Va(0x2003), BIAS, &thunks, &env).expect("a detour")
}

fn word(detour: &detour::Detour) -> u64 {
    let at = usize::from(detour.gate.expect("a gate"));
    u64::from_le_bytes(detour.bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[test]
fn a_plan_says_what_it_is_now_and_what_it_will_be() {
    let plan = blocked(&TWO, &[3]).expect("it is blocked");
    assert_eq!(
        (plan.technique, plan.region, &plan.blocked_by[..]),
        (Technique::JumpOverSeveral, Len(5), &[Va(0x1003)][..])
    );
    assert!(plan.is_blocked() && plan.has_traps() && plan.gate);
    assert_eq!((plan.held(), plan.wanted()), (Len(3), Some(Va(0x1001)..Va(0x1005))));
    let now = plan.for_now();
    assert_eq!(
        (now.technique, now.patch, now.region, now.resume),
        (Technique::Trap, Patch::Trap, Len(3), Some(Va(0x1003)))
    );
    assert_eq!((now.displaced.len(), now.is_blocked(), now.for_now()), (1, false, now.clone()));
}

#[test]
fn only_sites_inside_the_jump_block_it() {
    assert_eq!(blocked(&TWO, &[]), None);
    assert_eq!(blocked(&TWO, &[5, 8]), None);
    // One instruction is a jump in any case, or it is no other site that keeps it from being one.
    assert_eq!(blocked(&[0xb8, 1, 0, 0, 0, 0xc3], &[3]), None);
    // add %edi,%eax; jmp to it; ret: a loop.
    assert_eq!(blocked(&[0xff, 0xc0, 0xff, 0xc0, 0xeb, 0xfc, 0xc3], &[2]), None);
}

/// The gate leads to the original when the detour is made, and stands for it.
#[test]
fn a_detour_goes_on_by_its_gate() {
    let detour = built(&blocked(&TWO, &[3]).expect("it is blocked"));
    assert_eq!(word(&detour), (0x1003 + BIAS) as u64);
    assert_eq!((detour.at.0 + u64::from(detour.gate.expect("a gate"))) % 8, 0);
    let [(0, first), (3, second), (5, back), (3, gate)] = detour.copies[..] else { panic!("{:?}", detour.copies) };
    assert!(first < gate && gate < second && second < back);
    let bytes = |at: u16, len: usize| &detour.bytes[usize::from(at)..][..len];
    assert_eq!((bytes(first, 3), bytes(gate, 2), bytes(second, 2)), (&TWO[..3], &[0xff, 0x25][..], &TWO[3..5]));
    // By its own address, the jump reads the word.
    let distance = i32::from_le_bytes(bytes(gate + 2, 4).try_into().expect("4 bytes"));
    assert_eq!(i32::from(gate) + 6 + distance, i32::from(detour.gate.expect("a gate")));
    assert_eq!((detour.patch.len(), detour.patch[0]), (5, 0xe9));
}

#[test]
fn a_site_inside_has_a_gate_where_it_would_jump_back() {
    let mut inside = blocked(&TWO, &[3]).expect("it is blocked").for_now();
    assert!(inside.leads_into(std::iter::once(Va(0x1001)..Va(0x1005))));
    assert!(!inside.leads_into(std::iter::once(Va(0x1004)..Va(0x1008))));
    assert!(inside.may_be_inside());
    inside.add_gate();
    let detour = built(&inside);
    let [(0, first), (3, gate)] = detour.copies[..] else { panic!("{:?}", detour.copies) };
    assert_eq!((gate, word(&detour), detour.recorded), (first + 3, (0x1003 + BIAS) as u64, false));
}

/// The plan of a jump beside which other sites may come.
fn yielding(text: &[u8]) -> Plan {
    let mut jump = jump_alone(text);
    assert!(jump.may_be_around() && jump.yields().is_none());
    jump.add_gate();
    jump
}

fn jump_alone(text: &[u8]) -> Plan {
    let index = Index::new(ObjectCode {
        text: vec![Bytes { name: ".text", va: F, data: text }],
        extents: vec![Extent { start: F, len: Len(text.len() as u64) }],
        ..ObjectCode::new(Isa::X64)
    });
    plan(&index, F, false).expect("a plan")
}

#[test]
fn a_jump_that_may_make_way_begins_with_an_open_gate() {
    let plan = yielding(&TWO);
    assert_eq!(plan.yields(), Some(Va(0x1001)..Va(0x1005)));
    assert!(!plan.is_blocked() && !plan.has_traps());
    let detour = built(&plan);
    // Right behind the word is the copy of the second instruction, where the gate of a blocked jump
    // leads when it is promoted.
    let copy = detour.copies.iter().find(|(from, _)| *from == 3).expect("a copy");
    assert_eq!(word(&detour), detour.at.0 + u64::from(copy.1));
    assert_eq!(usize::from(copy.1), usize::from(detour.gate.expect("a gate")) + 8);
    assert_eq!(detour.patch.len(), 5);
    // The gate is the last pair.
    assert_eq!(detour.copies.last().map(|(from, _)| *from), Some(3));
}

#[test]
fn what_stays_makes_no_way() {
    let plan = yielding(&TWO).for_good();
    assert!(plan.yields().is_none() && !plan.gate && plan.technique == Technique::JumpOverSeveral);
    assert_eq!(built(&plan).gate, None);
    // One instruction has nothing inside.
    let mut alone = jump_alone(&[0xb8, 1, 0, 0, 0, 0xc3]);
    alone.add_gate();
    assert!(!alone.may_be_around() && alone.yields().is_none());
}
