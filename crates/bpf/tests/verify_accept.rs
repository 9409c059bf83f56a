//! Programs that are safe: each shows something that a verifier must understand to see it.

mod cases;

use cases::{lines, maps, rules};
use sidestep_bpf::assemble;
use sidestep_bpf::verify::verify;

const CASES: &[(&str, &str)] = &[
    ("smallest", "r0 = 0; exit"),
    ("context", "r0 = *(u64 *)(r1 + 160); exit"),
    ("narrow context", "w0 = *(u32 *)(r1 + 84); exit"),
    ("signed load", "r0 = *(s16 *)(r1 + 2); exit"),
    ("spill and fill", "*(u64 *)(r10 - 8) = r1; r2 = *(u64 *)(r10 - 8); r0 = *(u64 *)(r2 + 0); exit"),
    ("bytes of the stack", "*(u8 *)(r10 - 1) = 1; *(u8 *)(r10 - 2) = 2; w0 = *(u16 *)(r10 - 2); exit"),
    ("lower half of a spill", "r2 = 7; *(u64 *)(r10 - 8) = r2; w0 = *(u32 *)(r10 - 8); exit"),
    ("lookup", "LOOKUP; if r0 == 0 goto out; r1 = *(u64 *)(r0 + 8); out: r0 = 0; exit"),
    ("lookup, checked by !=", "LOOKUP; if r0 != 0 goto use; r0 = 0; exit; use: *(u64 *)(r0 + 0) = 1; r0 = 0; exit"),
    ("lookup, checked by a copy", "LOOKUP; r6 = r0; if r6 == 0 goto out; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit"),
    ("lookup, checked through the stack",
     "LOOKUP; *(u64 *)(r10 - 16) = r0; if r0 == 0 goto out; r1 = *(u64 *)(r10 - 16); r1 = *(u64 *)(r1 + 0); out: r0 = 0; exit"),
    ("atomic count", "LOOKUP; if r0 == 0 goto out; r1 = 1; lock *(u64 *)(r0 + 8) += r1; out: r0 = 0; exit"),
    ("atomic on the stack", "*(u64 *)(r10 - 8) = 5; r1 = 1; r1 = atomic_fetch_add((u64 *)(r10 - 8), r1); r0 = r1; exit"),
    ("exchange", "*(u64 *)(r10 - 8) = 5; r1 = 1; r1 = xchg_64(r10 - 8, r1); r0 = r1; exit"),
    ("compare and exchange",
     "*(u64 *)(r10 - 8) = 5; r0 = 5; r1 = 1; r0 = cmpxchg_64(r10 - 8, r0, r1); exit"),
    ("index by a mask", "r6 = *(u64 *)(r1 + 0); SLOT; r6 &= 56; r0 += r6; r0 = *(u64 *)(r0 + 0); exit"),
    ("index by a comparison", "r6 = *(u64 *)(r1 + 0); SLOT; if r6 > 56 goto out; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit"),
    ("index by a comparison of halves",
     "r6 = *(u64 *)(r1 + 0); SLOT; w6 = w6; if w6 > 63 goto out; r0 += r6; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("index by a comparison of the half, then extended",
     "r6 = *(u64 *)(r1 + 0); SLOT; if w6 > 63 goto out; w7 = w6; r0 += r7; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("index by signed comparisons",
     "r6 = *(u64 *)(r1 + 0); SLOT; if r6 s< 0 goto out; if r6 s>= 64 goto out; r0 += r6; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("index bounded through a copy",
     "r6 = *(u64 *)(r1 + 0); r7 = r6; SLOT; if r7 > 63 goto out; r0 += r6; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("index bounded through a spill",
     "r6 = *(u64 *)(r1 + 0); *(u64 *)(r10 - 16) = r6; SLOT; if r6 > 63 goto out; r7 = *(u64 *)(r10 - 16); r0 += r7; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("index by a shift", "r6 = *(u64 *)(r1 + 0); SLOT; r6 >>= 58; r0 += r6; w0 = *(u8 *)(r0 + 0); exit"),
    ("index by a remainder", "r6 = *(u64 *)(r1 + 0); SLOT; r6 %= 64; r0 += r6; w0 = *(u8 *)(r0 + 0); exit"),
    ("index by a product", "r6 = *(u64 *)(r1 + 0); SLOT; r6 &= 7; r6 *= 8; r0 += r6; r0 = *(u64 *)(r0 + 0); exit"),
    ("index from the end", "r6 = *(u64 *)(r1 + 0); SLOT; r6 &= 31; r0 += 63; r0 -= r6; w0 = *(u8 *)(r0 + 0); exit"),
    ("index by a byte that fits", "w6 = *(u8 *)(r1 + 0); r6 >>= 2; SLOT; r0 += r6; w0 = *(u8 *)(r0 + 0); exit"),
    ("sum of two indexes",
     "r6 = *(u64 *)(r1 + 0); r7 = *(u64 *)(r1 + 8); SLOT; r6 &= 31; r7 &= 31; r6 += r7; r0 += r6; w0 = *(u8 *)(r0 + 0); exit"),
    ("bound by another register",
     "r6 = *(u64 *)(r1 + 0); r7 = *(u64 *)(r1 + 8); SLOT; r7 &= 63; if r6 > r7 goto out; r0 += r6; w1 = *(u8 *)(r0 + 0); out: r0 = 0; exit"),
    ("array on the stack, index unknown",
     "r6 = *(u64 *)(r1 + 0); *(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 16) = 0; r6 &= 15; r2 = r10; r2 += -16; r2 += r6; *(u8 *)(r2 + 0) = 1; w0 = *(u8 *)(r2 + 0); exit"),
    ("a dead branch may be wrong", "r2 = 1; if r2 == 1 goto out; r0 = *(u64 *)(r2 + 0); out: r0 = 0; exit"),
    ("a bit that is set is not zero", "r2 = *(u64 *)(r1 + 0); r2 |= 4; if r2 != 0 goto out; r0 = *(u64 *)(r2 + 0); out: r0 = 0; exit"),
    ("a bit tested twice",
     "r2 = *(u64 *)(r1 + 0); if r2 & 8 goto out; if r2 & 8 goto bad; out: r0 = 0; exit; bad: r0 = *(u64 *)(r2 + 0); exit"),
    ("loop with a counter", "r0 = 0; again: r0 += 1; if r0 < 100 goto again; exit"),
    ("long loop", "r0 = 0; again: r0 += 1; if r0 < 20000 goto again; exit"),
    ("nested loops", "r6 = 0; outer: r7 = 0; inner: r7 += 1; if r7 != 50 goto inner; r6 += 1; if r6 != 50 goto outer; r0 = r6; exit"),
    ("loop that counts down", "r6 = 64; again: r6 -= 1; if r6 s> 0 goto again; r0 = 0; exit"),
    ("loop with an unknown end below 16",
     "r6 = *(u64 *)(r1 + 0); r6 &= 15; r7 = 0; again: if r7 >= r6 goto out; r7 += 1; goto again; out: r0 = r7; exit"),
    ("loop with branches",
     "r6 = 0; r8 = r1; r9 = 0; again: r7 = *(u64 *)(r8 + 0); if r7 == 0 goto skip; r9 += r7; skip: r6 += 1; if r6 < 500 goto again; r0 = r9; exit"),
    ("branches that meet", "r2 = *(u64 *)(r1 + 0); r0 = 0; BRANCHES exit"),
    ("function", "r1 = 5; call sub; exit; sub: r0 = r1; r0 += 1; exit"),
    ("function that gets a pointer to the stack",
     "*(u64 *)(r10 - 8) = 3; r1 = r10; r1 += -8; call sub; r0 = *(u64 *)(r10 - 8); exit; sub: *(u64 *)(r1 + 0) = 4; r0 = 0; exit"),
    ("functions eight deep",
     "call f1; exit; f1: call f2; exit; f2: call f3; exit; f3: call f4; exit; f4: call f5; exit; f5: call f6; exit; f6: call f7; exit; f7: r0 = 1; exit"),
    ("function that returns a map value",
     "call sub; if r0 == 0 goto out; *(u64 *)(r0 + 0) = 1; out: r0 = 0; exit; sub: LOOKUP; exit"),
    ("function without a result", "call sub; r0 = 0; exit; sub: exit"),
    ("preserved registers", "r6 = r1; call 5; r0 = *(u64 *)(r6 + 0); exit"),
    ("reserve and submit",
     "r1 = map(2) ll; r2 = 16; r3 = 0; call 131; if r0 == 0 goto out; *(u64 *)(r0 + 8) = 1; r1 = r0; r2 = 0; call 132; out: r0 = 0; exit"),
    ("reserve and discard in a function",
     "r1 = map(2) ll; r2 = 16; r3 = 0; call 131; if r0 == 0 goto out; r1 = r0; call sub; out: r0 = 0; exit; sub: r2 = 0; call 133; exit"),
    ("ring output", "*(u64 *)(r10 - 8) = 1; r1 = map(2) ll; r2 = r10; r2 += -8; r3 = 8; r4 = 0; call 130; r0 = 0; exit"),
    ("perf output",
     "*(u64 *)(r10 - 8) = 1; r2 = map(3) ll; r3 = 4294967295 ll; r4 = r10; r4 += -8; r5 = 8; call 25; r0 = 0; exit"),
    ("read user memory", "r3 = *(u64 *)(r1 + 112); r1 = r10; r1 += -16; r2 = 16; call 112; r0 = *(u64 *)(r10 - 16); exit"),
    ("read a string, then send what was read",
     "r6 = map(2) ll; r3 = *(u64 *)(r1 + 112); *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -16; r2 = 16; call 114;
      if r0 s< 0 goto out; r3 = r0; r1 = r6; r2 = r10; r2 += -16; r4 = 0; call 130; out: r0 = 0; exit"),
    ("length from the target, bounded",
     "r2 = *(u64 *)(r1 + 104); r3 = *(u64 *)(r1 + 112); if r2 > 16 goto out; *(u64 *)(r10 - 16) = 0; *(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -16; call 112; out: r0 = 0; exit"),
    ("name of the process", "r1 = r10; r1 += -16; r2 = 16; call 16; r0 = *(u64 *)(r10 - 8); exit"),
    ("stack of the target", "r2 = map(4) ll; r3 = 256; call 27; exit"),
    ("stack into a value",
     "r6 = r1; SLOT; r2 = r0; r1 = r6; r3 = 64; r4 = 256; call 67; exit"),
    ("compare text", "*(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; r2 = 8; r3 = map_value(5, 0) ll; call 182; exit"),
    ("arguments", "r2 = 0; r3 = r10; r3 += -8; call 183; r0 = *(u64 *)(r10 - 8); exit"),
    ("variables", "r6 = map_value(6, 8) ll; *(u64 *)(r6 + 16) = 1; r0 = *(u64 *)(r6 + 0); exit"),
    ("constants", "r6 = map_value(5, 0) ll; r0 = *(u64 *)(r6 + 0); exit"),
    ("print", "r1 = map_value(5, 0) ll; r2 = 6; call 6; r0 = 0; exit"),
    ("callback", "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: r0 = 0; exit"),
    ("callback that counts in its context",
     "*(u64 *)(r10 - 8) = 0; r1 = 10; r2 = func(sub) ll; r3 = r10; r3 += -8; r4 = 0; call 181; r0 = *(u64 *)(r10 - 8); exit;
      sub: r3 = *(u64 *)(r2 + 0); r3 += r1; *(u64 *)(r2 + 0) = r3; r0 = 0; exit"),
    ("callback with branches",
     "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: r0 = 0; if r1 < 5 goto out; r0 = 1; out: exit"),
    ("unaligned value", "SLOT; r0 = *(u64 *)(r0 + 3); exit"),
    ("difference of pointers", "r2 = r10; r2 += -8; r0 = r10; r0 -= r2; exit"),
    ("null is a number", "LOOKUP; if r0 != 0 goto out; exit; out: r0 = 1; exit"),
    ("halves", "r0 = *(u64 *)(r1 + 0); w0 += 1; w0 s>>= 3; w0 = -w0; r0 = bswap32 r0; w0 = (s8)w0; exit"),
    ("signed division", "r0 = *(u64 *)(r1 + 0); r0 s/= -3; r0 s%= 5; exit"),
    ("far jump", "gotol out; out: r0 = 0; exit"),
];

#[test]
fn safe_programs_are_accepted() {
    let maps = maps();
    for (name, text) in CASES {
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
