//! What registers and the stack are known to hold: constants, and addresses at a constant distance
//! from something.
//!
//! Follows only branches that may be taken, so that what is known decides others (Wegman and
//! Zadeck, "Constant propagation with conditional branches").

use super::body::{Body, Node};
use super::live;
use crate::alu;
use crate::insn::{AluOp, Cond, Imm64, Insn, Operand, Reg, Size, Width};
use crate::verify::{HIST_BUCKET, Helper, LAST_BUCKET, Memory};

/// What an address is relative to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// `r10` of the function.
    Frame,
    /// The context of the program.
    Context,
    /// What a long immediate loads; with [`Imm64::Thread`] and [`Imm64::MapValue`] of offset 0.
    Imm(Imm64),
}

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// Nobody knows.
    Nothing,
    Number(u64),
    /// No more than this.
    UpTo(u64),
    /// A register of the target, from a word of the context; with 32 bits its lower half,
    /// zero-extended.
    Word(u8, Width),
    /// A base plus an offset.
    Address(Base, i64),
}

impl Known {
    pub fn number(self) -> Option<u64> {
        if let Known::Number(value) = self { Some(value) } else { None }
    }

    pub fn offset_from(self, base: Base) -> Option<i64> {
        match self {
            Known::Address(of, offset) if of == base => Some(offset),
            _ => None,
        }
    }

    /// Whether it is a number without an upper half.
    pub fn is_half(self) -> bool {
        match self {
            Known::Number(value) | Known::UpTo(value) => value <= u32::MAX.into(),
            Known::Word(_, width) => width == Width::W32,
            Known::Nothing | Known::Address(..) => false,
        }
    }

    fn moved(self, by: i64) -> Known {
        match self {
            Known::Nothing | Known::UpTo(_) | Known::Word(..) => Known::Nothing,
            Known::Number(value) => Known::Number(value.wrapping_add_signed(by)),
            Known::Address(base, offset) => Known::Address(base, offset.wrapping_add(by)),
        }
    }
}

/// What was stored on the stack: 8 bytes, or fewer of a number.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stored {
    offset: i64,
    len: i64,
    value: Known,
}

/// Stores that are remembered.
const MAX_STORED: usize = 24;

/// What is known before an instruction.
#[derive(Clone, PartialEq, Debug)]
pub struct State {
    regs: [Known; Reg::COUNT],
    stored: Vec<Stored>,
}

impl State {
    fn entry(is_program: bool) -> State {
        let mut regs = [Known::Nothing; Reg::COUNT];
        if is_program {
            regs[1] = Known::Address(Base::Context, 0);
        }
        regs[10] = Known::Address(Base::Frame, 0);
        State { regs, stored: Vec::new() }
    }

    pub fn reg(&self, reg: Reg) -> Known {
        self.regs[reg.index()]
    }

    pub fn operand(&self, width: Width, src: Operand) -> Known {
        match src {
            Operand::Reg(reg) => self.reg(reg),
            Operand::Imm(imm) if width == Width::W32 => Known::Number(u64::from(imm as u32)),
            Operand::Imm(imm) => Known::Number(i64::from(imm) as u64),
        }
    }

    /// The bytes of the stack at an offset from `r10`, little-endian and zero-extended.
    pub fn bytes(&self, offset: i64, len: i64) -> Option<u64> {
        let mut value = 0;
        for at in (offset..offset + len).rev() {
            let stored = self.stored.iter().find(|s| s.offset <= at && at < s.offset + s.len)?;
            value = value << 8 | stored.value.number()? >> (8 * (at - stored.offset)) & 0xff;
        }
        Some(value)
    }

    fn meet(&mut self, other: &State) -> bool {
        let before = self.stored.len();
        self.stored.retain(|s| other.stored.contains(s));
        let mut changed = self.stored.len() != before;
        for (mine, theirs) in self.regs.iter_mut().zip(&other.regs) {
            if *mine != *theirs && *mine != Known::Nothing {
                *mine = Known::Nothing;
                changed = true;
            }
        }
        changed
    }

    fn forget(&mut self, offset: i64, len: i64) {
        self.stored.retain(|s| s.offset + s.len <= offset || offset + len <= s.offset);
    }

    fn store(&mut self, node: &Node, size: Size, base: Reg, off: i16, value: Known) {
        match (self.reg(base).offset_from(Base::Frame), node.memory) {
            (Some(start), _) => {
                let (offset, len) = (start.wrapping_add(off.into()), size.bytes() as i64);
                self.forget(offset, len);
                let value = match value {
                    Known::Number(value) => Known::Number(alu::truncate(size, value)),
                    Known::Address(..) | Known::Word(..) if size == Size::Dw => value,
                    Known::UpTo(most) if size == Size::Dw || most < 1 << size.bits() => value,
                    _ => return,
                };
                if self.stored.len() < MAX_STORED {
                    self.stored.push(Stored { offset, len, value });
                    self.stored.sort_by_key(|s| s.offset);
                }
            }
            (None, Some(Memory::Map(_) | Memory::ThreadMap(_) | Memory::Record | Memory::Context)) => {}
            (None, _) => self.stored.clear(),
        }
    }

    fn load(&self, size: Size, signed: bool, base: Reg, off: i16) -> Known {
        if let Some(start) = self.reg(base).offset_from(Base::Context) {
            let offset = start.wrapping_add(off.into());
            // General registers come first.
            return match (size, signed) {
                (Size::Dw, _) if offset % 8 == 0 && (0..15 * 8).contains(&offset) => {
                    Known::Word((offset / 8) as u8, Width::W64)
                }
                (Size::W, false) if offset % 8 == 0 && (0..15 * 8).contains(&offset) => {
                    Known::Word((offset / 8) as u8, Width::W32)
                }
                _ => Known::Nothing,
            };
        }
        let Some(start) = self.reg(base).offset_from(Base::Frame) else {
            let small = matches!(size, Size::B | Size::H) && !signed;
            return if small { Known::UpTo((1 << size.bits()) - 1) } else { Known::Nothing };
        };
        let (offset, len) = (start.wrapping_add(off.into()), size.bytes() as i64);
        if let Some(whole) = self.stored.iter().find(|s| (s.offset, s.len) == (offset, len)) {
            if size == Size::Dw || !signed && matches!(whole.value, Known::UpTo(_)) {
                return whole.value;
            }
        }
        match self.bytes(offset, len) {
            Some(value) if signed => Known::Number(alu::sign_extend(Width::W64, size, value)),
            Some(value) => Known::Number(value),
            None => Known::Nothing,
        }
    }

    /// What the instruction leaves in its register.
    pub fn result(&self, insn: &Insn) -> Known {
        let number =
            |known: Known, f: &dyn Fn(u64) -> u64| known.number().map_or(Known::Nothing, |n| Known::Number(f(n)));
        match *insn {
            Insn::Alu { width: Width::W64, op: AluOp::Mov, src, .. } => self.operand(Width::W64, src),
            Insn::Alu { width, op, dst, src } => match (op, width, self.reg(dst), self.operand(width, src)) {
                (AluOp::Mov, Width::W32, _, Known::UpTo(most)) if most <= u32::MAX.into() => Known::UpTo(most),
                (AluOp::Mov, Width::W32, _, Known::Word(index, _)) => Known::Word(index, Width::W32),
                (AluOp::Mov, _, _, Known::Number(b)) => Known::Number(alu::alu(width, op, 0, b)),
                (_, _, Known::Number(a), Known::Number(b)) => Known::Number(alu::alu(width, op, a, b)),
                (AluOp::Add, Width::W64, a @ Known::Address(..), Known::Number(b)) => a.moved(b as i64),
                (AluOp::Add, Width::W64, Known::Number(a), b @ Known::Address(..)) => b.moved(a as i64),
                (AluOp::And, _, _, Known::Number(most)) => Known::UpTo(most),
                (AluOp::Sub, Width::W64, a @ Known::Address(..), Known::Number(b)) => {
                    a.moved((b as i64).wrapping_neg())
                }
                _ => Known::Nothing,
            },
            Insn::Neg { width, dst } => number(self.reg(dst), &|n| alu::negate(width, n)),
            Insn::MovSx { width, src, from, .. } => number(self.reg(src), &|n| alu::sign_extend(width, from, n)),
            Insn::Swap { order, size, dst } => number(self.reg(dst), &|n| alu::swap(order, size, n)),
            Insn::Load { size, signed, base, off, .. } => self.load(size, signed, base, off),
            Insn::LoadImm64 { imm, .. } => match imm {
                Imm64::Value(value) => Known::Number(value),
                Imm64::Thread(offset) => Known::Address(Base::Imm(Imm64::Thread(0)), offset.into()),
                Imm64::Func(_) => Known::Nothing,
                other => Known::Address(Base::Imm(other), 0),
            },
            _ => Known::Nothing,
        }
    }

    /// Whether a branch is taken, if that is certain. Memory of threads and maps lies far from
    /// address 0.
    pub fn decides(&self, width: Width, cond: Cond, dst: Reg, src: Operand) -> Option<bool> {
        match (self.reg(dst), self.operand(width, src), cond) {
            (Known::Number(a), Known::Number(b), _) => Some(alu::holds(width, cond, a, b)),
            (Known::UpTo(most), Known::Number(b), Cond::Gt) if most <= b && b <= u32::MAX.into() => Some(false),
            (Known::Address(_, 0..4096), Known::Number(0), Cond::Eq) if width == Width::W64 => Some(false),
            (Known::Address(_, 0..4096), Known::Number(0), Cond::Ne) if width == Width::W64 => Some(true),
            _ => None,
        }
    }

    fn step(&mut self, node: &Node) {
        let result = self.result(&node.insn);
        match node.insn {
            Insn::Store { size, base, off, src } => {
                let value = self.operand(Width::W64, src);
                self.store(node, size, base, off, value);
            }
            Insn::Atomic { width, base, off, .. } => self.store(node, width.size(), base, off, Known::Nothing),
            Insn::CallHelper(number) if Helper::by_number(number).is_some_and(|h| !h.writes_memory()) => {}
            Insn::CallHelper(_) | Insn::CallLocal(_) => self.stored.clear(),
            _ => {}
        }
        let written = live::writes(&node.insn);
        for reg in Reg::all().filter(|&reg| written & live::bit(reg) != 0) {
            self.regs[reg.index()] = result;
        }
        if node.insn == Insn::CallHelper(HIST_BUCKET) {
            self.regs[0] = Known::UpTo(LAST_BUCKET);
        }
    }
}

/// What is known before each instruction that may be reached; `None` before those that are not.
pub fn before(body: &Body) -> Vec<Option<State>> {
    let mut states: Vec<Option<State>> = vec![None; body.nodes.len() + 1];
    let mut open = Vec::new();
    for (index, function) in body.functions.iter().enumerate() {
        states[function.start] = Some(State::entry(index == 0));
        open.push(function.start);
    }
    while let Some(mut at) = open.pop() {
        let Some(mut state) = states[at].clone() else { continue };
        // On to the next meeting.
        while let Some(node) = body.nodes.get(at) {
            let mut through = node.insn.falls_through();
            let mut jumps = node.insn.jump().and(node.target);
            if let Insn::Branch { width, cond, dst, src, .. } = node.insn {
                match state.decides(width, cond, dst, src) {
                    Some(true) => through = false,
                    Some(false) => jumps = None,
                    None => {}
                }
            }
            state.step(node);
            if let Some(to) = jumps {
                if arrive(&mut states[to], &state) {
                    open.push(to);
                }
            }
            if !through || !arrive(&mut states[at + 1], &state) {
                break;
            }
            at += 1;
            if let Some(met) = &states[at] {
                state = met.clone();
            }
        }
    }
    states.truncate(body.nodes.len());
    states
}

/// Whether what is known at a place has become less.
fn arrive(place: &mut Option<State>, state: &State) -> bool {
    match place {
        Some(known) => known.meet(state),
        None => {
            *place = Some(state.clone());
            true
        }
    }
}

/// The key of a lookup that is always the same.
pub fn key(state: &State, len: u32) -> Option<u64> {
    let offset = state.reg(Reg::R2).offset_from(Base::Frame)?;
    if len <= 8 { state.bytes(offset, len.into()) } else { None }
}
