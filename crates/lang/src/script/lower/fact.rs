//! What programs are told of their probes: an entry of a map for each probe, by its number.

use sidestep_bpf::{AluOp, Cond, Reg, Size, Width};

use super::super::ast::Provider;
use super::super::types::{POINT as PLACE, text_room};
use super::text::At;
use super::{FACTS, Lower, PLACES, Site, helper};

/// `r14` in the context: Go's goroutine.
const R14: i16 = 8;

impl Lower<'_, '_> {
    /// The number of the probe into a word on the stack.
    fn probe_number(&mut self) -> At {
        let key = self.stack(8);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::COOKIE);
        self.low_half();
        self.out.put(Reg::R10, key, Reg::R0);
        At::Stack(key)
    }

    /// The number that a fact says into `r0`; goes to `missing` with 0 if it is not known.
    fn fact(&mut self, fact: usize, missing: crate::build::Label) {
        let key = self.probe_number();
        self.lookup_in(FACTS, key);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.load(Size::Dw, Reg::R0, Reg::R0, 8 * fact as i16);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.alu_imm(AluOp::Arsh, Reg::R0, 1);
    }

    /// The address of a symbol into `r0`; 0 if there is none.
    pub(super) fn symbol(&mut self, fact: usize) {
        let used = self.used;
        let missing = self.out.label();
        let distance = self.stack(8);
        self.fact(fact, missing);
        self.out.put(Reg::R10, distance, Reg::R0);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::FUNC_IP);
        self.out.load(Size::Dw, Reg::R1, Reg::R10, distance);
        self.out.alu(AluOp::Add, Reg::R0, Reg::R1);
        self.out.bind(missing);
        self.release(used);
    }

    /// The number of the goroutine into `r0`; 0 where no Go runs.
    pub(super) fn goid(&mut self, fact: usize) {
        let used = self.used;
        let missing = self.out.label();
        self.fact(fact, missing);
        self.out.load(Size::Dw, Reg::R3, Reg::R6, R14);
        self.out.alu(AluOp::Add, Reg::R3, Reg::R0);
        self.read_user(8, None);
        self.out.bind(missing);
        self.release(used);
    }

    /// The kind of the probe that was hit.
    pub(super) fn probe_type(&mut self) -> At {
        let text: &[u8] = match self.site {
            Site::Entry => b"uprobe",
            Site::Return => b"uretprobe",
            Site::Usdt(_) => b"usdt",
            Site::Controller(point) if self.shared.points[point].provider == Provider::Interval => b"interval",
            Site::Controller(_) => b"special",
        };
        At::Value(super::CONSTANTS, self.constant(text, text_room(text.len().max(9))))
    }

    /// The attach point that was hit.
    pub(super) fn probe_text(&mut self) -> At {
        if let Site::Controller(point) = self.site {
            let text = self.shared.points[point].label();
            let at = self.constant(&text.as_bytes()[..text.len().min(PLACE)], text_room(PLACE));
            return At::Value(super::CONSTANTS, at);
        }
        self.shared.uses_places = true;
        let used = self.used;
        let to = At::Scratch(self.scratch(text_room(PLACE)));
        let missing = self.out.label();
        self.clear(to, text_room(PLACE));
        let key = self.probe_number();
        self.lookup_in(PLACES, key);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.mov(Reg::R3, Reg::R0);
        self.address(Reg::R1, to);
        self.out.mov_imm(Reg::R2, (PLACE + 1) as i32);
        self.out.call(helper::READ_KERNEL_STR);
        self.out.bind(missing);
        self.release(used);
        to
    }
}
