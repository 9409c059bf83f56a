//! What each instruction needs that is not an operation of its own: operands that are constants,
//! registers of the site or at a fixed place in the thread's memory, and instructions that nobody
//! needs then.

use sidestep_isa::x86::emit::Reg as Machine;

use super::{CompileError, Shape, Site};
use crate::insn::{AluOp, Imm64, Insn, Operand, Reg, Size, Width};
use crate::pass::body::Body;
use crate::pass::known::{self, Base, Known, State};
use crate::pass::live::{self, Set};

/// What a memory operand is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// At this offset from the thread's memory.
    Cells(i32),
    /// From this byte on of a register that is as at the site.
    Register(Machine, u8),
    /// The stack pointer at the site.
    Sp,
    /// The address of the site.
    Ip(u64),
}

/// The word of the context that a program keeps from the entry of a call to its return
/// (`Hit::COOKIE` of `sidestep-wire`).
const COOKIE: usize = 21;

/// An instruction to be compiled.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub at: usize,
    pub insn: Insn,
    /// The memory operand, if it is not its base register and offset; or the address that is added.
    pub place: Option<Place>,
    /// The first operand of a branch, if it is a register of the site.
    pub left: Option<Machine>,
    /// The second operand, if it is a register of the site.
    pub right: Option<Machine>,
    /// The operand of an atomic operation, if it is a constant.
    pub imm: Option<i32>,
    /// No other thread touches the memory.
    pub local: bool,
    /// Not needed.
    pub dead: bool,
    /// No jump arrives here.
    pub alone: bool,
    /// Registers that are live after it.
    pub live: Set,
    /// The end of a filter that goes on: an exit, or a jump to one.
    pub go: bool,
}

impl Step {
    /// The instruction as it is.
    pub fn plain(at: usize, insn: Insn) -> Step {
        Step {
            at,
            insn,
            place: None,
            left: None,
            right: None,
            imm: None,
            local: false,
            dead: false,
            alone: false,
            live: Set::MAX,
            go: false,
        }
    }

    /// Registers that it reads.
    pub fn reads_alone(&self) -> Set {
        if self.dead { 0 } else { self.reads(live::uses(&self.insn, false)) }
    }

    /// Registers that it reads, if it would by itself read these.
    pub fn reads(&self, own: Set) -> Set {
        let mut reads = own;
        let mut drop = |reg: Reg| reads &= !live::bit(reg);
        match self.insn {
            Insn::Load { base, .. } if self.place.is_some() => drop(base),
            Insn::Store { base, src, .. } => {
                if self.place.is_some() && src != Operand::Reg(base) {
                    drop(base);
                }
                if let (Operand::Reg(src), Some(_)) = (src, self.right) {
                    if src != base || self.place.is_some() {
                        drop(src);
                    }
                }
            }
            Insn::Atomic { base, src, .. } => {
                let folded = self.imm.is_some() || self.right.is_some();
                if self.place.is_some() && (src != base || folded) {
                    drop(base);
                }
                if folded && (src != base || self.place.is_some()) {
                    drop(src);
                }
            }
            Insn::Branch { dst, src, .. } => {
                let (left, right) = (self.left.is_some(), self.right.is_some());
                if left && (src != Operand::Reg(dst) || right) {
                    drop(dst);
                }
                if let (Operand::Reg(src), true) = (src, right) {
                    if src != dst || left {
                        drop(src);
                    }
                }
            }
            Insn::Alu { op, dst, src: Operand::Reg(src), .. }
                if self.right.is_some() && (op == AluOp::Mov || src != dst) =>
            {
                drop(src);
            }
            Insn::Alu { src: Operand::Reg(src), .. } if self.place.is_some() => drop(src),
            // The argument of an intrinsic.
            Insn::CallHelper(_) if self.right.is_some() => drop(Reg::R1),
            _ => {}
        }
        reads
    }
}

/// Finds all of that for a program of which `body` is known to be what `steps` are.
///
/// # Errors
/// If it was to be a filter, but ends in other ways.
pub fn fold(steps: &mut [Step], body: &Body, shape: &Shape) -> Result<(), CompileError> {
    let site = shape.site();
    let arrivals = body.arrivals();
    let states = known::before(body);
    for (i, (step, node)) in steps.iter_mut().zip(&body.nodes).enumerate() {
        step.alone = arrivals[i] == 0 && body.functions.iter().all(|f| f.start != i);
        step.local = node.memory.is_some_and(|m| m.is_local());
        match &states[i] {
            Some(state) => operands(step, state, site),
            // Compiled all the same: others may jump there.
            None => continue,
        }
    }
    if matches!(shape, Shape::Filter(_)) {
        find_exits(steps, body)?;
    }
    let after = live::after(body, shape.result(), |i, own| steps[i].reads(own));
    for (step, live) in steps.iter_mut().zip(after) {
        step.live = live;
        // Nothing may write r10; it is found there.
        let no_result = (live | live::bit(Reg::R10)) & live::writes(&step.insn) == 0;
        step.dead |= no_result && live::is_pure(&step.insn);
    }
    Ok(())
}

fn operands(step: &mut Step, state: &State, site: Option<&Site>) {
    let register = |reg: Reg, width: Width| match (site, state.reg(reg)) {
        (Some(site), Known::Word(index, of)) if of == Width::W64 || width == Width::W32 => site.word(index),
        _ => None,
    };
    let source = |src: Operand, width: Width| if let Operand::Reg(reg) = src { register(reg, width) } else { None };
    match step.insn {
        Insn::Load { base, off, .. } => step.place = place(state, base, off, site),
        Insn::Store { size, base, off, src } => {
            let is_cookie = |p: &Place| size == Size::Dw && site.is_some_and(|site| site.is_cookie(*p));
            step.place = place(state, base, off, site).filter(|p| matches!(p, Place::Cells(_)) || is_cookie(p));
            step.right = source(src, if size == Size::Dw { Width::W64 } else { Width::W32 });
        }
        Insn::Atomic { width, op, base, off, src } => {
            step.place = place(state, base, off, site).filter(|p| matches!(p, Place::Cells(_)));
            let constant = match (state.reg(src), width) {
                (Known::Number(value), Width::W64) => i32::try_from(value as i64).ok(),
                (Known::Number(value), Width::W32) => Some(value as u32 as i32),
                _ => None,
            };
            if op.result(src).is_none() {
                step.imm = constant;
                step.right = register(src, width);
            }
        }
        Insn::Branch { width, dst, src, .. } => {
            step.left = register(dst, width);
            step.right = source(src, width);
        }
        Insn::Alu { width, op, dst, src } => {
            step.right = source(src, width);
            let offset = match (op, width, src) {
                (AluOp::Add, Width::W64, Operand::Reg(src)) if src != dst => place(state, src, 0, site),
                _ => None,
            };
            step.place = offset.filter(|p| matches!(p, Place::Cells(_)));
        }
        Insn::CallHelper(crate::verify::HIST_BUCKET) => step.right = register(Reg::R1, Width::W64),
        _ => {}
    }
}

fn place(state: &State, base: Reg, off: i16, site: Option<&Site>) -> Option<Place> {
    let site = site?;
    let address = state.reg(base);
    if let Some(offset) = address.offset_from(Base::Imm(Imm64::Thread(0))) {
        return i32::try_from(offset.checked_add(off.into())?).ok().map(Place::Cells);
    }
    let offset = usize::try_from(address.offset_from(Base::Context)?.checked_add(off.into())?).ok()?;
    match offset / 8 {
        16 if offset % 8 == 0 => Some(Place::Ip(site.ip)),
        19 if offset % 8 == 0 => Some(Place::Sp),
        COOKIE => site.cookie.map(|reg| Place::Register(reg, (offset % 8) as u8)),
        index => site.word(u8::try_from(index).ok()?).map(|reg| Place::Register(reg, (offset % 8) as u8)),
    }
}

impl Site {
    /// The register that a word of the context has, in the order of `struct pt_regs`, if it is
    /// still there.
    fn word(&self, index: u8) -> Option<Machine> {
        use Machine::{R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi};
        const ORDER: [Machine; 15] = [R15, R14, R13, R12, Rbp, Rbx, R11, R10, R9, R8, Rax, Rcx, Rdx, Rsi, Rdi];
        let taken = [self.cells, self.cookie];
        ORDER.get(usize::from(index)).copied().filter(|reg| !taken.contains(&Some(*reg)))
    }

    /// Whether that is the whole word that a program keeps.
    fn is_cookie(&self, place: Place) -> bool {
        self.cookie.is_some_and(|reg| place == Place::Register(reg, 0))
    }
}

/// The ends of a filter: `r0 = 0` or `r0 = 1` right before an exit.
fn find_exits(steps: &mut [Step], body: &Body) -> Result<(), CompileError> {
    let mut heads = vec![false; steps.len() + 1];
    for i in (0..steps.len()).filter(|&i| body.nodes[i].insn == Insn::Exit) {
        let before = if steps[i].alone { i.checked_sub(1).map(|i| steps[i].insn) } else { None };
        let Some(Insn::Alu { op: AluOp::Mov, dst: Reg::R0, src: Operand::Imm(result), .. }) = before else {
            return Err(CompileError::Inline { at: steps[i].at });
        };
        let go = result != 0;
        if go {
            heads[i - 1] = true;
            steps[i].go = true;
            steps[i].dead = i >= 2 && !steps[i - 2].insn.falls_through();
        }
    }
    for (step, node) in steps.iter_mut().zip(&body.nodes) {
        step.go |= node.insn.jump().is_some() && node.target.is_some_and(|to| heads[to]);
    }
    Ok(())
}
