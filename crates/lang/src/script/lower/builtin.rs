//! Builtins.

use sidestep_bpf::{AluOp, Cond, Reg, Size, Width};

use super::super::checked::{Builtin, Timer};
use super::{COMMAND, CONSTANTS, Clock, Lower, POINT, Site, helper};

/// A number that no stack has.
const NO_STACK: u64 = 0x7fff_ffff;

impl Lower<'_, '_> {
    pub(super) fn builtin(&mut self, builtin: Builtin) {
        match builtin {
            Builtin::Arg(n) if matches!(self.site, Site::Usdt(_)) => self.usdt_argument(n),
            Builtin::Arg(n) => {
                let word = i32::from(self.shared.checked.word);
                let context = self.context();
                let first = i32::from(context.words_before_arguments()) - context.arguments.len() as i32;
                self.register(Reg::R3, context.stack_pointer);
                self.out.alu_imm(AluOp::Add, Reg::R3, word * (n as i32 + first));
                self.read_user(word, None);
            }
            Builtin::Pid => {
                self.out.call(helper::PID_TGID);
                self.out.alu_imm(AluOp::Rsh, Reg::R0, 32);
            }
            Builtin::Ppid => self.out.call(helper::PARENT),
            Builtin::Cpid => {
                self.out.map_value(Reg::R1, COMMAND, 0);
                self.out.load(Size::Dw, Reg::R0, Reg::R1, 0);
            }
            Builtin::Node => self.node(),
            Builtin::Processors => self.out.set(Reg::R0, self.shared.checked.processors),
            Builtin::Tid => {
                self.out.call(helper::PID_TGID);
                self.low_half();
            }
            Builtin::Uid => {
                self.out.call(helper::UID_GID);
                self.low_half();
            }
            Builtin::Gid => {
                self.out.call(helper::UID_GID);
                self.out.alu_imm(AluOp::Rsh, Reg::R0, 32);
            }
            Builtin::Nsecs => self.out.call(helper::NSECS),
            Builtin::Clock(timer) => {
                let Clock { boot, tai, .. } = self.shared.clock;
                self.out.call(helper::NSECS);
                self.out.set(Reg::R1, if timer == Timer::Boot { boot } else { tai });
                self.out.alu(AluOp::Add, Reg::R0, Reg::R1);
            }
            Builtin::Elapsed => {
                let start = self.shared.clock.start;
                self.out.call(helper::NSECS);
                self.out.set(Reg::R1, start);
                self.out.alu(AluOp::Sub, Reg::R0, Reg::R1);
            }
            Builtin::Latency => {
                self.shared.needs_stamp = true;
                self.out.call(helper::NSECS);
                self.register(Reg::R1, self.context().cookie());
                self.out.alu(AluOp::Sub, Reg::R0, Reg::R1);
            }
            Builtin::Cpu => self.out.call(helper::CPU),
            Builtin::Rand => {
                self.out.call(helper::RANDOM);
                self.low_half();
            }
            Builtin::Probe => match self.site {
                // What is called the same has the same number, in whatever function.
                Site::Entry | Site::Return | Site::Usdt(_) => {
                    self.out.mov(Reg::R1, Reg::R6);
                    self.out.call(helper::COOKIE);
                    self.low_half();
                }
                Site::Controller(point) => self.out.set(Reg::R0, POINT | point as u64),
            },
            Builtin::Function => self.function(),
            // The controller's programs run in no thread of the target.
            Builtin::Stack(_) if matches!(self.site, Site::Controller(_)) => self.out.set(Reg::R0, NO_STACK),
            Builtin::Stack(stack) => {
                let map = self.map_index(self.shared.checked.maps.len() + stack);
                self.out.mov(Reg::R1, Reg::R6);
                self.out.map(Reg::R2, map);
                // `BPF_F_USER_STACK`
                self.out.mov_imm(Reg::R3, 256);
                self.out.call(helper::STACK_ID);
            }
            // Where the return address is, or was.
            Builtin::Caller if self.site == Site::Return => self.register(Reg::R0, self.context().pc),
            Builtin::Caller => match self.context().link {
                Some(link) => self.register(Reg::R0, link),
                None => {
                    self.register(Reg::R3, self.context().stack_pointer);
                    self.read_user(self.shared.checked.word.into(), None);
                }
            },
            Builtin::Symbol(fact) => self.symbol(fact),
            Builtin::Goid(fact) => self.goid(fact),
            Builtin::Comm
            | Builtin::LeaderComm
            | Builtin::ParentComm
            | Builtin::Func
            | Builtin::ProbeText
            | Builtin::ProbeType
            | Builtin::Retval
            | Builtin::Register(_) => {}
        }
    }

    /// The memory node of the processor that the thread is on, into `r0`: no processor changes its
    /// node.
    fn node(&mut self) {
        let nodes = self.shared.checked.nodes.clone();
        let first = nodes.first().copied().unwrap_or(0);
        if nodes.iter().all(|node| *node == first) {
            return self.out.mov_imm(Reg::R0, first.into());
        }
        let (table, unknown) = (self.constant(&nodes, nodes.len()), self.out.label());
        self.out.call(helper::CPU);
        self.out.mov(Reg::R1, Reg::R0);
        self.out.mov_imm(Reg::R0, 0);
        self.out.branch_imm(Width::W64, Cond::Ge, Reg::R1, nodes.len() as i32, unknown);
        self.out.map_value(Reg::R2, CONSTANTS, table);
        self.out.alu(AluOp::Add, Reg::R2, Reg::R1);
        self.out.load(Size::B, Reg::R0, Reg::R2, 0);
        self.out.bind(unknown);
    }
}
