//! Programs whose paths meet: the first to come is harmless, and must not stand for the second.

/// Name, program, message.
pub const MEETINGS: &[(&str, &str, &str)] = &[
    (
        "paths meet: an index",
        "MEET; r7 += r8; w0 = *(u8 *)(r7 + 0); exit",
        "insn 19: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a sum",
        "MEET; r3 = 0; r3 += r8; r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 21: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a product of halves",
        "MEET; w3 = 1; w3 *= w8; r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 21: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a copy of a copy",
        "MEET; r3 = r8; r4 = r3; r7 += r4; w0 = *(u8 *)(r7 + 0); exit",
        "insn 21: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a bound",
        "MEET; r9 = *(u64 *)(r7 + 0); if r9 > r8 goto out; r7 += r9; w1 = *(u8 *)(r7 + 0); out: r0 = 0; exit",
        "insn 21: w1 = *(u8 *)(r7 + 0): bytes 0 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a bound from the left",
        "MEET; r9 = *(u64 *)(r7 + 0); if r8 < r9 goto out; r7 += r9; w1 = *(u8 *)(r7 + 0); out: r0 = 0; exit",
        "insn 21: w1 = *(u8 *)(r7 + 0): bytes 0 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a bound of a copy",
        "MEET; r9 = *(u64 *)(r7 + 0); r3 = r9; if r3 > r8 goto out; r7 += r9; w1 = *(u8 *)(r7 + 0); out: r0 = 0; exit",
        "insn 22: w1 = *(u8 *)(r7 + 0): bytes 0 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a bound of a spilled copy",
        "MEET; r9 = *(u64 *)(r7 + 0); *(u64 *)(r10 - 16) = r9; if r9 > r8 goto out; r3 = *(u64 *)(r10 - 16); r7 += r3; w1 = *(u8 *)(r7 + 0); out: r0 = 0; exit",
        "insn 23: w1 = *(u8 *)(r7 + 0): bytes 0 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: spilled and filled",
        "MEET; *(u64 *)(r10 - 16) = r8; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 21: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a branch that is decided",
        "MEET; if r8 == 8 goto out; r0 = *(u64 *)(r8 + 0); out: r0 = 0; exit",
        "insn 19: r0 = *(u64 *)(r8 + 0): r8 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    (
        "paths meet: an argument",
        "MEET; r1 = r7; r2 = r8; call sub; exit; sub: r1 += r2; w0 = *(u8 *)(r1 + 0); exit",
        "insn 23: w0 = *(u8 *)(r1 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: an argument of an argument",
        "MEET; r1 = r7; r2 = r8; call a; exit; a: call b; exit; b: r1 += r2; w0 = *(u8 *)(r1 + 0); exit",
        "insn 25: w0 = *(u8 *)(r1 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a result",
        "MEET; r1 = r8; call sub; r7 += r0; w0 = *(u8 *)(r7 + 0); exit; sub: r0 = r1; exit",
        "insn 21: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a length",
        "MEET; r1 = r7; r2 = r8; r3 = 0; call 112; exit",
        "insn 21: call probe_read_user#112: bytes 0 to 100 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a slot",
        "SPILLED; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 28: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: part of a slot",
        "SPILLED; w3 = *(u8 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 28: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a slot through a pointer",
        "SPILLED; r1 = r10; r1 += -16; call sub; r7 += r0; w0 = *(u8 *)(r7 + 0); exit; sub: r0 = *(u64 *)(r1 + 0); exit",
        "insn 30: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a slot that was not written",
        "MEET; if r8 == 8 goto set; goto meet2; set: *(u64 *)(r10 - 16) = 1; meet2: r5 = 0; r5 = 0; r5 = 0; r0 = *(u64 *)(r10 - 16); exit",
        "insn 24: r0 = *(u64 *)(r10 - 16): stack at r10-16 has no value yet: write it first",
    ),
    (
        "paths meet twice: an index",
        "MEET; TWICE; r7 += r8; w0 = *(u8 *)(r7 + 0); exit",
        "insn 26: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet twice: a slot",
        "SPILLED; TWICE; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 35: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet twice: a slot filled before the second",
        "MEET; *(u64 *)(r10 - 16) = r8; TWICE; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 28: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet in a loop",
        "MEET; r9 = 0; again: r9 += 1; r5 = 0; r5 = 0; if r9 < 5 goto again; r7 += r8; w0 = *(u8 *)(r7 + 0); exit",
        "insn 24: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet in a callback",
        "MEET; *(u64 *)(r10 - 16) = r8; r1 = 4; r2 = func(sub) ll; r3 = r10; r3 += -16; r4 = 0; call 181; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit; sub: r0 = 0; exit",
        "insn 28: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "a callback moves one number into another",
        "*(u64 *)(r10 - 16) = 8; *(u64 *)(r10 - 24) = 100; SLOT; r7 = r0; r1 = 4; r2 = func(sub) ll; r3 = r10; r3 += -24; r4 = 0; call 181; r3 = *(u64 *)(r10 - 16); r7 += r3; w0 = *(u8 *)(r7 + 0); exit; sub: r3 = *(u64 *)(r2 + 0); *(u64 *)(r2 + 8) = r3; r0 = 0; exit",
        "insn 19: r7 += r3: a value of map 'slots' is moved by any number, further than anything is long: bound the offset first",
    ),
    (
        "paths meet twice: an argument",
        "MEET; r1 = r7; r2 = r8; TWICE; call sub; exit; sub: r1 += r2; w0 = *(u8 *)(r1 + 0); exit",
        "insn 30: w0 = *(u8 *)(r1 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet twice: an argument of an argument",
        "MEET; r1 = r7; r2 = r8; TWICE; call a; exit; a: call b; exit; b: r1 += r2; w0 = *(u8 *)(r1 + 0); exit",
        "insn 32: w0 = *(u8 *)(r1 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a number like a harmless one",
        "MEET; r9 = *(u64 *)(r7 + 0); r3 = 8; if r9 != 0 goto b; r5 = 0; r5 = 0; goto meet4; b: r3 = r8; meet4: r5 = 0; r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 27: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "paths meet: a slot like a harmless one",
        "MEET; r9 = *(u64 *)(r7 + 0); *(u64 *)(r10 - 24) = 8; if r9 != 0 goto b; r5 = 0; r5 = 0; goto meet4; b: *(u64 *)(r10 - 24) = r8; meet4: r5 = 0; r3 = *(u64 *)(r10 - 24); r7 += r3; w0 = *(u8 *)(r7 + 0); exit",
        "insn 28: w0 = *(u8 *)(r7 + 0): bytes 100 to 101 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
];
