//! Handlers that run when the probed instruction has been executed: where that is possible.

use sidestep_isa::x86::Flow;
use sidestep_isa::{Isa, Va};

use crate::policy::plan::Plan;
use crate::reason::NotBehind;

/// `syscall`; the other ways into the kernel do not lead to the next instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];

impl Plan {
    /// Link-time address behind the probed instruction, if execution always goes on there. Else why
    /// not.
    ///
    /// Nothing is lost by that: where a branch leads is an instruction of its own.
    pub fn behind(&self) -> Result<Va, NotBehind> {
        if self.before_handler != 0 {
            return Err(NotBehind::StackCheck);
        }
        let Some(first) = self.displaced.first() else {
            return self.resume.ok_or(NotBehind::NotDisplaced);
        };
        let insn = first.decoded(self.isa).map_err(|_| NotBehind::Undecodable)?;
        match insn.flow() {
            Flow::Next => Ok(insn.next()),
            Flow::Syscall if self.isa == Isa::X64 && first.bytes().ends_with(&SYSCALL) => Ok(insn.next()),
            Flow::Jump(_) | Flow::Branch(_) | Flow::JumpIndirect => Err(NotBehind::Branch),
            Flow::Call(_) | Flow::CallIndirect | Flow::Return => Err(NotBehind::Branch),
            Flow::Syscall | Flow::Interrupt | Flow::Stop | Flow::Far | Flow::Transaction(_) => {
                Err(NotBehind::DoesNotContinue)
            }
        }
    }
}
