//! Handlers that run when the probed instruction has been executed: where that is possible.

use sidestep_isa::{Flow, Va};

use crate::policy::plan::Plan;
use crate::reason::NotBehind;

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
        if insn.is_exclusive_load() {
            return Err(NotBehind::BeginsSequence);
        }
        match insn.flow() {
            Flow::Next => Ok(insn.next()),
            Flow::Syscall if insn.is_plain_syscall() => Ok(insn.next()),
            Flow::Jump(_) | Flow::Branch(_) | Flow::JumpIndirect => Err(NotBehind::Branch),
            Flow::Call(_) | Flow::CallIndirect | Flow::Return => Err(NotBehind::Branch),
            Flow::Syscall | Flow::Interrupt | Flow::Stop | Flow::Far | Flow::Transaction(_) => {
                Err(NotBehind::DoesNotContinue)
            }
        }
    }
}
