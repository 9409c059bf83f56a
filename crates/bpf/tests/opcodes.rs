//! Each operation with known results: interpreted, native and in the kernel.

mod run;

use run::kernel::Kernel;
use run::{Buffer, agree};
use sidestep_bpf::{Program, assemble};

/// What a function leaves in `r0`, given the buffer in `r1`: zeros but for the first word,
/// 0x8877665544332211.
const RESULTS: &[(&str, u64)] = &[
    // Moves and constants.
    ("r0 = -1", u64::MAX),
    ("w0 = -1", 0xffff_ffff),
    ("r0 = 0x123456789abcdef0 ll", 0x1234_5678_9abc_def0),
    ("r0 = -2 ll", u64::MAX - 1),
    ("r2 = -1; w0 = w2", 0xffff_ffff),
    ("r2 = 0x80 ; r0 = (s8)r2", 0xffff_ffff_ffff_ff80),
    ("r2 = 0x80 ; w0 = (s8)w2", 0xffff_ff80),
    ("r2 = 0x18000 ; r0 = (s16)r2", 0xffff_ffff_ffff_8000),
    ("r2 = 0x18000 ; w0 = (s16)w2", 0xffff_8000),
    ("r2 = 0x180000000 ll; r0 = (s32)r2", 0xffff_ffff_8000_0000),
    // Arithmetic.
    ("r0 = 5; r0 += -7", u64::MAX - 1),
    ("r0 = 5; w0 += -7", 0xffff_fffe),
    ("r0 = 1 ll; r0 <<= 32; w0 += 0", 0),
    ("r0 = 5; r2 = 7; r0 -= r2", u64::MAX - 1),
    ("r0 = 5; r2 = 7; w0 -= w2", 0xffff_fffe),
    ("r0 = 0x100000001 ll; r2 = 3; r0 *= r2", 0x3_0000_0003),
    ("r0 = 0x100000001 ll; w0 *= 3", 3),
    ("r0 = 6; r0 *= -300", (-1800i64) as u64),
    ("r0 = -7; r0 /= 2", 0x7fff_ffff_ffff_fffc),
    ("r0 = -7; w0 /= 2", 0x7fff_fffc),
    ("r0 = -7; r0 /= 3", u64::MAX / 3 - 2),
    ("r0 = -7; r0 s/= 2", (-3i64) as u64),
    ("r0 = -7; w0 s/= 2", 0xffff_fffd),
    ("r0 = 7; r2 = 0; r0 /= r2", 0),
    ("r0 = 7; r2 = 0; r0 s/= r2", 0),
    ("r0 = 0x700000007 ll; r2 = 0x100000000 ll; w0 %= w2", 7),
    ("r0 = 0x700000007 ll; r2 = 0; r0 %= r2", 0x7_0000_0007),
    ("r0 = -7; r2 = 0; w0 s%= w2", 0xffff_fff9),
    ("r0 = 0x8000000000000000 ll; r2 = -1; r0 s/= r2", 1 << 63),
    ("r0 = 0x8000000000000000 ll; r2 = -1; r0 s%= r2", 0),
    ("r0 = 0x80000000 ll; w2 = -1; w0 s/= w2", 1 << 31),
    ("r0 = 0x8000000000000000 ll; r0 s/= -1", 1 << 63),
    ("r0 = -7; r0 s%= 3", u64::MAX),
    ("r0 = -7; r0 s%= -1", 0),
    ("r0 = -7; r0 %= 16", 9),
    ("r0 = -7; w0 %= 7", 4),
    ("r0 = 1000; r3 = 9; r4 = 7; r0 /= r4; r0 += r3", 151),
    ("r3 = 1000; r0 = 9; r4 = 7; r3 %= r4; r0 += r3", 15),
    ("r4 = 1000; r0 = 9; r3 = 7; r4 /= r3; r0 += r3; r0 += r4", 158),
    ("r0 = 3; r3 = 100; r3 /= r0; r0 += r3", 36),
    ("r4 = 100; r3 = 5; r0 = 2; r4 /= 7; r0 += r3; r0 += r4", 21),
    // Bits.
    ("r0 = 0xf0; r0 |= 0x0f", 0xff),
    ("r0 = -1; w0 |= 0", 0xffff_ffff),
    ("r0 = -1; r0 &= 0x7ffffff0", 0x7fff_fff0),
    ("r0 = -1; r0 &= -16", u64::MAX - 15),
    ("r0 = -1; r0 ^= -1", 0),
    ("r0 = -1; w0 ^= 1", 0xffff_fffe),
    ("r0 = 1; r0 = -r0", u64::MAX),
    ("r0 = 1; w0 = -w0", 0xffff_ffff),
    ("r0 = 1; r0 <<= 63", 1 << 63),
    ("r0 = -1; w0 <<= 4", 0xffff_fff0),
    ("r0 = -1; w0 <<= 0", 0xffff_ffff),
    ("r0 = -1; r0 >>= 60", 15),
    ("r0 = -1; w0 >>= 28", 15),
    ("r0 = -16; r0 s>>= 2", (-4i64) as u64),
    ("r0 = 0x80000000 ll; w0 s>>= 31", 0xffff_ffff),
    ("r0 = 1; r2 = 65; r0 <<= r2", 2),
    ("r0 = -1; r2 = 32; w0 >>= w2", 0xffff_ffff),
    ("r0 = 1; r4 = 3; r0 <<= r4; r0 += r4", 11),
    ("r4 = 1; r0 = 3; r4 <<= r0; r0 += r4", 11),
    ("r4 = 3; r4 <<= r4; r0 = r4", 24),
    ("r4 = 9; r0 = -8; r2 = 1; r0 s>>= r2; r0 += r4", 5),
    // Byte order.
    ("r0 = 0x1122334455667788 ll; r0 = le16 r0", 0x7788),
    ("r0 = 0x1122334455667788 ll; r0 = le32 r0", 0x5566_7788),
    ("r0 = 0x1122334455667788 ll; r0 = le64 r0", 0x1122_3344_5566_7788),
    ("r0 = 0x1122334455667788 ll; r0 = be16 r0", 0x8877),
    ("r0 = 0x1122334455667788 ll; r0 = be32 r0", 0x8877_6655),
    ("r0 = 0x1122334455667788 ll; r0 = be64 r0", 0x8877_6655_4433_2211),
    ("r0 = 0x1122334455667788 ll; r0 = bswap16 r0", 0x8877),
    ("r0 = 0x1122334455667788 ll; r0 = bswap32 r0", 0x8877_6655),
    ("r0 = 0x1122334455667788 ll; r0 = bswap64 r0", 0x8877_6655_4433_2211),
    // Memory.
    ("r0 = *(u8 *)(r1 + 7)", 0x88),
    ("r0 = *(u16 *)(r1 + 6)", 0x8877),
    ("r0 = *(u32 *)(r1 + 4)", 0x8877_6655),
    ("r0 = *(u64 *)(r1 + 0)", 0x8877_6655_4433_2211),
    ("r0 = *(s8 *)(r1 + 7)", 0xffff_ffff_ffff_ff88),
    ("r0 = *(s16 *)(r1 + 6)", 0xffff_ffff_ffff_8877),
    ("r0 = *(s32 *)(r1 + 4)", 0xffff_ffff_8877_6655),
    ("*(u64 *)(r1 + 8) = -2; r0 = *(u64 *)(r1 + 8)", u64::MAX - 1),
    ("*(u32 *)(r1 + 8) = -2; r0 = *(u64 *)(r1 + 8)", 0xffff_fffe),
    ("*(u16 *)(r1 + 8) = -2; r0 = *(u64 *)(r1 + 8)", 0xfffe),
    ("*(u8 *)(r1 + 8) = -2; r0 = *(u64 *)(r1 + 8)", 0xfe),
    ("r2 = -1; *(u8 *)(r1 + 9) = r2; r0 = *(u64 *)(r1 + 8)", 0xff00),
    ("r2 = -1; *(u16 *)(r1 + 10) = r2; r0 = *(u64 *)(r1 + 8)", 0xffff_0000),
    ("r2 = -1; *(u32 *)(r1 + 12) = r2; r0 = *(u64 *)(r1 + 8)", 0xffff_ffff_0000_0000),
    ("r2 = 77; *(u64 *)(r10 - 256) = r2; r0 = *(u64 *)(r10 - 256)", 77),
    ("r2 = 77; *(u64 *)(r10 - 8) = r2; r3 = r10; r3 += -8; r0 = *(u64 *)(r3 + 0)", 77),
    ("*(u64 *)(r10 - 8) = r10; r2 = *(u64 *)(r10 - 8); r0 = 1; if r2 == r10 goto +1; r0 = 2", 1),
    // Atomics. LLVM's names; the buffer's second word is 0.
    ("r2 = 5; lock *(u64 *)(r1 + 0) += r2; r0 = *(u64 *)(r1 + 0)", 0x8877_6655_4433_2216),
    ("r2 = 5; lock *(u32 *)(r1 + 4) += w2; r0 = *(u64 *)(r1 + 0)", 0x8877_665a_4433_2211),
    ("r2 = 0xff; lock *(u64 *)(r1 + 0) |= r2; r0 = *(u64 *)(r1 + 0)", 0x8877_6655_4433_22ff),
    ("r2 = 0xf0; lock *(u64 *)(r1 + 0) &= r2; r0 = *(u64 *)(r1 + 0)", 0x10),
    ("r2 = 0xff; lock *(u32 *)(r1 + 0) ^= w2; r0 = *(u64 *)(r1 + 0)", 0x8877_6655_4433_22ee),
    ("r0 = 5; r0 = atomic_fetch_add((u64 *)(r1 + 0), r0)", 0x8877_6655_4433_2211),
    ("r0 = -1; w0 = atomic_fetch_add((u32 *)(r1 + 4), w0)", 0x8877_6655),
    ("r2 = 1; r2 = atomic_fetch_add((u64 *)(r1 + 0), r2); r0 = *(u64 *)(r1 + 0); r0 -= r2", 1),
    ("r0 = 9; r2 = 0xff; r2 = atomic_fetch_or((u64 *)(r1 + 0), r2); r2 &= 0xff; r0 += r2", 0x1a),
    ("r0 = 15; r0 = atomic_fetch_and((u64 *)(r1 + 0), r0); r0 = *(u64 *)(r1 + 0)", 1),
    ("r0 = -1; w0 = atomic_fetch_xor((u32 *)(r1 + 4), w0)", 0x8877_6655),
    ("r0 = 3; r2 = -1; w2 = atomic_fetch_xor((u32 *)(r1 + 4), w2); r0 = *(u64 *)(r1 + 0)", 0x7788_99aa_4433_2211),
    ("r0 = r1; r2 = 1; r2 = atomic_fetch_xor((u64 *)(r0 + 0), r2); r0 = *(u64 *)(r0 + 0)", 0x8877_6655_4433_2210),
    ("r0 = 5; r0 = xchg_64(r1 + 0, r0)", 0x8877_6655_4433_2211),
    ("r0 = -1; w0 = xchg32_32(r1 + 4, w0)", 0x8877_6655),
    ("r2 = -1; w2 = xchg32_32(r1 + 4, w2); r0 = *(u64 *)(r1 + 0)", 0xffff_ffff_4433_2211),
    ("r0 = 0; r2 = 6; r0 = cmpxchg_64(r1 + 8, r0, r2); r3 = *(u64 *)(r1 + 8); r0 += r3", 6),
    ("r0 = 1; r2 = 6; r0 = cmpxchg_64(r1 + 0, r0, r2); r3 = *(u64 *)(r1 + 0); r0 -= r3", 0),
    ("r0 = 0x900000000 ll; r2 = 6; w0 = cmpxchg32_32(r1 + 8, w0, w2)", 0),
    ("r0 = -1; r2 = 6; w0 = cmpxchg32_32(r1 + 4, w0, w2)", 0x8877_6655),
    // Jumps.
    ("r0 = 1; r2 = *(u8 *)(r1 + 8); if r2 != 0 goto two; goto out; two: r0 = 2; out: r0 += 0", 1),
    ("r0 = 1; r2 = *(u8 *)(r1 + 8); if r2 == 0 goto two; gotol out; two: r0 = 2; out: r0 += 0", 2),
    ("r0 = 1; r2 = *(u8 *)(r1 + 8); goto +1; back: goto +2; if r2 == 0 goto back; exit; r0 = 9", 9),
    ("r0 = 0; r2 = 10; again: r0 += r2; r2 += -1; if r2 != 0 goto again", 55),
    // Calls: each function has registers and a stack of its own.
    ("r6 = 5; r1 = 3; call double; r0 += r6; exit; double: r6 = r1; r6 += r6; r0 = r6", 11),
    (
        "r6 = r10; r6 += -64; *(u64 *)(r6 + 0) = 77; call own; r0 = *(u64 *)(r6 + 0); exit;
      own: r1 = r10; r1 += -64; r2 = 8; next: *(u64 *)(r1 + 0) = 1; r1 += 8; r2 += -1; if r2 != 0 goto next; r0 = 0",
        77,
    ),
    (
        "r1 = 1; r2 = 2; r3 = 3; r4 = 4; r5 = 5; call five; exit;
      five: r0 = r1; r0 *= 10; r0 += r2; r0 *= 10; r0 += r3; r0 *= 10; r0 += r4; r0 *= 10; r0 += r5",
        12345,
    ),
    (
        "*(u64 *)(r10 - 8) = 1; call own; r1 = *(u64 *)(r10 - 8); r0 += r1; exit;
      own: *(u64 *)(r10 - 8) = 2; r0 = *(u64 *)(r10 - 8)",
        3,
    ),
];

/// Slot of the buffer that the result goes to.
const RESULT: usize = 31;

/// Calls the text as a function, and stores what it gives.
fn program(text: &str) -> Program {
    let body = text.replace(';', "\n");
    let wrapped = format!(
        "r1 = map_fd_value(0, 0) ll
         call body
         r2 = map_fd_value(0, 248) ll
         *(u64 *)(r2 + 0) = r0
         r0 = 0
         exit
         body: {body}
         exit"
    );
    assemble(&wrapped).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn buffer() -> Buffer {
    let mut buffer = [0; 32];
    buffer[0] = 0x8877_6655_4433_2211;
    buffer
}

#[test]
fn known_results_interpreted_and_native() {
    for (text, want) in RESULTS {
        let (_, after) = agree(&program(text), &buffer());
        assert_eq!(after[RESULT], *want, "{text}: {:#x} instead of {want:#x}", after[RESULT]);
    }
}

#[test]
fn known_results_on_arm64() {
    if !run::a64::has_tools() {
        return;
    }
    let mut cases: Vec<(Program, Buffer)> = RESULTS.iter().map(|(text, _)| (program(text), buffer())).collect();
    let mut wanted: Vec<u64> = RESULTS.iter().map(|(_, want)| *want).collect();
    let (text, want) = conditions();
    cases.extend(text.split_inclusive("exit\n").map(|body| (compared(body), buffer())));
    wanted.extend(want);
    for ((_, after), (want, (program, _))) in run::a64::agree(&cases).iter().zip(wanted.iter().zip(&cases)) {
        assert_eq!(after[RESULT], *want, "{}", run::listing(program));
    }
}

#[test]
fn known_results_in_the_kernel() {
    let Some(kernel) = Kernel::new() else { return };
    for (text, want) in RESULTS {
        let mut after = buffer();
        kernel.run(&program(text), &mut after).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(after[RESULT], *want, "{text}: {:#x} instead of {want:#x}", after[RESULT]);
    }
}

/// Values on both sides of every boundary of both widths.
const VALUES: [u64; 9] =
    [0, 1, 5, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1_0000_0000, 0x7fff_ffff_ffff_ffff, u64::MAX];

type Compare = fn(u64, u64) -> bool;

const CONDITIONS: [(&str, Compare); 11] = [
    ("==", |a, b| a == b),
    ("!=", |a, b| a != b),
    (">", |a, b| a > b),
    (">=", |a, b| a >= b),
    ("<", |a, b| a < b),
    ("<=", |a, b| a <= b),
    ("s>", |a, b| a as i64 > b as i64),
    ("s>=", |a, b| a as i64 >= b as i64),
    ("s<", |a, b| (a as i64) < b as i64),
    ("s<=", |a, b| a as i64 <= b as i64),
    ("&", |a, b| a & b != 0),
];

/// All conditions in both widths, with a register and with an immediate; bit `n` of the result is
/// the `n`th.
fn conditions() -> (String, Vec<u64>) {
    let (mut text, mut want) = (String::new(), Vec::new());
    for (a, b) in VALUES.iter().flat_map(|&a| VALUES.map(|b| (a, b))) {
        let (mut bits, mut n) = (0, 0);
        text += "r9 = 0\n";
        for (sign, compare) in CONDITIONS {
            let halves = if sign.starts_with('s') {
                (a as i32 as u64, b as i32 as u64)
            } else {
                (a & 0xffff_ffff, b & 0xffff_ffff)
            };
            let imm = b as i32;
            for (left, right, holds) in [
                ("r3".to_owned(), "r4".to_owned(), compare(a, b)),
                ("w3".to_owned(), "w4".to_owned(), compare(halves.0, halves.1)),
                ("r3".to_owned(), imm.to_string(), compare(a, imm as u64)),
                ("w3".to_owned(), imm.to_string(), compare(halves.0, halves.1)),
            ] {
                bits |= u64::from(holds) << n;
                text += &format!(
                    "r3 = {a} ll\n r4 = {b} ll\n r5 = {} ll\n if {left} {sign} {right} goto +1\n r5 = 0\n r9 |= r5\n",
                    1u64 << n
                );
                n += 1;
            }
        }
        text += "r2 = r1\n r2 += 248\n *(u64 *)(r2 + 0) = r9\n exit\n";
        want.push(bits);
    }
    (text, want)
}

/// A program that compares.
fn compared(body: &str) -> Program {
    assemble(&format!("r1 = map_fd_value(0, 0) ll\n r0 = 0\n {body}")).unwrap()
}

#[test]
fn conditions_compare_as_rust_does() {
    let kernel = Kernel::new();
    let (text, want) = conditions();
    for (body, want) in text.split_inclusive("exit\n").zip(want) {
        let program = compared(body);
        let (_, after) = agree(&program, &buffer());
        assert_eq!(after[RESULT], want, "{body}");
        if let Some(kernel) = &kernel {
            let mut after = buffer();
            kernel.run(&program, &mut after).unwrap();
            assert_eq!(after[RESULT], want, "{body}");
        }
    }
}
