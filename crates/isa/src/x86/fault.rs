//! Faults: which instructions may raise a signal, so that somebody may ask for their address.

use iced_x86::{CpuidFeature, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::decode::Insn;
use crate::Isa;
use crate::insn::Flow;

impl Insn {
    /// Whether it may raise an exception that a program sees as a signal at its address (SDM volume
    /// 3, section 7.15): a page fault, a division, an unmasked floating-point exception, an invalid
    /// or privileged instruction, a trap.
    ///
    /// Conservative: `false` is a promise for programs that have their own code, data and stack
    /// mapped. It is given to instructions that every x86-64 CPU has, which compute with
    /// general-purpose registers or move vectors, and touch no memory but rip-relative operands
    /// and, by `push`, `pop`, `call` and `ret`, the top of the stack.
    #[must_use]
    pub fn may_fault(&self) -> bool {
        let iced = &self.iced;
        let flow = self.flow();
        match flow {
            Flow::Interrupt | Flow::Stop | Flow::Transaction(_) | Flow::Far => return true,
            Flow::Syscall => return iced.mnemonic() != Mnemonic::Syscall || self.isa() == Isa::X86,
            // An address that is not canonical faults at the jump. What lies in an object's own
            // data are real addresses.
            Flow::JumpIndirect | Flow::CallIndirect => return self.pc_target().is_none(),
            Flow::Jump(_) | Flow::Branch(_) | Flow::Call(_) | Flow::Return | Flow::Next => {}
        }
        // `lock` is valid with a memory operand only, and that is judged by its address.
        iced.is_privileged()
            || !iced.cpuid_features().iter().all(is_everywhere)
            || matches!(iced.mnemonic(), Mnemonic::Div | Mnemonic::Idiv | Mnemonic::Aam | Mnemonic::Wait)
            || iced.mnemonic() == Mnemonic::Bound
            // User-mode instruction prevention (SDM volume 3, section 2.5, CR4.UMIP).
            || matches!(iced.mnemonic(), Mnemonic::Smsw | Mnemonic::Sldt | Mnemonic::Str)
            // Some are no instructions for AMD's CPUs (`prefetchw` of a register).
            || iced.mnemonic() == Mnemonic::Reservednop
            || !self.computes_or_moves()
            || !self.memory_is_there()
    }

    /// The same, where what lies on the stack above its pointer is there, too.
    #[must_use]
    pub fn may_fault_off_stack(&self) -> bool {
        let iced = &self.iced;
        let is_slot = matches!(iced.memory_base(), Register::RSP | Register::ESP)
            && iced.memory_index() == Register::None
            && iced.segment_prefix() == Register::None
            && !iced.is_stack_instruction();
        let moves = matches!(iced.mnemonic(), Mnemonic::Mov | Mnemonic::Lea | Mnemonic::Movups | Mnemonic::Movdqu);
        self.may_fault() && !(is_slot && moves && self.computes_or_moves())
    }

    /// Whether the fault of this instruction may be what the program waits for, which then goes on
    /// somewhere else with the registers as they were: with a landing pad
    /// (`-fnon-call-exceptions`), or where a handler's own table says. Neither the stack of the
    /// thread nor its own block of data is missing in a program that goes on.
    #[must_use]
    pub fn is_recoverable(&self) -> bool {
        let iced = &self.iced;
        let is_thread_data = matches!(iced.memory_segment(), Register::FS | Register::GS)
            && iced.memory_base() == Register::None
            && iced.memory_index() == Register::None;
        let moves = iced.mnemonic() == Mnemonic::Mov;
        self.may_fault_off_stack() && !(is_thread_data && moves && self.computes_or_moves())
    }

    /// There are no exclusive sequences: `lock` is a prefix of one instruction.
    #[must_use]
    pub fn is_exclusive_load(&self) -> bool {
        false
    }

    /// A thread never stands inside an instruction.
    #[must_use]
    pub fn is_divisible(&self) -> bool {
        false
    }

    /// See [`Insn::is_exclusive_load`].
    #[must_use]
    pub fn is_exclusive_store(&self) -> bool {
        false
    }

    /// Only general-purpose registers, or a vector instruction that never computes with
    /// floating-point numbers.
    fn computes_or_moves(&self) -> bool {
        use Mnemonic::{
            Andps, Lfence, Mfence, Movapd, Movaps, Movd, Movdqa, Movdqu, Movhlps, Movlhps, Movq, Movsd, Movss, Movups,
            Orps, Pand, Pandn, Por, Pshufd, Punpcklqdq, Pxor, Sfence, Xorpd, Xorps,
        };
        let vectors = [
            Andps, Lfence, Mfence, Movapd, Movaps, Movd, Movdqa, Movdqu, Movhlps, Movlhps, Movq, Movsd, Movss, Movups,
            Orps, Pand, Pandn, Por, Pshufd, Punpcklqdq, Pxor, Sfence, Xorpd, Xorps,
        ];
        let iced = &self.iced;
        if iced.cpuid_features().iter().any(|feature| matches!(feature, CpuidFeature::SSE | CpuidFeature::SSE2)) {
            return vectors.contains(&iced.mnemonic());
        }
        // Segments are no numbers.
        let segment =
            matches!(iced.mnemonic(), Mnemonic::Lss | Mnemonic::Lds | Mnemonic::Les | Mnemonic::Lfs | Mnemonic::Lgs);
        !segment && (0..iced.op_count()).all(|op| iced.op_kind(op) != OpKind::Register || iced.op_register(op).is_gpr())
    }

    /// Each access goes to the object itself or to the top of the stack.
    fn memory_is_there(&self) -> bool {
        let iced = &self.iced;
        // What computes with registers and numbers touches no memory.
        let is_no_memory = |kind| {
            use OpKind::{Immediate8, Immediate8to16, Immediate8to32, Immediate8to64, Immediate16, Immediate32};
            use OpKind::{Immediate32to64, Immediate64, Register};
            matches!(
                kind,
                Register
                    | Immediate8
                    | Immediate8to16
                    | Immediate8to32
                    | Immediate8to64
                    | Immediate16
                    | Immediate32
                    | Immediate32to64
                    | Immediate64
            )
        };
        let is_explicit = iced.op_count() > 0 && iced.op_kinds().all(is_no_memory);
        if is_explicit && !iced.is_stack_instruction() && self.flow() == Flow::Next {
            return true;
        }
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(iced);
        let mut used =
            info.used_memory().iter().filter(|m| !matches!(m.access(), OpAccess::None | OpAccess::NoMemAccess));
        if matches!(iced.mnemonic(), Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc)
            && iced.op_kind(0) == OpKind::Memory
            && iced.op_kind(1) == OpKind::Register
        {
            // The register says how far from the operand the bit is.
            return false;
        }
        let explicit = iced.op_kinds().any(|kind| kind == OpKind::Memory) && self.pc_target().is_none();
        used.all(|memory| match memory.base() {
            _ if matches!(memory.segment(), Register::FS | Register::GS) => false,
            // `enter` makes a frame of any size.
            Register::RSP | Register::ESP => {
                iced.is_stack_instruction() && !explicit && iced.mnemonic() != Mnemonic::Enter
            }
            _ => self.pc_target().is_some(),
        })
    }
}

/// Part of every x86-64 CPU, and not reserved for the system by some kernel or setting.
fn is_everywhere(feature: &CpuidFeature) -> bool {
    use CpuidFeature::{CET_IBT, CMOV, INTEL186, INTEL386, INTEL486, INTEL8086, MULTIBYTENOP, PAUSE, SSE, SSE2, X64};
    matches!(
        feature,
        CET_IBT | CMOV | INTEL8086 | INTEL186 | INTEL386 | INTEL486 | MULTIBYTENOP | PAUSE | SSE | SSE2 | X64
    )
}
