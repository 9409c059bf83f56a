//! Loops over maps: the body is a function, which the helper `loop` calls until there is no further
//! entry.

use sidestep_bpf::{Cond, Insn, Reg, Size, Width};

use super::super::checked::{Each, Op};
use super::super::types::{Content, Type};
use super::text::At;
use super::{Lower, Place, SCRATCH, helper, key_size};
use crate::build::Label;

/// Calls of a function by the helper at most, as in the kernel.
const CALLS: i32 = 1 << 23;

/// The body of a loop, which is still to be written.
pub(super) struct Walk {
    /// Where it begins.
    start: Label,
    of: Each,
    /// Memory with the cursor.
    cursor: u32,
    /// A word that says that the block ends, if the body may do so.
    left: Option<u32>,
}

impl Lower<'_, '_> {
    pub(super) fn each(&mut self, of: &Each) {
        let cursor = self.scratch(8);
        let left = leaves(&of.body).then(|| self.scratch(8));
        for word in [Some(cursor), left].into_iter().flatten() {
            self.out.map_value(Reg::R1, SCRATCH, word);
            self.out.put_imm(Reg::R1, 0, 0);
        }
        let context = self.stack(8);
        self.out.put(Reg::R10, context, Reg::R6);
        let start = self.out.label();
        self.out.mov_imm(Reg::R1, CALLS);
        self.out.function(Reg::R2, start);
        self.address(Reg::R3, At::Stack(context));
        self.out.mov_imm(Reg::R4, 0);
        self.out.call(helper::LOOP);
        if let Some(left) = left {
            let end = self.end;
            self.out.map_value(Reg::R1, SCRATCH, left);
            self.out.load(Size::Dw, Reg::R1, Reg::R1, 0);
            self.out.branch_imm(Width::W64, Cond::Ne, Reg::R1, 0, end);
        }
        self.walks.push(Walk { start, of: of.clone(), cursor, left });
    }

    /// A function of the number of the round and the address of the context. Its result is not 0 if
    /// the loop ends.
    pub(super) fn walk(&mut self, walk: &Walk) {
        let Place::Scratch(var) = self.vars[walk.of.var].0 else { return };
        let map = &self.shared.checked.maps[walk.of.map];
        let (content, key) = (map.content.clone(), key_size(&map.keys));
        let (next, stop) = (self.out.label(), self.out.label());
        self.end = self.out.label();
        self.out.bind(walk.start);
        self.out.load(Size::Dw, Reg::R6, Reg::R2, 0);
        // Of an average there is more than the number that the loop sees.
        let at = match content {
            Content::Value(_) => var,
            _ => self.scratch(key + content.stored()),
        };
        let index = self.map_index(walk.of.map);
        self.out.map_value(Reg::R2, SCRATCH, walk.cursor);
        self.out.load(Size::Dw, Reg::R2, Reg::R2, 0);
        self.out.map(Reg::R1, index);
        self.address(Reg::R3, At::Scratch(at));
        self.out.mov_imm(Reg::R4, (key + content.stored()) as i32);
        self.out.call(helper::MAP_NEXT);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, stop);
        self.out.map_value(Reg::R1, SCRATCH, walk.cursor);
        self.out.put(Reg::R1, 0, Reg::R0);
        if at != var {
            let of = Type::Bytes(key - 8);
            self.copy(At::Scratch(var), &of, At::Scratch(at), &of);
            self.address(Reg::R0, At::Scratch(at).plus(key));
            self.number_at(walk.of.map);
            self.store(At::Scratch(var).plus(key), Reg::R0);
        }
        self.clear_vars(walk.of.number, Some(walk.of.var));
        self.loops = vec![(next, stop)];
        self.ops(&walk.of.body);
        self.loops.clear();
        self.out.bind(next);
        self.out.mov_imm(Reg::R0, 0);
        self.out.push(Insn::Exit);
        let end = self.end;
        self.out.bind(end);
        if let Some(left) = walk.left {
            self.out.map_value(Reg::R1, SCRATCH, left);
            self.out.put_imm(Reg::R1, 0, 1);
        }
        self.out.bind(stop);
        self.out.mov_imm(Reg::R0, 1);
        self.out.push(Insn::Exit);
    }
}

/// Whether the block may end in there.
fn leaves(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Return | Op::Exit(..) => true,
        Op::If(_, then, otherwise) => leaves(then) || leaves(otherwise),
        Op::Loop(of) => leaves(&of.body),
        Op::Each(of) => leaves(&of.body),
        _ => false,
    })
}
