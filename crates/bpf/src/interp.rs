//! The interpreter: on `core` alone, without panics.
//!
//! It touches memory and calls helpers through [`Machine`] only, so it is as safe as that is, also
//! for programs that nobody has verified. What it reads are slots as they are stored, so a program
//! can lie in shared memory.

use core::fmt;

use crate::alu;
use crate::insn::{AtomicOp, Imm64, Insn, Reg, Size, Slot, Width};

/// Depth of calls between functions of a program, with the first: the kernel's `MAX_CALL_FRAMES`.
pub const MAX_DEPTH: u32 = 8;

/// Stack of one call, in bytes: the kernel's `MAX_BPF_STACK`.
pub const FRAME: u64 = 512;

/// What a program runs on: memory and helpers.
pub trait Machine {
    /// Reads from an address, zero-extended.
    ///
    /// # Errors
    /// [`Stop::Fault`] if the program may not read all of it.
    fn load(&mut self, address: u64, size: Size) -> Result<u64, Stop>;

    /// Writes the lower bytes of `value`.
    ///
    /// # Errors
    /// [`Stop::Fault`] if the program may not write all of it.
    fn store(&mut self, address: u64, size: Size, value: u64) -> Result<(), Stop>;

    /// Does an atomic operation in one step, as [`alu::atomic`] says, and gives the old value,
    /// zero-extended.
    ///
    /// # Errors
    /// [`Stop::Fault`] if the program may not write all of it, or it is not aligned.
    fn atomic(&mut self, address: u64, width: Width, op: AtomicOp, operand: u64, r0: u64) -> Result<u64, Stop>;

    /// Calls a helper. One that calls back does it by [`Vm::call`]; the function's value is its
    /// slot.
    ///
    /// # Errors
    /// [`Stop::Helper`] if there is none with this number, and what [`Vm::call`] gives.
    fn call(&mut self, vm: &mut Vm<'_>, helper: u32, args: [u64; 5]) -> Result<u64, Stop>;

    /// The address at an offset in the memory that the thread has for itself: [`Imm64::Thread`].
    ///
    /// # Errors
    /// [`Stop::Unlinked`] if there is no such memory.
    fn thread(&mut self, _offset: u32) -> Result<u64, Stop> {
        Err(Stop::Unlinked)
    }
}

/// Why a program was stopped. No verified program is, except by its budget.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// More instructions than its budget.
    Budget,
    /// Calls nested deeper than [`MAX_DEPTH`], or than the stack that it was given.
    Depth,
    /// Control left the code: the slot where nothing is.
    Outside(u64),
    /// Not an instruction; decoding it again says why.
    Insn,
    /// A reference to a map or variable, which must be replaced by its address before.
    Unlinked,
    /// It may not access this address.
    Fault(u64),
    /// There is no helper with this number.
    Helper(u32),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Budget => f.write_str("the program used up its budget of instructions; shorten its loops"),
            Stop::Depth => write!(f, "functions are nested deeper than {MAX_DEPTH}; call fewer"),
            Stop::Outside(slot) => write!(f, "there is no instruction {slot}; end each path with exit"),
            Stop::Insn => f.write_str("not an instruction; verify the program first"),
            Stop::Unlinked => f.write_str("a map or variable has no address yet; link the program first"),
            Stop::Fault(address) => write!(f, "no access to {address:#x}; verify the program first"),
            Stop::Helper(number) => write!(f, "there is no helper {number}; use one that is listed"),
        }
    }
}

impl core::error::Error for Stop {}

/// A program that runs: its code, its stack and its budget.
pub struct Vm<'c> {
    code: &'c [Slot],
    /// Where the next call's frame ends.
    top: u64,
    /// Below this there is no stack.
    bottom: u64,
    budget: u64,
    depth: u32,
    pc: usize,
}

impl<'c> Vm<'c> {
    /// A program that may execute `budget` instructions, with all callbacks, on a stack of
    /// `stack_len` bytes that ends before the address `stack_end` (16-aligned; [`FRAME`] bytes for
    /// each call that is nested). Loads and stores there go through the [`Machine`] as all others.
    #[must_use]
    pub fn new(code: &'c [Slot], stack_end: u64, stack_len: u64, budget: u64) -> Vm<'c> {
        Vm { code, top: stack_end, bottom: stack_end.saturating_sub(stack_len), budget, depth: 0, pc: 0 }
    }

    /// The instruction that was executed last: the one that stopped the program.
    #[must_use]
    pub fn pc(&self) -> usize {
        self.pc
    }

    /// How many instructions are left.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Calls the function at a slot (0: the program) with `r1` to `r5`, and gives its `r0`.
    ///
    /// # Errors
    /// If the program had to be stopped; [`Vm::pc`] is where.
    pub fn call<M: Machine + ?Sized>(&mut self, machine: &mut M, start: u64, args: [u64; 5]) -> Result<u64, Stop> {
        let frame_end = self.top;
        let frame = frame_end.checked_sub(FRAME).filter(|&frame| frame >= self.bottom && self.depth < MAX_DEPTH);
        self.top = frame.ok_or(Stop::Depth)?;
        self.depth += 1;
        let [r1, r2, r3, r4, r5] = args;
        // The others have no value yet; zeros would come from an xmm register, which the agent must
        // not touch.
        let x = frame_end;
        let registers = Registers([x, r1, r2, r3, r4, r5, x, x, x, x, frame_end, x, x, x, x, x]);
        let result = self.run(machine, start, registers);
        self.depth -= 1;
        self.top = frame_end;
        result
    }

    fn run<M: Machine + ?Sized>(&mut self, machine: &mut M, start: u64, mut r: Registers) -> Result<u64, Stop> {
        let mut pc = usize::try_from(start).map_err(|_| Stop::Outside(start))?;
        loop {
            self.pc = pc;
            self.budget = self.budget.checked_sub(1).ok_or(Stop::Budget)?;
            let here = self.code.get(pc..).filter(|code| !code.is_empty()).ok_or(Stop::Outside(pc as u64))?;
            let insn = Insn::decode(here).map_err(|_| Stop::Insn)?;
            pc = pc.wrapping_add(insn.slots());
            match insn {
                Insn::Alu { width, op, dst, src } => {
                    let src = src.value(|reg| r.get(reg));
                    r.set(dst, alu::alu(width, op, r.get(dst), src));
                }
                Insn::Neg { width, dst } => r.set(dst, alu::negate(width, r.get(dst))),
                Insn::MovSx { width, dst, src, from } => r.set(dst, alu::sign_extend(width, from, r.get(src))),
                Insn::Swap { order, size, dst } => r.set(dst, alu::swap(order, size, r.get(dst))),
                Insn::Load { size, signed, dst, base, off } => {
                    let value = machine.load(r.address(base, off), size)?;
                    r.set(dst, if signed { alu::sign_extend(Width::W64, size, value) } else { value });
                }
                Insn::Store { size, base, off, src } => {
                    let value = src.value(|reg| r.get(reg));
                    machine.store(r.address(base, off), size, alu::truncate(size, value))?;
                }
                Insn::Atomic { width, op, base, off, src } => {
                    let operand = alu::truncate(width.size(), r.get(src));
                    let old = machine.atomic(r.address(base, off), width, op, operand, r.get(Reg::R0))?;
                    if let Some(result) = op.result(src) {
                        r.set(result, old);
                    }
                }
                Insn::LoadImm64 { dst, imm: Imm64::Value(value) } => r.set(dst, value),
                Insn::LoadImm64 { dst, imm: Imm64::Func(off) } => r.set(dst, jump(pc.wrapping_sub(1), off) as u64),
                Insn::LoadImm64 { dst, imm: Imm64::Thread(offset) } => r.set(dst, machine.thread(offset)?),
                Insn::LoadImm64 { .. } => return Err(Stop::Unlinked),
                Insn::Goto { off, .. } => pc = jump(pc, off),
                Insn::Branch { width, cond, dst, src, off } => {
                    let src = src.value(|reg| r.get(reg));
                    if alu::holds(width, cond, r.get(dst), src) {
                        pc = jump(pc, off.into());
                    }
                }
                Insn::CallHelper(number) => {
                    let result = machine.call(self, number, r.arguments())?;
                    r.set(Reg::R0, result);
                }
                Insn::CallLocal(off) => {
                    let result = self.call(machine, jump(pc, off) as u64, r.arguments())?;
                    r.set(Reg::R0, result);
                }
                Insn::Exit => return Ok(r.get(Reg::R0)),
            }
        }
    }
}

/// The slot at a distance; one that does not exist if it is outside.
fn jump(from: usize, off: i32) -> usize {
    from.wrapping_add_signed(off as isize)
}

/// Sixteen, so that no index is outside.
struct Registers([u64; 16]);

impl Registers {
    #[inline]
    fn get(&self, reg: Reg) -> u64 {
        self.0[reg.index() & 15]
    }

    #[inline]
    fn set(&mut self, reg: Reg, value: u64) {
        self.0[reg.index() & 15] = value;
    }

    fn address(&self, base: Reg, off: i16) -> u64 {
        self.get(base).wrapping_add_signed(off.into())
    }

    fn arguments(&self) -> [u64; 5] {
        [self.0[1], self.0[2], self.0[3], self.0[4], self.0[5]]
    }
}
