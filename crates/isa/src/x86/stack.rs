//! Where a function's stack pointer is, instruction by instruction, as far as compilers' code
//! tells.

use iced_x86::{Code, Mnemonic, OpKind, Register};

use super::decode::{Flow, Insn};
use crate::Isa;

/// Stack and frame pointer relative to the stack pointer at the function's entry; `None` = not
/// known any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stack {
    rsp: Option<i64>,
    rbp: Option<i64>,
}

impl Stack {
    /// At the entry: the return address is at offset 0.
    pub const ENTRY: Stack = Stack { rsp: Some(0), rbp: None };

    /// Nothing is known.
    pub const UNKNOWN: Stack = Stack { rsp: None, rbp: None };

    /// Is the stack pointer certainly where it was at the entry?
    #[must_use]
    pub fn is_as_at_entry(&self) -> bool {
        self.rsp == Some(0)
    }

    /// The stack pointer relative to the one at the entry, in bytes; `None`: it is not known.
    #[must_use]
    pub fn depth(&self) -> Option<i64> {
        self.rsp
    }

    /// What is known where two paths meet.
    #[must_use]
    pub fn meet(self, other: Stack) -> Stack {
        let same = |a: Option<i64>, b: Option<i64>| a.filter(|a| Some(*a) == b);
        Stack { rsp: same(self.rsp, other.rsp), rbp: same(self.rbp, other.rbp) }
    }

    /// Whether an instruction reads, writes or takes the address of the slot that holds the return
    /// address, other than by returning.
    #[must_use]
    pub fn names_return_address(&self, insn: &Insn) -> bool {
        let i = &insn.iced;
        if insn.flow() == Flow::Return {
            return false;
        }
        let pops = matches!(i.mnemonic(), Mnemonic::Pop | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq);
        if pops && self.rsp == Some(0) {
            return true;
        }
        if !i.op_kinds().any(|kind| kind == OpKind::Memory) || i.memory_index() != Register::None {
            return false;
        }
        let base = self.of(insn, i.memory_base());
        let at = base.map(|base| base.wrapping_add(insn.displacement()));
        // A nop's operand is no access.
        at == Some(0) && i.mnemonic() != Mnemonic::Nop
    }

    /// What a register is, if it is one of the two.
    fn of(&self, insn: &Insn, register: Register) -> Option<i64> {
        match insn.whole(register) {
            Register::RSP => self.rsp,
            Register::RBP => self.rbp,
            _ => None,
        }
    }

    fn set(&mut self, insn: &Insn, register: Register, value: Option<i64>) {
        match insn.whole(register) {
            Register::RSP => self.rsp = value,
            Register::RBP => self.rbp = value,
            _ => {}
        }
    }

    /// The state behind an instruction (for a call: after it has returned; one of the next
    /// instruction does not, but is there for the address that it pushes: `call 1f; 1: pop %ebx`).
    #[must_use]
    pub fn after(&self, insn: &Insn) -> Stack {
        let i = &insn.iced;
        let mut next = *self;
        let whole = i.op0_kind() == OpKind::Register && insn.whole(i.op0_register()).is_gpr64();
        match i.mnemonic() {
            Mnemonic::Leave if i.code() != Code::Leavew => {
                next.rsp = self.rbp.map(|rbp| rbp + insn.isa().word() as i64);
                next.rbp = None;
                return next;
            }
            Mnemonic::Mov if whole && i.op1_kind() == OpKind::Register => {
                next.set(insn, i.op0_register(), self.of(insn, i.op1_register()));
                return next;
            }
            Mnemonic::Lea if whole && i.memory_index() == Register::None => {
                let base = self.of(insn, i.memory_base());
                next.set(insn, i.op0_register(), base.map(|base| base.wrapping_add(insn.displacement())));
                return next;
            }
            _ => {}
        }
        let immediate = || {
            let value = i.try_immediate(1).ok()?;
            Some(if insn.isa() == Isa::X86 { i64::from(value as i32) } else { value as i64 })
        };
        if i.op0_kind() == OpKind::Register && insn.whole(i.op0_register()) == Register::RSP {
            next.rsp = match i.mnemonic() {
                Mnemonic::Add => self.rsp.zip(immediate()).map(|(rsp, by)| rsp.wrapping_add(by)),
                Mnemonic::Sub => self.rsp.zip(immediate()).map(|(rsp, by)| rsp.wrapping_sub(by)),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => self.rsp,
                _ => None,
            };
        }
        if i.op0_kind() == OpKind::Register && insn.whole(i.op0_register()) == Register::RBP {
            let reads_only = matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
            next.rbp = if reads_only { self.rbp } else { None };
        }
        let returns = match insn.flow() {
            Flow::Call(to) => to != insn.next(),
            flow => flow == Flow::CallIndirect,
        };
        if !returns {
            next.rsp = next.rsp.map(|rsp| rsp + i64::from(i.stack_pointer_increment()));
        }
        next
    }
}
