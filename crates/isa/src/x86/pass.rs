//! What x86 instructions change, for probes behind them ([`crate::passed`]).

use iced_x86::{InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, RflagsBits};

use super::decode::Insn;
use crate::Isa;
use crate::insn::{Flow, RegisterSet};
use crate::passed::Passed;

impl Insn {
    /// What has changed when it has been executed; `None` where that cannot be told or matters to
    /// others than the function itself: where it writes to memory other than by `push`, to vectors
    /// or to segment registers, goes elsewhere, or may fault by reading through a pointer other
    /// than the stack's.
    #[must_use]
    pub fn passed(&self) -> Option<Passed> {
        if self.flow() != Flow::Next {
            return None;
        }
        if self.is_nop() || self.is_target_mark() {
            return Some(Passed::Nothing);
        }
        if let Some(bytes) = self.lowers_stack() {
            return Some(Passed::Stack { bytes, flags: self.iced.mnemonic() == Mnemonic::Sub });
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(&self.iced);
        let keeps = |access: OpAccess| matches!(access, OpAccess::None | OpAccess::NoMemAccess | OpAccess::Read);
        let is_placed = |base: Register, segment: Register| {
            let segment = matches!(segment, Register::FS | Register::GS);
            self.whole(base) == Register::RSP || base == Register::None && segment || self.pc_target().is_some()
        };
        let memory = info.used_memory().iter().all(|used| {
            used.access() == OpAccess::NoMemAccess
                || keeps(used.access()) && used.index() == Register::None && is_placed(used.base(), used.segment())
        });
        // The general registers are in the usage; any other one must stay as it is.
        let others = info.used_registers().iter().all(|used| used.register().is_gpr() || keeps(used.access()));
        let regs = self.usage().writes;
        if !memory || !others || regs & RSP != 0 || self.iced.is_privileged() {
            return None;
        }
        let flags = self.iced.rflags_modified() != RflagsBits::NONE;
        Some(Passed::Registers { regs, flags })
    }

    /// By how much it lowers the stack pointer, if that, and what it writes there, is all.
    fn lowers_stack(&self) -> Option<i32> {
        let i = &self.iced;
        let whole = |register: Register| self.whole(register).is_gpr64();
        let word = self.isa().word() as i32;
        match i.mnemonic() {
            Mnemonic::Push if i.stack_pointer_increment() == -word => {
                let plain = match i.op0_kind() {
                    OpKind::Register => whole(i.op0_register()),
                    kind => kind != OpKind::Memory,
                };
                plain.then_some(word)
            }
            Mnemonic::Sub if i.op0_kind() == OpKind::Register && self.whole(i.op0_register()) == Register::RSP => {
                let is_number = !matches!(i.op1_kind(), OpKind::Register | OpKind::Memory);
                let narrow = self.isa() == Isa::X64 && !i.op0_register().is_gpr64();
                if !is_number || narrow {
                    return None;
                }
                i32::try_from(i.immediate(1) as i64).ok().filter(|bytes| *bytes > 0)
            }
            _ => None,
        }
    }
}

const RSP: RegisterSet = 1 << 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Va;
    use crate::x86::decode;

    fn passed(isa: Isa, code: &[u8]) -> Option<Passed> {
        decode(isa, code, Va(0x1000)).unwrap().passed()
    }

    #[test]
    fn what_is_left_of_the_state_in_front() {
        let regs = |regs, flags| Some(Passed::Registers { regs, flags });
        let stack = |bytes, flags| Some(Passed::Stack { bytes, flags });
        for (code, want) in [
            (&[0x90][..], Some(Passed::Nothing)),
            (&[0x0f, 0x1f, 0x44, 0, 0], Some(Passed::Nothing)),
            (&[0xf3, 0x0f, 0x1e, 0xfa], Some(Passed::Nothing)),
            (&[0x55], stack(8, false)),                                       // push %rbp
            (&[0x41, 0x57], stack(8, false)),                                 // push %r15
            (&[0x54], stack(8, false)),                                       // push %rsp
            (&[0x6a, 0x01], stack(8, false)),                                 // push $1
            (&[0x66, 0x55], None),                                            // push %bp
            (&[0xff, 0x37], None),                                            // push (%rdi)
            (&[0x48, 0x83, 0xec, 0x18], stack(0x18, true)),                   // sub $0x18,%rsp
            (&[0x48, 0x81, 0xec, 0, 0x10, 0, 0], stack(0x1000, true)),        // sub $0x1000,%rsp
            (&[0x48, 0x83, 0xec, 0x80], None),                                // sub $-0x80,%rsp
            (&[0x83, 0xec, 0x18], None),                                      // sub $0x18,%esp
            (&[0x48, 0x29, 0xc4], None),                                      // sub %rax,%rsp
            (&[0x48, 0x89, 0xfb], regs(1 << 3, false)),                       // mov %rdi,%rbx
            (&[0x31, 0xc0], regs(1, true)),                                   // xor %eax,%eax
            (&[0x48, 0x85, 0xff], regs(0, true)),                             // test %rdi,%rdi
            (&[0xf3, 0x0f, 0x1e, 0xc8], regs(1, false)),                      // rdsspd %eax
            (&[0x48, 0x8b, 0x05, 1, 0, 0, 0], regs(1, false)),                // mov 1(%rip),%rax
            (&[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], regs(1, false)), // mov %fs:0x28,%rax
            (&[0x48, 0x8d, 0x47, 0x08], regs(1, false)),                      // lea 8(%rdi),%rax
            (&[0x8b, 0x07], None),                                            // mov (%rdi),%eax
            (&[0x89, 0x07], None),                                            // mov %eax,(%rdi)
            (&[0x48, 0x89, 0x05, 1, 0, 0, 0], None),                          // mov %rax,1(%rip)
            (&[0x66, 0x0f, 0xef, 0xc0], None),                                // pxor %xmm0,%xmm0
            (&[0x5b], None),                                                  // pop %rbx
            (&[0xc9], None),                                                  // leave
            (&[0xc3], None),                                                  // ret
            (&[0xe8, 0, 0, 0, 0], None),                                      // call
            (&[0xeb, 0], None),                                               // jmp
            (&[0x0f, 0x05], None),                                            // syscall
            (&[0xaa], None),                                                  // stos
            (&[0x8e, 0xe0], None),                                            // mov %eax,%fs
        ] {
            assert_eq!(passed(Isa::X64, code), want, "{code:02x?}");
        }
        for (code, want) in [
            (&[0x55][..], stack(4, false)),           // push %ebp
            (&[0x83, 0xec, 0x18], stack(0x18, true)), // sub $0x18,%esp
            (&[0xf3, 0x0f, 0x1e, 0xfb], Some(Passed::Nothing)),
            (&[0x89, 0xe5], regs(1 << 5, false)),        // mov %esp,%ebp
            (&[0x8b, 0x44, 0x24, 0x04], regs(1, false)), // mov 4(%esp),%eax
        ] {
            assert_eq!(passed(Isa::X86, code), want, "{code:02x?}");
        }
    }
}
