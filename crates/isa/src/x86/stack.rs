//! Where the stack pointer is behind an x86 instruction ([`crate::stack`]).

use iced_x86::{Code, Mnemonic, OpKind, Register};

use super::decode::Insn;
use crate::Isa;
use crate::insn::Flow;
use crate::stack::Stack;

impl Insn {
    /// See [`Stack::names_return_address`].
    pub(crate) fn names_return_address(&self, stack: Stack) -> bool {
        let i = &self.iced;
        if self.flow() == Flow::Return {
            return false;
        }
        let pops = matches!(i.mnemonic(), Mnemonic::Pop | Mnemonic::Popf | Mnemonic::Popfd | Mnemonic::Popfq);
        if pops && stack.sp == Some(0) {
            return true;
        }
        if !i.op_kinds().any(|kind| kind == OpKind::Memory) || i.memory_index() != Register::None {
            return false;
        }
        let base = self.tracked(stack, i.memory_base());
        let at = base.map(|base| base.wrapping_add(self.displacement()));
        // A nop's operand is no access.
        at == Some(0) && i.mnemonic() != Mnemonic::Nop
    }

    /// What a register is, if it is one of the two.
    fn tracked(&self, stack: Stack, register: Register) -> Option<i64> {
        match self.whole(register) {
            Register::RSP => stack.sp,
            Register::RBP => stack.fp,
            _ => None,
        }
    }

    fn track(&self, stack: &mut Stack, register: Register, value: Option<i64>) {
        match self.whole(register) {
            Register::RSP => stack.sp = value,
            Register::RBP => stack.fp = value,
            _ => {}
        }
    }

    /// See [`Stack::after`]. A call of the next instruction does not return, but is there for the
    /// address that it pushes: `call 1f; 1: pop %ebx`.
    pub(crate) fn stack_after(&self, stack: Stack) -> Stack {
        let i = &self.iced;
        let mut next = stack;
        let whole = i.op0_kind() == OpKind::Register && self.whole(i.op0_register()).is_gpr64();
        match i.mnemonic() {
            Mnemonic::Leave if i.code() != Code::Leavew => {
                next.sp = stack.fp.map(|rbp| rbp + self.isa().word() as i64);
                next.fp = None;
                return next;
            }
            Mnemonic::Mov if whole && i.op1_kind() == OpKind::Register => {
                self.track(&mut next, i.op0_register(), self.tracked(stack, i.op1_register()));
                return next;
            }
            Mnemonic::Lea if whole && i.memory_index() == Register::None => {
                let base = self.tracked(stack, i.memory_base());
                self.track(&mut next, i.op0_register(), base.map(|base| base.wrapping_add(self.displacement())));
                return next;
            }
            _ => {}
        }
        let immediate = || {
            let value = i.try_immediate(1).ok()?;
            Some(if self.isa() == Isa::X86 { i64::from(value as i32) } else { value as i64 })
        };
        if i.op0_kind() == OpKind::Register && self.whole(i.op0_register()) == Register::RSP {
            next.sp = match i.mnemonic() {
                Mnemonic::Add => stack.sp.zip(immediate()).map(|(rsp, by)| rsp.wrapping_add(by)),
                Mnemonic::Sub => stack.sp.zip(immediate()).map(|(rsp, by)| rsp.wrapping_sub(by)),
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push => stack.sp,
                _ => None,
            };
        }
        if i.op0_kind() == OpKind::Register && self.whole(i.op0_register()) == Register::RBP {
            let reads_only = matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push);
            next.fp = if reads_only { stack.fp } else { None };
        }
        let returns = match self.flow() {
            Flow::Call(to) => to != self.next(),
            flow => flow == Flow::CallIndirect,
        };
        if !returns {
            next.sp = next.sp.map(|rsp| rsp + i64::from(i.stack_pointer_increment()));
        }
        next
    }
}
