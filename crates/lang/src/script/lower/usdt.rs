//! Arguments of USDT probes. Where they are is only known of each site: the engine puts it in.

use sidestep_bpf::{AluOp, Reg};

use super::{Lower, helper};

impl Lower<'_, '_> {
    /// Argument `n` into `r0`; 0 if there is none.
    pub(super) fn usdt_argument(&mut self, n: u32) {
        let used = self.used;
        let word = self.stack(8);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.mov_imm(Reg::R2, n as i32);
        self.out.mov(Reg::R3, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R3, word.into());
        self.out.call(helper::STATIC_ARGUMENT);
        self.release(used);
    }
}
