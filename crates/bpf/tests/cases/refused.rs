//! Programs that are not safe.

/// Name, program, and the message that says what to do.
pub const REFUSED: &[(&str, &str, &str)] = &[
    ("nothing set", "exit", "insn 0: exit: r0 has no value yet: set it first"),
    ("register never set", "r0 = r3; exit", "insn 0: r0 = r3: r3 has no value yet: set it first"),
    (
        "set on one path only",
        "if r1 != 0 goto out; r0 = 0; out: exit",
        "insn 2: exit: r0 has no value yet: set it first",
    ),
    (
        "lost by a call",
        "r2 = 1; call 5; r0 = r2; exit",
        "insn 2: r0 = r2: r2 has no value after a call: keep what is needed in r6 to r9",
    ),
    (
        "context lost by a call",
        "call 5; r0 = *(u64 *)(r1 + 0); exit",
        "insn 1: r0 = *(u64 *)(r1 + 0): r1 has no value after a call: keep what is needed in r6 to r9",
    ),
    (
        "result of a helper without one",
        "RESERVE; r1 = r0; r2 = 0; call 132; exit",
        "insn 10: exit: r0 has no value after a call: keep what is needed in r6 to r9",
    ),
    (
        "frame pointer changed",
        "r10 += 8; r0 = 0; exit",
        "insn 0: r10 += 8: r10 is read-only: copy it and change the copy",
    ),
    ("frame pointer set", "r10 = 1; r0 = 0; exit", "insn 0: r10 = 1: r10 is read-only: copy it and change the copy"),
    ("end missing", "r0 = 0", "insn 0: r0 = 0: the function does not end here: end it with exit or goto"),
    (
        "end missing after a branch",
        "r0 = 0; if r1 == 0 goto out; exit; out: r0 = 1",
        "insn 3: r0 = 1: the function does not end here: end it with exit or goto",
    ),
    ("unreachable", "r0 = 0; exit; r0 = 1; exit", "insn 2: r0 = 1: no path leads here: remove it"),
    ("unreachable after goto", "r0 = 0; goto out; r0 = 1; out: exit", "insn 2: r0 = 1: no path leads here: remove it"),
    (
        "jump behind the end",
        "r0 = 0; goto +5; exit",
        "insn 1: goto +5: the target 7 is no instruction: jump to the start of one",
    ),
    (
        "jump before the start",
        "r0 = 0; goto -3; exit",
        "insn 1: goto -3: the target -1 is no instruction: jump to the start of one",
    ),
    (
        "jump into a long immediate",
        "r0 = 0; goto +1; r2 = 1 ll; exit",
        "insn 1: goto +1: the target 3 is no instruction: jump to the start of one",
    ),
    (
        "jump into another function",
        "r1 = 0; call sub; goto sub; sub: r0 = 0; exit",
        "insn 2: goto +0: the target 3 is in another function: call it",
    ),
    (
        "call behind the end",
        "call pc+9; exit",
        "insn 0: call pc+9: the target 10 is no instruction: jump to the start of one",
    ),
    (
        "recursion",
        "call sub; exit; sub: call sub; exit",
        "insn 2: call pc-1: the function at 2 calls itself: use a loop",
    ),
    (
        "recursion through another",
        "call a; exit; a: call b; exit; b: call a; exit",
        "insn 4: call pc-3: the function at 2 calls itself: use a loop",
    ),
    (
        "nine deep",
        "call f1; exit; f1: call f2; exit; f2: call f3; exit; f3: call f4; exit; f4: call f5; exit; f5: call f6; exit; f6: call f7; exit; f7: call f8; exit; f8: r0 = 1; exit",
        "insn 0: call pc+1: calls are nested more than 8 deep: inline some",
    ),
    (
        "stacks together",
        "*(u64 *)(r10 - 512) = 0; call sub; exit; sub: *(u64 *)(r10 - 8) = 0; r0 = 0; exit",
        "insn 1: call pc+1: the stacks of nested calls need 544 bytes together, more than 512: make them smaller",
    ),
    (
        "loop without end",
        "again: goto again",
        "insn 0: goto -1: the loop never ends: nothing changed since the last time here",
    ),
    (
        "loop in which nothing changes",
        "r0 = 0; again: r2 = r0; r2 += 1; r3 = r2; r3 += 1; r3 = 0; if r0 == 0 goto again; exit",
        "insn 1: r2 = r0: the loop never ends: nothing changed since the last time here",
    ),
    (
        "loop that is too long",
        "r0 = 0; again: r0 += 1; if r0 != 0 goto again; exit",
        "insn 2: if r0 != 0 goto -2: still not done after 100000 instructions: bound the loops lower, or make the program simpler",
    ),
    (
        "loop bounded by the target only",
        "r6 = *(u64 *)(r1 + 0); r0 = 0; again: r0 += 1; if r0 < r6 goto again; exit",
        "insn 2: r0 += 1: too many paths to remember: bound the loops lower, or make the program simpler",
    ),
    (
        "number as a pointer",
        "r0 = 5; r0 = *(u64 *)(r0 + 0); exit",
        "insn 1: r0 = *(u64 *)(r0 + 0): r0 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    (
        "user pointer as a pointer",
        "r2 = *(u64 *)(r1 + 112); r0 = *(u64 *)(r2 + 0); exit",
        "insn 1: r0 = *(u64 *)(r2 + 0): r2 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    (
        "store through a number",
        "r2 = 4096; *(u64 *)(r2 + 0) = 1; r0 = 0; exit",
        "insn 1: *(u64 *)(r2 + 0) = 1: r2 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    (
        "context too far",
        "r0 = *(u64 *)(r1 + 176); exit",
        "insn 0: r0 = *(u64 *)(r1 + 176): bytes 176 to 184 of the context are accessed, which has 176: check the offset first",
    ),
    (
        "context before the start",
        "r0 = *(u64 *)(r1 - 8); exit",
        "insn 0: r0 = *(u64 *)(r1 - 8): bytes -8 to 0 of the context are accessed, which has 176: check the offset first",
    ),
    (
        "context across the end",
        "r0 = *(u64 *)(r1 + 172); exit",
        "insn 0: r0 = *(u64 *)(r1 + 172): bytes 172 to 180 of the context are accessed, which has 176: check the offset first",
    ),
    (
        "context unaligned",
        "r0 = *(u64 *)(r1 + 4); exit",
        "insn 0: r0 = *(u64 *)(r1 + 4): the context is accessed at offset 4, which is no multiple of 8: align it",
    ),
    (
        "context written",
        "*(u64 *)(r1 + 0) = 1; r0 = 0; exit",
        "insn 0: *(u64 *)(r1 + 0) = 1: the context is read-only: keep what changes in a map",
    ),
    (
        "context changed",
        "r1 += 8; r0 = *(u64 *)(r1 + 0); exit",
        "insn 1: r0 = *(u64 *)(r1 + 0): the context is accessed through a changed pointer: use a fixed offset from the context itself",
    ),
    (
        "atomic on the context",
        "r2 = 1; lock *(u64 *)(r1 + 0) += r2; r0 = 0; exit",
        "insn 1: lock *(u64 *)(r1 + 0) += r2: atomic operations work on map values, records and the stack, not on the context",
    ),
    (
        "value not checked",
        "LOOKUP; r0 = *(u64 *)(r0 + 0); exit",
        "insn 6: r0 = *(u64 *)(r0 + 0): r0 may be null: check it first",
    ),
    (
        "value checked the wrong way",
        "LOOKUP; if r0 != 0 goto out; r0 = *(u64 *)(r0 + 0); exit; out: r0 = 0; exit",
        "insn 7: r0 = *(u64 *)(r0 + 0): r0 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    ("arithmetic before the check", "LOOKUP; r0 += 8; exit", "insn 6: r0 += 8: r0 may be null: check it first"),
    (
        "half of a pointer checked",
        "LOOKUP; if w0 == 0 goto out; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 7: r1 = *(u64 *)(r0 + 0): r0 may be null: check it first",
    ),
    (
        "value too far",
        "LOOKUP; if r0 == 0 goto out; r1 = *(u64 *)(r0 + 16); out: r0 = 0; exit",
        "insn 7: r1 = *(u64 *)(r0 + 16): bytes 16 to 24 of a value of map 'counts' are accessed, which has 16: check the offset first",
    ),
    (
        "value across the end",
        "LOOKUP; if r0 == 0 goto out; r1 = *(u64 *)(r0 + 12); out: r0 = 0; exit",
        "insn 7: r1 = *(u64 *)(r0 + 12): bytes 12 to 20 of a value of map 'counts' are accessed, which has 16: check the offset first",
    ),
    (
        "value before the start",
        "LOOKUP; if r0 == 0 goto out; w1 = *(u8 *)(r0 - 1); out: r0 = 0; exit",
        "insn 7: w1 = *(u8 *)(r0 - 1): bytes -1 to 0 of a value of map 'counts' are accessed, which has 16: check the offset first",
    ),
    (
        "index not bounded",
        "r6 = *(u64 *)(r1 + 0); SLOT; r0 += r6; r0 = *(u64 *)(r0 + 0); exit",
        "insn 9: r0 += r6: a value of map 'slots' is moved by any number, further than anything is long: bound the offset first",
    ),
    (
        "index bounded one too high",
        "r6 = *(u64 *)(r1 + 0); SLOT; if r6 > 57 goto out; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 11: r1 = *(u64 *)(r0 + 0): bytes 0 to 65 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "index bounded from above only",
        "r6 = *(u64 *)(r1 + 0); SLOT; if r6 s> 56 goto out; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 10: r0 += r6: a value of map 'slots' is moved by -2^63 to 56, further than anything is long: bound the offset first",
    ),
    (
        "index bounded in the half only",
        "r6 = *(u64 *)(r1 + 0); SLOT; if w6 > 56 goto out; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 10: r0 += r6: a value of map 'slots' is moved by -2^63 to 9223372032559808568, further than anything is long: bound the offset first",
    ),
    (
        "index negative",
        "w6 = *(u8 *)(r1 + 0); SLOT; r6 &= 7; r6 -= 4; r0 += r6; w0 = *(u8 *)(r0 + 0); exit",
        "insn 12: w0 = *(u8 *)(r0 + 0): bytes -4 to 4 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "index spoilt by a later sum",
        "r6 = *(u64 *)(r1 + 0); SLOT; if r6 > 56 goto out; r6 += 8; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 12: r1 = *(u64 *)(r0 + 0): bytes 8 to 72 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "index bounded before it was loaded anew",
        "r6 = *(u64 *)(r1 + 0); r8 = r1; if r6 > 56 goto out; r6 = *(u64 *)(r8 + 8); SLOT; r0 += r6; r1 = *(u64 *)(r0 + 0); out: r0 = 0; exit",
        "insn 12: r0 += r6: a value of map 'slots' is moved by any number, further than anything is long: bound the offset first",
    ),
    (
        "stack never written",
        "r0 = *(u64 *)(r10 - 8); exit",
        "insn 0: r0 = *(u64 *)(r10 - 8): stack at r10-8 has no value yet: write it first",
    ),
    (
        "stack written in part",
        "*(u32 *)(r10 - 8) = 1; r0 = *(u64 *)(r10 - 8); exit",
        "insn 1: r0 = *(u64 *)(r10 - 8): stack at r10-4 has no value yet: write it first",
    ),
    (
        "stack too low",
        "*(u64 *)(r10 - 520) = 1; r0 = 0; exit",
        "insn 0: *(u64 *)(r10 - 520) = 1: the stack is accessed from r10-520 to r10-512, but is from r10-512 to r10: change the offset",
    ),
    (
        "stack above the frame",
        "*(u64 *)(r10 + 0) = 1; r0 = 0; exit",
        "insn 0: *(u64 *)(r10 + 0) = 1: the stack is accessed from r10+0 to r10+8, but is from r10-512 to r10: change the offset",
    ),
    (
        "stack unaligned",
        "*(u64 *)(r10 - 12) = 1; r0 = 0; exit",
        "insn 0: *(u64 *)(r10 - 12) = 1: the stack is accessed at offset -12, which is no multiple of 8: align it",
    ),
    (
        "half of a spilled pointer",
        "*(u64 *)(r10 - 8) = r1; w0 = *(u32 *)(r10 - 8); exit",
        "insn 1: w0 = *(u32 *)(r10 - 8): part of a pointer that is kept at r10-8 is accessed: access all 8 bytes",
    ),
    (
        "half of a pointer stored",
        "*(u32 *)(r10 - 8) = w1; r0 = 0; exit",
        "insn 0: *(u32 *)(r10 - 8) = w1: part of a pointer that is kept at r10-8 is accessed: access all 8 bytes",
    ),
    (
        "pointer damaged on the stack",
        "*(u64 *)(r10 - 8) = r1; *(u8 *)(r10 - 8) = 1; r1 = *(u64 *)(r10 - 8); r0 = *(u64 *)(r1 + 0); exit",
        "insn 3: r0 = *(u64 *)(r1 + 0): r1 is a number, not a pointer: read the target's memory with probe_read_user",
    ),
    (
        "stack of a function that returned",
        "r1 = r10; r1 += -8; call sub; r0 = *(u64 *)(r0 + 0); exit; sub: *(u64 *)(r10 - 8) = 1; r0 = r10; r0 += -8; exit",
        "insn 8: exit: a pointer to the stack of a function that returns must not outlive it: keep it in the function",
    ),
    (
        "stack of a callee kept by the caller",
        "r1 = r10; r1 += -8; call sub; exit; sub: *(u64 *)(r1 + 0) = r10; r0 = 0; exit",
        "insn 4: *(u64 *)(r1 + 0) = r10: a pointer to the stack of a function that returns must not outlive it: keep it in the function",
    ),
    (
        "callee's stack is not the caller's",
        "*(u64 *)(r10 - 8) = 1; call sub; exit; sub: r0 = *(u64 *)(r10 - 8); exit",
        "insn 3: r0 = *(u64 *)(r10 - 8): stack at r10-8 has no value yet: write it first",
    ),
    (
        "atomic on what has no value",
        "r1 = 1; lock *(u64 *)(r10 - 8) += r1; r0 = 0; exit",
        "insn 1: lock *(u64 *)(r10 - 8) += r1: stack at r10-8 has no value yet: write it first",
    ),
    (
        "atomic with a pointer",
        "*(u64 *)(r10 - 8) = 1; lock *(u64 *)(r10 - 8) += r1; r0 = 0; exit",
        "insn 1: lock *(u64 *)(r10 - 8) += r1: the operand r1 is a pointer: atomic operations take numbers",
    ),
    (
        "atomic unaligned",
        "SLOT; r1 = 1; lock *(u64 *)(r0 + 4) += r1; r0 = 0; exit",
        "insn 9: lock *(u64 *)(r0 + 4) += r1: a value of map 'slots' is accessed at offset 4, which is no multiple of 8: align it",
    ),
    (
        "constants written",
        "r6 = map_value(5, 0) ll; *(u64 *)(r6 + 0) = 1; r0 = 0; exit",
        "insn 2: *(u64 *)(r6 + 0) = 1: a value of map '.rodata' is read-only: keep what changes in a map",
    ),
    (
        "map accessed directly",
        "r6 = map(0) ll; r0 = *(u64 *)(r6 + 0); exit",
        "insn 2: r0 = *(u64 *)(r6 + 0): the map 'counts' cannot be accessed directly: look entries up with map_lookup_elem",
    ),
    (
        "arithmetic on a map",
        "r6 = map(0) ll; r6 += 8; r0 = 0; exit",
        "insn 2: r6 += 8: the map 'counts' has no inside: no arithmetic on r6",
    ),
    (
        "function accessed",
        "r6 = func(sub) ll; r0 = *(u64 *)(r6 + 0); exit; sub: r0 = 0; exit",
        "insn 2: r0 = *(u64 *)(r6 + 0): a function cannot be accessed directly: functions can only be called",
    ),
    ("division by zero", "r0 = 1; r0 /= 0; exit", "insn 1: r0 /= 0: division by zero: use another divisor"),
    ("remainder of zero", "r0 = 1; w0 s%= 0; exit", "insn 1: w0 s%= 0: division by zero: use another divisor"),
    ("shift too far", "r0 = 1; r0 <<= 64; exit", "insn 1: r0 <<= 64: a shift by 64 of 64 bits: shift by less"),
    (
        "shift of a half too far",
        "r0 = 1; w0 >>= 32; exit",
        "insn 1: w0 >>= 32: a shift by 32 of 32 bits: shift by less",
    ),
    (
        "shift by less than nothing",
        "r0 = 1; r0 s>>= -1; exit",
        "insn 1: r0 s>>= -1: a shift by -1 of 64 bits: shift by less",
    ),
    ("pointers added", "r1 += r10; r0 = 0; exit", "insn 0: r1 += r10: two pointers cannot be added: add an offset"),
    (
        "pointer negated",
        "r0 = 8; r0 -= r1; exit",
        "insn 1: r0 -= r1: a pointer cannot be subtracted from a number: subtract from the pointer",
    ),
    (
        "pointer multiplied",
        "r1 *= 2; r0 = 0; exit",
        "insn 0: r1 *= 2: r1 is the context: only + and - of 64 bits work on pointers",
    ),
    (
        "pointer and mask",
        "r1 &= -8; r0 = 0; exit",
        "insn 0: r1 &= -8: r1 is the context: only + and - of 64 bits work on pointers",
    ),
    (
        "half of a pointer moved",
        "w0 = w1; exit",
        "insn 0: w0 = w1: r1 is the context: only + and - of 64 bits work on pointers",
    ),
    (
        "half of a pointer added to",
        "w1 += 1; r0 = 0; exit",
        "insn 0: w1 += 1: r1 is the context: only + and - of 64 bits work on pointers",
    ),
    (
        "pointer turned around",
        "r1 = be64 r1; r0 = 0; exit",
        "insn 0: r1 = be64 r1: r1 is the context: only + and - of 64 bits work on pointers",
    ),
    (
        "pointer moved too far",
        "r2 = r10; r2 += 1073741824; r0 = 0; exit",
        "insn 1: r2 += 1073741824: the stack is moved by 1073741824, further than anything is long: bound the offset first",
    ),
    (
        "pointer moved by anything",
        "r2 = *(u64 *)(r1 + 0); r3 = r10; r3 += r2; r0 = 0; exit",
        "insn 2: r3 += r2: the stack is moved by any number, further than anything is long: bound the offset first",
    ),
    ("no such helper", "call 12; exit", "insn 0: call helper#12: there is no helper 12: see the list of helpers"),
    (
        "helper of another program type",
        "call 9999; exit",
        "insn 0: call helper#9999: there is no helper 9999: see the list of helpers",
    ),
    (
        "return value overridden",
        "r2 = 0; call 58; exit",
        "insn 1: call override_return#58: override_return changes what the target does: allow it with --unsafe",
    ),
    (
        "lookup in a ring",
        "*(u64 *)(r10 - 8) = 0; r2 = r10; r2 += -8; r1 = map(2) ll; call 1; r0 = 0; exit",
        "insn 5: call map_lookup_elem#1: map_lookup_elem does not work on map 'ring' of kind ringbuf: use another helper or kind",
    ),
    (
        "no map",
        "r1 = 0; r2 = r10; call 1; exit",
        "insn 2: call map_lookup_elem#1: r1 must be a map, but is the number 0",
    ),
    (
        "key not written",
        "r1 = map(0) ll; r2 = r10; r2 += -8; call 1; r0 = 0; exit",
        "insn 4: call map_lookup_elem#1: stack at r10-8 has no value yet: write it first",
    ),
    (
        "key too short",
        "*(u64 *)(r10 - 8) = 0; r1 = map(0) ll; r2 = r10; r2 += -4; call 1; r0 = 0; exit",
        "insn 5: call map_lookup_elem#1: the stack is accessed from r10-4 to r10+4, but is from r10-512 to r10: change the offset",
    ),
    (
        "key is a number",
        "r1 = map(0) ll; r2 = 8; call 1; r0 = 0; exit",
        "insn 3: call map_lookup_elem#1: r2 must be a pointer to a key of the map, but is the number 8",
    ),
    (
        "value too short",
        "*(u64 *)(r10 - 8) = 0; r1 = map(0) ll; r2 = r10; r2 += -8; r3 = r2; r4 = 0; call 2; r0 = 0; exit",
        "insn 7: call map_update_elem#2: the stack is accessed from r10-8 to r10+8, but is from r10-512 to r10: change the offset",
    ),
    (
        "constants updated",
        "*(u32 *)(r10 - 4) = 0; r1 = map(5) ll; r2 = r10; r2 += -4; r3 = map_value(6, 0) ll; r4 = 0; call 2; r0 = 0; exit",
        "insn 8: call map_update_elem#2: the map '.rodata' is read-only: keep what changes in a map",
    ),
    (
        "argument missing",
        "r1 = r10; r1 += -8; call 16; exit",
        "insn 2: call get_current_comm#16: r2 has no value yet: set it first",
    ),
    (
        "length not bounded",
        "r2 = *(u64 *)(r1 + 104); r3 = 0; r1 = r10; r1 += -16; call 112; exit",
        "insn 4: call probe_read_user#112: the length r2 is any number: bound it to 0 to 536870912 first",
    ),
    (
        "length may be negative",
        "r2 = *(u64 *)(r1 + 104); r3 = 0; if r2 s> 16 goto out; r1 = r10; r1 += -16; call 112; out: r0 = 0; exit",
        "insn 5: call probe_read_user#112: the length r2 is -2^63 to 16: bound it to 0 to 536870912 first",
    ),
    (
        "length zero where none may be",
        "r1 = r10; r1 += -16; r2 = 0; call 16; exit",
        "insn 3: call get_current_comm#16: the length r2 is 0: bound it to 1 to 536870912 first",
    ),
    (
        "longer than the buffer",
        "r1 = r10; r1 += -16; r2 = 17; call 16; exit",
        "insn 3: call get_current_comm#16: the stack is accessed from r10-16 to r10+1, but is from r10-512 to r10: change the offset",
    ),
    (
        "length of what was read, with errors",
        "r6 = map(2) ll; r3 = *(u64 *)(r1 + 112); r1 = r10; r1 += -16; r2 = 16; call 114; r3 = r0; r1 = r6; r2 = r10; r2 += -16; r4 = 0; call 130; exit",
        "insn 12: call ringbuf_output#130: the length r3 is -4095 to 16: bound it to 0 to 536870912 first",
    ),
    (
        "up to so many bytes into what was not written",
        "r2 = *(u64 *)(r1 + 104); r3 = 0; if r2 > 16 goto out; r1 = r10; r1 += -16; call 112; out: r0 = 0; exit",
        "insn 5: call probe_read_user#112: stack at r10-16 has no value yet: write it first",
    ),
    (
        "read into the context",
        "r6 = r1; r2 = 8; r3 = 0; call 112; exit",
        "insn 3: call probe_read_user#112: r1 must be a pointer to memory, but is the context",
    ),
    (
        "read into constants",
        "r1 = map_value(5, 0) ll; r2 = 8; r3 = 0; call 112; exit",
        "insn 4: call probe_read_user#112: a value of map '.rodata' is read-only: keep what changes in a map",
    ),
    (
        "context changed for a helper",
        "r1 += 8; call 173; exit",
        "insn 1: call get_func_ip#173: r1 must be the context, but is the context moved by 8",
    ),
    (
        "context lost for a helper",
        "r1 = 0; call 173; exit",
        "insn 1: call get_func_ip#173: r1 must be the context, but is the number 0",
    ),
    (
        "stack of what is no stack map",
        "r2 = map(0) ll; r3 = 256; call 27; exit",
        "insn 3: call get_stackid#27: get_stackid does not work on map 'counts' of kind hash: use another helper or kind",
    ),
    (
        "map index too high",
        "r1 = map(7) ll; r0 = 0; exit",
        "insn 0: r1 = map(7) ll: the program has no map 7: add it to the list of maps",
    ),
    (
        "address in a hash",
        "r1 = map_value(0, 0) ll; r0 = 0; exit",
        "insn 0: r1 = map_value(0, 0) ll: map 'counts' is no array: look the value up",
    ),
    (
        "address behind the value",
        "r1 = map_value(6, 32) ll; r0 = 0; exit",
        "insn 0: r1 = map_value(6, 32) ll: bytes 32 to 33 of a value of map '.bss' are accessed, which has 32: check the offset first",
    ),
    (
        "map by descriptor",
        "r1 = map_fd(3) ll; r0 = 0; exit",
        "insn 0: r1 = map_fd(3) ll: map descriptors mean nothing here: refer to maps by index",
    ),
    (
        "kernel variable",
        "r1 = btf_id(3, 0) ll; r0 = 0; exit",
        "insn 0: r1 = btf_id(3, 0) ll: kernel variables cannot be used in a target: remove the reference",
    ),
    (
        "record not submitted",
        "RESERVE; r0 = 0; exit",
        "insn 8: exit: the record reserved at insn 4 is neither submitted nor discarded: do so on every path",
    ),
    (
        "record not submitted on one path",
        "r6 = *(u64 *)(r1 + 0); RESERVE; if r6 == 0 goto out; r1 = r0; r2 = 0; call 132; out: r0 = 0; exit",
        "insn 13: exit: the record reserved at insn 5 is neither submitted nor discarded: do so on every path",
    ),
    (
        "record used after it was submitted",
        "RESERVE; r6 = r0; r1 = r0; r2 = 0; call 132; *(u64 *)(r6 + 0) = 1; r0 = 0; exit",
        "insn 11: *(u64 *)(r6 + 0) = 1: the record that r6 pointed to was submitted or discarded: use it before",
    ),
    (
        "record submitted twice",
        "RESERVE; r6 = r0; r1 = r0; r2 = 0; call 132; r1 = r6; r2 = 0; call 132; r0 = 0; exit",
        "insn 11: r1 = r6: the record that r6 pointed to was submitted or discarded: use it before",
    ),
    (
        "record not checked",
        "r1 = map(2) ll; r2 = 16; r3 = 0; call 131; r1 = r0; r2 = 0; call 132; r0 = 0; exit",
        "insn 7: call ringbuf_submit#132: r1 may be null: check it first",
    ),
    (
        "record too short",
        "RESERVE; *(u64 *)(r0 + 16) = 1; r1 = r0; r2 = 0; call 132; r0 = 0; exit",
        "insn 7: *(u64 *)(r0 + 16) = 1: bytes 16 to 24 of a record of a ring are accessed, which has 16: check the offset first",
    ),
    (
        "record not from its start",
        "RESERVE; r1 = r0; r1 += 8; r2 = 0; call 132; r0 = 0; exit",
        "insn 10: call ringbuf_submit#132: r1 points into the record, not to its start: pass what ringbuf_reserve returned",
    ),
    (
        "record length not constant",
        "r2 = *(u64 *)(r1 + 0); r2 &= 15; r1 = map(2) ll; r3 = 0; call 131; r0 = 0; exit",
        "insn 5: call ringbuf_reserve#131: r2 must be a constant length, but is a number (0 to 15)",
    ),
    (
        "stack submitted",
        "r1 = r10; r2 = 0; call 132; r0 = 0; exit",
        "insn 2: call ringbuf_submit#132: r1 must be a reserved record of a ring, but is the stack",
    ),
    (
        "text that is not constant",
        "*(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; r2 = 8; r3 = r1; call 182; exit",
        "insn 5: call strncmp#182: r3 must be constant text in a read-only map, but is the stack",
    ),
    (
        "text without an end",
        "*(u64 *)(r10 - 8) = 0; r1 = r10; r1 += -8; r2 = 8; r3 = map_value(5, 6) ll; call 182; exit",
        "insn 6: call strncmp#182: r3 must be text that ends in a zero byte, in a read-only map",
    ),
    (
        "callback returns more",
        "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: r0 = 2; exit",
        "insn 8: exit: the callback returns the number 2: return 0 to go on, 1 to stop",
    ),
    (
        "callback returns anything",
        "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: r0 = r1; exit",
        "insn 8: exit: the callback returns a number (any number): return 0 to go on, 1 to stop",
    ),
    (
        "callback keeps a record",
        "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: RESERVE; r0 = 0; exit",
        "insn 15: exit: a callback must submit or discard what it reserves, and nothing else",
    ),
    (
        "callback has no third argument",
        "r1 = 10; r2 = func(sub) ll; r3 = 0; r4 = 0; call 181; exit; sub: r0 = r3; exit",
        "insn 7: r0 = r3: r3 has no value yet: set it first",
    ),
    (
        "callback gets a number",
        "r1 = 10; r2 = func(sub) ll; r3 = 8; r4 = 0; call 181; exit; sub: r0 = 0; exit",
        "insn 5: call loop#181: r3 must be a pointer to the stack, or null, but is the number 8",
    ),
    (
        "index grown by a callback",
        "*(u64 *)(r10 - 8) = 0; r1 = 10; r2 = func(sub) ll; r3 = r10; r3 += -8; r4 = 0; call 181; r6 = *(u64 *)(r10 - 8); SLOT; r0 += r6; w0 = *(u8 *)(r0 + 0); exit; sub: r3 = *(u64 *)(r2 + 0); r3 += 8; *(u64 *)(r2 + 0) = r3; r0 = 0; exit",
        "insn 17: r0 += r6: a value of map 'slots' is moved by any number, further than anything is long: bound the offset first",
    ),
    (
        "helper is no callback",
        "r1 = 10; r2 = 0; r3 = 0; r4 = 0; call 181; exit",
        "insn 4: call loop#181: r2 must be a function of the program, but is the number 0",
    ),
    (
        "null after all",
        "SLOT; r0 -= 4096; if r0 != 0 goto out; r0 = *(u64 *)(r9 + 0); out: r0 = 0; exit",
        "insn 10: r0 = *(u64 *)(r9 + 0): r9 has no value yet: set it first",
    ),
    (
        "cookie of no session",
        "*(u64 *)(r1 + 168) = 1; r0 = 0; exit",
        "insn 0: *(u64 *)(r1 + 168) = 1: the context is read-only: keep what changes in a map",
    ),
    (
        "behind the last entry of an array",
        "r1 = map_value(1, 512) ll; r0 = 0; exit",
        "insn 0: r1 = map_value(1, 512) ll: bytes 512 to 513 of a value of map 'slots' are accessed, which has 512: check the offset first",
    ),
    (
        "from one entry of an array into the next",
        "r1 = map_value(1, 120) ll; r0 = *(u64 *)(r1 + 8); exit",
        "insn 2: r0 = *(u64 *)(r1 + 8): bytes 64 to 72 of a value of map 'slots' are accessed, which has 64: check the offset first",
    ),
    (
        "address that only linking knows",
        "r1 = thread(8) ll; r0 = 0; exit",
        "insn 0: r1 = thread(8) ll: addresses in a thread's memory come from linking: refer to a value of a map",
    ),
    (
        "used after a part was submitted",
        "RESERVE; r6 = r0; r1 = r0; r2 = 8; r3 = 0; call 257; *(u64 *)(r6 + 0) = 1; r0 = 0; exit",
        "insn 12: *(u64 *)(r6 + 0) = 1: the record that r6 pointed to was submitted or discarded: use it before",
    ),
];
