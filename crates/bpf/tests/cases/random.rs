//! Random programs that are often safe and often nearly so: registers have roles, and most offsets
//! are bounded.

use sidestep_bpf::{AluOp, AtomicOp, Cond, Imm64, Insn, Operand, Program, Reg, Size, Width};

/// Numbers that depend on the seed only (xorshift64*).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 32) as usize % end
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Numbers; `r6` is the context, `r7` a value of map 1 of 64 bytes, `r1` to `r5` are lost in calls.
const NUMBERS: [Reg; 5] = [Reg::R2, Reg::R3, Reg::R4, Reg::R8, Reg::R9];
const SIZES: [Size; 4] = [Size::B, Size::H, Size::W, Size::Dw];
const CONDS: [Cond; 11] =
    [Cond::Eq, Cond::Ne, Cond::Gt, Cond::Ge, Cond::Lt, Cond::Le, Cond::Sgt, Cond::Sge, Cond::Slt, Cond::Sle, Cond::Set];
const OPS: [AluOp; 14] = [
    AluOp::Add,
    AluOp::Sub,
    AluOp::Mul,
    AluOp::Div,
    AluOp::Sdiv,
    AluOp::Or,
    AluOp::And,
    AluOp::Lsh,
    AluOp::Rsh,
    AluOp::Mod,
    AluOp::Smod,
    AluOp::Xor,
    AluOp::Mov,
    AluOp::Arsh,
];

fn mov(dst: Reg, src: Operand) -> Insn {
    Insn::Alu { width: Width::W64, op: AluOp::Mov, dst, src }
}

fn add(dst: Reg, src: Operand) -> Insn {
    Insn::Alu { width: Width::W64, op: AluOp::Add, dst, src }
}

/// `r7 = value of map 1, entry 0`, or the end.
fn look_up(code: &mut Vec<Insn>) {
    code.push(Insn::Store { size: Size::W, base: Reg::R10, off: -4, src: Operand::Imm(0) });
    code.push(Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(1) });
    code.push(mov(Reg::R2, Operand::Reg(Reg::R10)));
    code.push(add(Reg::R2, Operand::Imm(-4)));
    code.push(Insn::CallHelper(1));
    code.push(Insn::Branch { width: Width::W64, cond: Cond::Ne, dst: Reg::R0, src: Operand::Imm(0), off: 1 });
    code.push(Insn::Exit);
    code.push(mov(Reg::R7, Operand::Reg(Reg::R0)));
}

fn operand(random: &mut Random) -> Operand {
    match random.below(3) {
        0 => Operand::Reg(random.pick(&NUMBERS)),
        1 => Operand::Imm(random.pick(&[0, 1, 2, 3, 7, 8, 15, 31, 56, 63, 64, 255, -1, -8, -64, i32::MAX, i32::MIN])),
        _ => Operand::Imm(random.below(80) as i32 - 8),
    }
}

fn arithmetic(random: &mut Random) -> Insn {
    let width = random.pick(&[Width::W32, Width::W64]);
    let (dst, op) = (random.pick(&NUMBERS), random.pick(&OPS));
    match random.below(12) {
        0 => Insn::Neg { width, dst },
        1 => Insn::MovSx { width, dst, src: random.pick(&NUMBERS), from: random.pick(&[Size::B, Size::H]) },
        2 => Insn::Swap { order: sidestep_bpf::Swap::Be, size: random.pick(&[Size::H, Size::W, Size::Dw]), dst },
        _ => {
            let src = match (op, operand(random)) {
                (AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, Operand::Imm(imm)) => {
                    Operand::Imm(imm.rem_euclid(width.bits() as i32))
                }
                (AluOp::Div | AluOp::Mod | AluOp::Sdiv | AluOp::Smod, Operand::Imm(0)) => Operand::Imm(5),
                (_, src) => src,
            };
            Insn::Alu { width, op, dst, src }
        }
    }
}

/// Makes `reg` smaller than about 64, in one of the ways that programs do.
fn bound(random: &mut Random, reg: Reg, code: &mut Vec<Insn>) {
    let width = random.pick(&[Width::W32, Width::W64]);
    let limit = random.pick(&[7, 31, 56, 63, 60, 65]);
    match random.below(4) {
        0 => code.push(Insn::Alu { width, op: AluOp::And, dst: reg, src: Operand::Imm(limit) }),
        1 => code.push(Insn::Alu { width: Width::W64, op: AluOp::Rsh, dst: reg, src: Operand::Imm(58) }),
        _ => {
            let cond = random.pick(&[Cond::Le, Cond::Lt, Cond::Le, Cond::Sle]);
            code.push(Insn::Branch { width, cond, dst: reg, src: Operand::Imm(limit), off: 2 });
            code.push(mov(Reg::R0, Operand::Imm(0)));
            code.push(Insn::Exit);
            if random.below(3) == 0 {
                code.push(Insn::Alu { width: Width::W32, op: AluOp::Mov, dst: reg, src: Operand::Reg(reg) });
            }
        }
    }
}

/// An access of the map value at an offset in a register.
fn indexed(random: &mut Random, code: &mut Vec<Insn>) {
    let reg = random.pick(&NUMBERS);
    if random.below(8) != 0 {
        bound(random, reg, code);
    }
    if random.below(3) == 0 {
        code.push(arithmetic(random));
    }
    code.push(mov(Reg::R1, Operand::Reg(Reg::R7)));
    code.push(add(Reg::R1, Operand::Reg(reg)));
    let (size, off) = (random.pick(&SIZES), random.pick(&[0, 0, 0, 1, 8, -8]));
    code.push(match random.below(3) {
        0 => Insn::Store { size, base: Reg::R1, off, src: Operand::Reg(random.pick(&NUMBERS)) },
        _ => Insn::Load { size, signed: false, dst: random.pick(&NUMBERS), base: Reg::R1, off },
    });
}

fn stack(random: &mut Random, code: &mut Vec<Insn>) {
    let size = random.pick(&[Size::B, Size::H, Size::W, Size::Dw, Size::Dw, Size::Dw]);
    let off =
        -8 * (1 + random.below(4) as i16) + random.pick(&[0, 0, 0, 4]) / size.bytes() as i16 * size.bytes() as i16;
    code.push(match random.below(5) {
        0 => Insn::Store { size, base: Reg::R10, off, src: operand(random) },
        1 => Insn::Store { size: Size::Dw, base: Reg::R10, off: off & !7, src: Operand::Reg(random.pick(&NUMBERS)) },
        2 => Insn::Store { size: Size::Dw, base: Reg::R10, off: off & !7, src: Operand::Reg(Reg::R7) },
        _ => Insn::Load { size, signed: false, dst: random.pick(&NUMBERS), base: Reg::R10, off },
    });
}

/// A few instructions that belong together.
fn group(random: &mut Random, code: &mut Vec<Insn>) {
    match random.below(16) {
        0..=4 => (0..=random.below(3)).for_each(|_| code.push(arithmetic(random))),
        5..=7 => indexed(random, code),
        8..=9 => stack(random, code),
        10..=12 => {
            let (width, cond) = (random.pick(&[Width::W32, Width::W64]), random.pick(&CONDS));
            let mut skipped = Vec::new();
            (0..=random.below(3)).for_each(|_| skipped.push(arithmetic(random)));
            let (dst, src) = (random.pick(&NUMBERS), operand(random));
            code.push(Insn::Branch { width, cond, dst, src, off: skipped.len() as i16 });
            code.extend(skipped);
        }
        13 => {
            let off = random.pick(&[0, 8, 48, 56, 4]);
            let op = random.pick(&[AtomicOp::Add { fetch: true }, AtomicOp::Xor { fetch: false }, AtomicOp::Xchg]);
            let width = random.pick(&[Width::W32, Width::W64]);
            code.push(Insn::Atomic { width, op, base: Reg::R7, off, src: random.pick(&NUMBERS) });
        }
        14 => {
            // A loop of a few rounds, counted in r5.
            let mut body = Vec::new();
            (0..=random.below(3)).for_each(|_| body.push(arithmetic(random)));
            code.push(mov(Reg::R5, Operand::Imm(0)));
            let back = -(body.len() as i16) - 2;
            code.extend(body);
            code.push(add(Reg::R5, Operand::Imm(1)));
            let src = Operand::Imm(2 + random.below(20) as i32);
            code.push(Insn::Branch { width: Width::W64, cond: Cond::Lt, dst: Reg::R5, src, off: back });
        }
        _ => {
            let off = 8 * random.below(21) as i16;
            code.push(Insn::Load { size: Size::Dw, signed: false, dst: random.pick(&NUMBERS), base: Reg::R6, off });
        }
    }
}

/// The program of this seed.
pub fn program(seed: u64) -> Program {
    let mut random = Random::new(seed);
    let mut code = vec![mov(Reg::R6, Operand::Reg(Reg::R1))];
    look_up(&mut code);
    for (reg, off) in NUMBERS.into_iter().zip([0, 8, 16, 24, 32]) {
        code.push(Insn::Load { size: Size::Dw, signed: false, dst: reg, base: Reg::R6, off });
    }
    for _ in 0..4 + random.below(12) {
        group(&mut random, &mut code);
    }
    code.push(mov(Reg::R0, Operand::Imm(0)));
    code.push(Insn::Exit);
    Program::from_insns(&code).unwrap()
}
