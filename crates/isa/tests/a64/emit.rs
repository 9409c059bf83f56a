//! Each function of the assembler gives what LLVM's assembler gives.

use sidestep_isa::Va;
use sidestep_isa::a64::emit::{self, Address, Asm, Barrier, Cond, EncodeError, Encoded, Reg, Size, system};

use crate::oracle::{Rng, assemble, has_llvm};

const AT: Va = Va(0x40_0000);

fn x(number: u8) -> Reg {
    Reg::x(number).expect("a register")
}

/// What is compared: some words and their assembly.
#[derive(Default)]
struct Cases {
    words: Vec<u32>,
    source: Vec<String>,
}

impl Cases {
    fn add(&mut self, word: Encoded, source: impl Into<String>) {
        let source = source.into();
        self.words.push(word.unwrap_or_else(|error| panic!("{source}: {error}")));
        self.source.push(source);
    }

    fn compare(&self) {
        let expected = assemble(&self.source.join("\n"), AT.0);
        assert_eq!(expected.len(), self.words.len());
        for ((word, expected), source) in self.words.iter().zip(expected).zip(&self.source) {
            assert_eq!(*word, expected, "{source}: {word:08x} and {expected:08x}");
        }
    }
}

/// A register's name where 31 is the zero register.
fn name(register: Reg) -> String {
    (0..31)
        .find(|number| x(*number) == register)
        .map_or_else(|| if register == Reg::SP { "sp" } else { "xzr" }.to_owned(), |number| format!("x{number}"))
}

#[test]
fn words_are_those_of_llvm() {
    if !has_llvm(4000) {
        return;
    }
    let mut rng = Rng(5);
    let mut cases = Cases::default();
    for _ in 0..100 {
        branches(&mut rng, &mut cases);
        sums(&mut rng, &mut cases);
        arithmetic(&mut rng, &mut cases);
        accesses(&mut rng, &mut cases);
    }
    fixed(&mut cases);
    cases.compare();
}

fn any(rng: &mut Rng) -> Reg {
    Reg::x(rng.below(32) as u8).unwrap_or(Reg::ZERO)
}

fn branches(rng: &mut Rng, cases: &mut Cases) {
    let (r, bit) = (any(rng), rng.below(64) as u32);
    let n = name(r);
    // Distances, since the assembler does not know where the code lies.
    let mut to = |bits: u32| {
        let distance = (rng.next() as i64) >> (64 - bits) << 2;
        (Va(0x8000_0000), Va(0x8000_0000).offset(distance), format!(".+({distance})"))
    };
    let (from, target, text) = to(26);
    cases.add(emit::b(from, target), format!("b {text}"));
    let (from, target, text) = to(26);
    cases.add(emit::bl(from, target), format!("bl {text}"));
    let conditions = [
        Cond::Eq,
        Cond::Ne,
        Cond::Cs,
        Cond::Cc,
        Cond::Mi,
        Cond::Pl,
        Cond::Vs,
        Cond::Vc,
        Cond::Hi,
        Cond::Ls,
        Cond::Ge,
        Cond::Lt,
        Cond::Gt,
        Cond::Le,
    ];
    for condition in conditions {
        let (from, target, text) = to(19);
        cases.add(emit::b_cond(condition, from, target), format!("b.{condition} {text}"));
    }
    let (from, target, text) = to(19);
    cases.add(emit::cbz(r, from, target), format!("cbz {n}, {text}"));
    cases.add(emit::cbnz(r, from, target), format!("cbnz {n}, {text}"));
    cases.add(emit::ldr_literal(r, from, target), format!("ldr {n}, {text}"));
    let (from, target, text) = to(14);
    cases.add(emit::tbz(r, bit, from, target), format!("tbz {n}, #{bit}, {text}"));
    cases.add(emit::tbnz(r, bit, from, target), format!("tbnz {n}, #{bit}, {text}"));
    cases.add(emit::br(r), format!("br {n}"));
    cases.add(emit::blr(r), format!("blr {n}"));
    cases.add(emit::ret(r), format!("ret {n}"));
    let distance = (rng.next() as i64) >> 43;
    cases.add(emit::adr(r, Va(0x8000_0000), Va(0x8000_0000).offset(distance)), format!("adr {n}, #{distance}"));
    let pages = ((rng.next() as i64) >> 43) << 12;
    let (from, inside) = (Va(0x2_0000_0123), rng.below(4096) as i64);
    let to = Va(0x2_0000_0000).offset(pages + inside);
    cases.add(emit::adrp(r, from, to), format!("adrp {n}, #{pages}"));
}

fn sums(rng: &mut Rng, cases: &mut Cases) {
    let [d, n, m] = [any(rng), any(rng), any(rng)];
    let text = [d, n, m].map(name);
    let [a, b] = [rng.below(31) as u8, rng.below(31) as u8].map(x);
    let value = if rng.below(2) == 0 { rng.below(4096) } else { rng.below(4096) << 12 } as i64;
    let of = |one: &str, to: Reg, from: Reg| format!("{one} {}, {}, #{value}", name(to), name(from));
    for (to, from) in [(a, b), (Reg::SP, b), (a, Reg::SP), (Reg::SP, Reg::SP)] {
        cases.add(emit::add_imm(to, from, value), of("add", to, from));
        cases.add(emit::sub_imm(to, from, value), of("sub", to, from));
        cases.add(emit::mov(to, from), format!("mov {}, {}", name(to), name(from)));
    }
    cases.add(emit::subs_imm(d, b, value), of("subs", d, b));
    cases.add(emit::cmp_imm(Reg::SP, value), format!("cmp sp, #{value}"));
    let three = format!("{}, {}, {}", text[0], text[1], text[2]);
    cases.add(emit::add(d, n, m), format!("add {three}"));
    cases.add(emit::sub(d, n, m), format!("sub {three}"));
    cases.add(emit::and(d, n, m), format!("and {three}"));
    cases.add(emit::orr(d, n, m), format!("orr {three}"));
    cases.add(emit::eor(d, n, m), format!("eor {three}"));
    cases.add(emit::cmp(n, m), format!("cmp {}, {}", text[1], text[2]));
    let by = rng.below(64) as u32;
    cases.add(emit::lsl_imm(d, n, by), format!("lsl {}, {}, #{by}", text[0], text[1]));
    cases.add(emit::lsr_imm(d, n, by), format!("lsr {}, {}, #{by}", text[0], text[1]));
    cases.add(emit::add_shifted(d, n, m, by), format!("add {three}, lsl #{by}"));
    cases.add(emit::mul(d, n, m), format!("mul {three}"));
    let width = rng.below(u64::from(64 - by)) as u32 + 1;
    cases.add(emit::ubfx(d, n, by, width), format!("ubfx {}, {}, #{by}, #{width}", text[0], text[1]));
    let (value, quarter) = (rng.word() as u16, rng.below(4) as u32);
    for (name, word) in [
        ("movz", emit::movz(d, value, quarter)),
        ("movn", emit::movn(d, value, quarter)),
        ("movk", emit::movk(d, value, quarter)),
    ] {
        cases.add(word, format!("{name} {}, #{value}, lsl #{}", text[0], 16 * quarter));
    }
}

fn arithmetic(rng: &mut Rng, cases: &mut Cases) {
    let all @ [d, n, m, a] = [any(rng), any(rng), any(rng), any(rng)];
    let wide = all.map(name);
    let short = wide.clone().map(|name| name.replace('x', "w"));
    let (base, value) = (x(rng.below(31) as u8), rng.below(4096) as i64);
    let (by, half) = (rng.below(64) as u32, rng.below(32) as u32);
    let (width, half_width) = (rng.below(u64::from(64 - by)) as u32 + 1, rng.below(u64::from(32 - half)) as u32 + 1);
    // Operations that are the same in both widths.
    for (names, narrow) in [(&wide, false), (&short, true)] {
        let form = |word: Encoded| if narrow { emit::narrow(word) } else { word };
        let [td, tn, tm, ta] = names;
        let three = format!("{td}, {tn}, {tm}");
        let mut add = |word: Encoded, text: String| cases.add(form(word), text);
        add(emit::udiv(d, n, m), format!("udiv {three}"));
        add(emit::sdiv(d, n, m), format!("sdiv {three}"));
        add(emit::msub(d, n, m, a), format!("msub {three}, {ta}"));
        add(emit::lsl(d, n, m), format!("lsl {three}"));
        add(emit::lsr(d, n, m), format!("lsr {three}"));
        add(emit::asr(d, n, m), format!("asr {three}"));
        add(emit::neg(d, m), format!("neg {td}, {tm}"));
        add(emit::tst(n, m), format!("tst {tn}, {tm}"));
        add(emit::clz(d, n), format!("clz {td}, {tn}"));
        add(emit::rev16(d, n), format!("rev16 {td}, {tn}"));
        add(emit::add(d, n, m), format!("add {three}"));
        add(emit::mul(d, n, m), format!("mul {three}"));
        add(emit::orr(d, Reg::ZERO, m), format!("mov {td}, {tm}"));
        let base_name = if narrow { name(base).replace('x', "w") } else { name(base) };
        add(emit::cmn_imm(base, value), format!("cmn {base_name}, #{value}"));
        add(emit::cmp_imm(base, value), format!("cmp {base_name}, #{value}"));
        let (by, width) = if narrow { (half, half_width) } else { (by, width) };
        add(emit::sbfx(d, n, by, width), format!("sbfx {td}, {tn}, #{by}, #{width}"));
        add(emit::extr(d, n, m, by), format!("extr {three}, #{by}"));
        let mask = mask(rng, if narrow { 32 } else { 64 });
        let text = if narrow { mask & 0xffff_ffff } else { mask };
        add(emit::and_mask(base, n, mask), format!("and {base_name}, {tn}, #{text:#x}"));
        add(emit::orr_mask(base, n, mask), format!("orr {base_name}, {tn}, #{text:#x}"));
        add(emit::eor_mask(base, n, mask), format!("eor {base_name}, {tn}, #{text:#x}"));
        add(emit::tst_mask(n, mask), format!("tst {tn}, #{text:#x}"));
    }
    cases.add(emit::umulh(d, n, m), format!("umulh {}, {}, {}", wide[0], wide[1], wide[2]));
    cases.add(emit::ubfiz(d, n, by, width), format!("ubfiz {}, {}, #{by}, #{width}", wide[0], wide[1]));
    cases.add(emit::rev(d, n), format!("rev {}, {}", wide[0], wide[1]));
    cases.add(emit::rev32(d, n), format!("rev32 {}, {}", wide[0], wide[1]));
    cases.add(emit::narrow(emit::rev32(d, n)), format!("rev {}, {}", short[0], short[1]));
    let to = Va(0x8000_0000).offset(rng.below(1 << 18) as i64 * 4);
    let distance = to.since(Va(0x8000_0000));
    let word = emit::narrow(emit::cbnz(n, Va(0x8000_0000), to));
    cases.add(word, format!("cbnz {}, .+({distance})", short[1]));
    for (size, text) in [(Size::Byte, "ldrsb"), (Size::Half, "ldrsh"), (Size::Word, "ldrsw")] {
        let distance = (rng.below(4096) << size as u32) as i64;
        let word = emit::ldrs(size, d, Address::with(base, distance));
        cases.add(word, format!("{text} {}, [{}, #{distance}]", wide[0], name(base)));
    }
}

/// A run of ones, rotated and repeated.
fn mask(rng: &mut Rng, bits: u32) -> u64 {
    let sizes = [2, 4, 8, 16, 32, 64];
    let size = sizes[rng.below(if bits == 32 { 5 } else { 6 }) as usize];
    let ones = u64::MAX >> (65 - size + rng.below(size - 1));
    let repeated = (0..64).step_by(size as usize).fold(0, |all, at| all | ones << at);
    repeated.rotate_left(rng.below(64) as u32)
}

fn accesses(rng: &mut Rng, cases: &mut Cases) {
    let (r, base) = (any(rng), if rng.below(4) == 0 { Reg::SP } else { x(rng.below(31) as u8) });
    let sizes = [(Size::Byte, "b"), (Size::Half, "h"), (Size::Word, ""), (Size::Double, "")];
    for (size, suffix) in sizes {
        let log = size as u32;
        let of = |register: Reg| match size {
            Size::Double => name(register),
            _ => name(register).replace('x', "w"),
        };
        let scaled = (rng.below(4096) << log) as i64;
        let small = rng.below(512) as i64 - 256;
        // Of distances that both forms have, the assembler takes the one with units.
        let (distance, unscaled) = if rng.below(2) == 0 { (scaled, "") } else { (small, "u") };
        let fits = small >= 0 && small & ((1 << log) - 1) == 0;
        let u = if fits { "" } else { unscaled };
        let text = format!("{}, [{}, #{distance}]", of(r), name(base));
        cases.add(emit::ldr(size, r, Address::with(base, distance)), format!("ld{u}r{suffix} {text}"));
        cases.add(emit::str(size, r, Address::with(base, distance)), format!("st{u}r{suffix} {text}"));
        if r != base {
            let text = format!("{}, [{}, #{small}]!", of(r), name(base));
            cases.add(emit::ldr(size, r, Address::before(base, small)), format!("ldr{suffix} {text}"));
            let text = format!("{}, [{}], #{small}", of(r), name(base));
            cases.add(emit::str(size, r, Address::after(base, small)), format!("str{suffix} {text}"));
        }
        let text = format!("{}, [{}]", of(r), name(base));
        cases.add(emit::ldar(size, r, base), format!("ldar{suffix} {text}"));
        cases.add(emit::stlr(size, r, base), format!("stlr{suffix} {text}"));
        cases.add(emit::ldxr(size, r, base), format!("ldxr{suffix} {text}"));
        cases.add(emit::ldaxr(size, r, base), format!("ldaxr{suffix} {text}"));
        let status = any(rng);
        if status != r && status != base {
            let all = format!("{}, {text}", name(status).replace('x', "w"));
            cases.add(emit::stxr(size, status, r, base), format!("stxr{suffix} {all}"));
            cases.add(emit::stlxr(size, status, r, base), format!("stlxr{suffix} {all}"));
        }
        let all = format!("{}, {text}", of(status));
        // With the zero register as destination they have another name.
        if r != Reg::ZERO {
            cases.add(emit::ldadd(size, status, r, base), format!("ldadd{suffix} {all}"));
            cases.add(emit::swp(size, status, r, base), format!("swp{suffix} {all}"));
        }
    }
    let (second, offset) = (any(rng), (rng.below(128) as i64 - 64) * 8);
    if r != second && r != base && second != base {
        let (pair, at) = (format!("{}, {}", name(r), name(second)), name(base));
        cases.add(emit::ldp(r, second, Address::with(base, offset)), format!("ldp {pair}, [{at}, #{offset}]"));
        cases.add(emit::stp(r, second, Address::with(base, offset)), format!("stp {pair}, [{at}, #{offset}]"));
        cases.add(emit::stp(r, second, Address::before(base, offset)), format!("stp {pair}, [{at}, #{offset}]!"));
        cases.add(emit::ldp(r, second, Address::after(base, offset)), format!("ldp {pair}, [{at}], #{offset}"));
    }
    let (q, p) = (rng.below(31) as u8, 31);
    let (wide, at) = (offset * 2, name(base));
    cases.add(emit::ldp_vector(q, p, Address::with(base, wide)), format!("ldp q{q}, q{p}, [{at}, #{wide}]"));
    cases.add(emit::stp_vector(q, p, Address::before(base, wide)), format!("stp q{q}, q{p}, [{at}, #{wide}]!"));
    let far = rng.below(4096) as i64 * 16;
    cases.add(emit::ldr_vector(q, Address::with(base, far)), format!("ldr q{q}, [{at}, #{far}]"));
    cases.add(emit::str_vector(q, Address::before(base, -16)), format!("str q{q}, [{at}, #-16]!"));
    cases.add(emit::str_half_vector(q, Address::with(base, far / 2)), format!("str d{q}, [{at}, #{}]", far / 2));
}

fn fixed(cases: &mut Cases) {
    let r = x(7);
    for (number, name) in
        [(system::NZCV, "nzcv"), (system::FPCR, "fpcr"), (system::FPSR, "fpsr"), (system::TPIDR_EL0, "tpidr_el0")]
    {
        cases.add(emit::mrs(r, number), format!("mrs x7, {name}"));
        cases.add(emit::msr(number, r), format!("msr {name}, x7"));
    }
    cases.add(emit::mrs(r, system::CNTVCT_EL0), "mrs x7, cntvct_el0");
    let words = [
        (emit::nop(), "nop"),
        (emit::brk(0x1234), "brk #0x1234"),
        (emit::svc(), "svc #0"),
        (emit::bti(false, false), "bti"),
        (emit::bti(true, false), "bti c"),
        (emit::bti(false, true), "bti j"),
        (emit::bti(true, true), "bti jc"),
        (emit::dmb(Barrier::All), "dmb ish"),
        (emit::dmb(Barrier::Loads), "dmb ishld"),
        (emit::dmb(Barrier::Stores), "dmb ishst"),
    ];
    for (word, source) in words {
        cases.add(Ok(word), source);
    }
}

#[test]
fn constants_are_what_the_moves_make() {
    let mut rng = Rng(3);
    for round in 0..20_000 {
        let value = match round % 4 {
            0 => rng.next(),
            1 => rng.next() >> 16,
            2 => rng.next() | 0xffff_0000_ffff_0000,
            _ => rng.next() & 0xffff_0000_0000_ffff,
        };
        let words = emit::mov_constant(x(3), value).expect("moves");
        assert_eq!(moved(&words), value, "{value:#x}");
        assert!(words.len() <= 4);
        let address = if round % 2 == 0 { value >> 16 } else { value | 0xffff << 48 };
        let words = emit::mov_address(x(3), address).expect("three moves");
        assert_eq!(moved(&words), address, "{address:#x}");
    }
    assert_eq!(emit::mov_constant(x(3), 0).expect("a move").len(), 1);
    assert!(emit::mov_address(x(3), 0x1234_0000_0000_0000).is_err());
}

/// What some moves leave in their register.
fn moved(words: &[u32]) -> u64 {
    words.iter().fold(0xdead_beef, |before, word| {
        let (value, shift) = (u64::from(word >> 5 & 0xffff), 16 * (word >> 21 & 3));
        assert_eq!(word & 31, 3);
        match word >> 29 {
            0b110 => value << shift,
            0b100 => !(value << shift),
            _ => before & !(0xffff << shift) | value << shift,
        }
    })
}

#[test]
fn what_has_no_encoding_is_an_error() {
    let far = AT.offset(1 << 27);
    assert!(emit::b(AT, far).is_err() && emit::b(AT, far.offset(-4)).is_ok());
    assert!(emit::b(AT, AT.offset(-(1 << 27))).is_ok() && emit::b(AT, AT.offset(-(1 << 27) - 4)).is_err());
    assert!(emit::b(AT, AT.offset(2)).is_err(), "no multiple of 4");
    assert!(emit::b_cond(Cond::Eq, AT, AT.offset(1 << 20)).is_err());
    assert!(emit::tbz(x(0), 3, AT, AT.offset(1 << 15)).is_err() && emit::tbz(x(0), 64, AT, AT).is_err());
    assert!(emit::adr(x(0), AT, AT.offset(1 << 20)).is_err() && emit::adr(x(0), AT, AT.offset((1 << 20) - 1)).is_ok());
    assert!(emit::adrp(x(0), AT, AT.offset(1 << 32)).is_err());
    assert!(emit::add_imm(x(0), x(1), 4097).is_err() && emit::add_imm(x(0), x(1), -1).is_err());
    assert!(emit::ldr(Size::Double, x(0), Address::with(x(1), 32_768)).is_err());
    assert!(emit::ldr(Size::Double, x(0), Address::with(x(1), -257)).is_err());
    assert!(emit::ldr(Size::Double, x(1), Address::after(x(1), 8)).is_err(), "its own base");
    assert!(
        emit::ldp(x(1), x(1), Address::at(x(2))).is_err() && emit::ldp(x(0), x(1), Address::with(x(2), 4)).is_err()
    );
    assert!(emit::ubfx(x(0), x(1), 60, 5).is_err() && emit::ubfx(x(0), x(1), 60, 0).is_err());
    assert!(emit::stxr(Size::Word, x(1), x(1), x(2)).is_err());
    for mask in [0, u64::MAX, 5, 0x1234_5678, 0xff00_00ff_00ff_00ff] {
        assert!(emit::and_mask(x(0), x(1), mask).is_err(), "{mask:#x}");
    }
    assert!(emit::ldrs(Size::Double, x(0), Address::at(x(1))).is_err());
    let register = Reg::SP;
    assert_eq!(emit::br(Reg::SP), Err(EncodeError::Register { name: "br", register }));
    assert!(emit::add_imm(x(0), Reg::ZERO, 1).is_err() && emit::add(x(0), Reg::SP, x(1)).is_err());
    assert_eq!(Reg::x(31), None);
}

#[test]
fn labels_are_reached_from_both_sides() {
    let mut a = Asm::new(Va(0x1000));
    let (again, end, number) = (a.label(), a.label(), a.label());
    a.bind(again);
    a.cbz(x(1), end);
    a.b_cond(Cond::Ne, again);
    a.adr(x(2), number);
    a.ldr_literal(x(3), number);
    a.b(again);
    a.bind(end);
    a.constant(x(4), 0x1_0000);
    a.b_to(Va(0x800)).expect("near");
    a.bind(number);
    a.quad(0x1122_3344_5566_7788);
    let code = a.finish().expect("code");
    let insns: Vec<String> = sidestep_isa::sweep(sidestep_isa::Isa::A64, &code[..32], Va(0x1000))
        .map(|insn| insn.map(|insn| insn.to_string()).unwrap_or_default())
        .collect();
    assert_eq!(
        insns,
        [
            "cbz x1, 0x1014",
            "b.ne 0x1000",
            "adr x2, 0x101c",
            "ldr x3, 0x101c",
            "b 0x1000",
            ".inst 0xd2a00024 // MoveWide",
            "b 0x800",
            "",
        ]
    );
    let mut a = Asm::new(Va(0));
    a.push(emit::add_imm(x(0), x(0), 5000));
    assert!(a.finish().is_err(), "an operand without an encoding");
}
