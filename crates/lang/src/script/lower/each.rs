//! Loops over maps: the body is a function, which the helper `loop` calls until there is no further
//! entry.

use sidestep_bpf::{Cond, Reg, Size, Width};

use super::super::checked::{Each, Op, Value, ValueKind};
use super::super::types::{Content, Type};
use super::rounds::{Calls, Limit};
use super::text::At;
use super::{Body, Lower, Place, SCRATCH, helper, key_size};

/// Entries that a loop over a map comes to at most (`BPF_MAX_LOOPS`).
const ENTRIES: u64 = 1 << 23;

impl Lower<'_, '_> {
    pub(super) fn each(&mut self, of: &Each) {
        let cursor = self.scratch(8);
        self.out.map_value(Reg::R1, SCRATCH, cursor);
        self.out.put_imm(Reg::R1, 0, 0);
        let most = Value { ty: Type::INT, kind: ValueKind::Int(ENTRIES) };
        let calls = self.call_body(&most, leaves(&of.body), Limit::Rounds);
        self.leave_if_left(&calls);
        self.bodies.push(Body::Each { of: of.clone(), cursor, calls });
    }

    /// A function of the number of the round and the address of the context. Its result is not 0 if
    /// the loop ends.
    pub(super) fn each_body(&mut self, of: &Each, cursor: u32, calls: &Calls) {
        let Place::Scratch(var) = self.vars[of.var].0 else { return };
        let map = &self.shared.checked.maps[of.map];
        let (content, key) = (map.content.clone(), key_size(&map.keys));
        let (next, stop) = (self.out.label(), self.out.label());
        self.end = self.out.label();
        self.out.bind(calls.start);
        self.out.load(Size::Dw, Reg::R6, Reg::R2, 0);
        // Of an average there is more than the number that the loop sees.
        let at = match content {
            Content::Value(_) => var,
            _ => self.scratch(key + content.stored()),
        };
        let index = self.map_index(of.map);
        self.out.map_value(Reg::R2, SCRATCH, cursor);
        self.out.load(Size::Dw, Reg::R2, Reg::R2, 0);
        self.out.map(Reg::R1, index);
        self.address(Reg::R3, At::Scratch(at));
        self.out.mov_imm(Reg::R4, (key + content.stored()) as i32);
        self.out.call(helper::MAP_NEXT);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, stop);
        self.out.map_value(Reg::R1, SCRATCH, cursor);
        self.out.put(Reg::R1, 0, Reg::R0);
        if at != var {
            let bytes = Type::Bytes(key - 8);
            self.copy(At::Scratch(var), &bytes, At::Scratch(at), &bytes);
            self.address(Reg::R0, At::Scratch(at).plus(key));
            self.number_at(of.map, self.usual(of.map));
            self.store(At::Scratch(var).plus(key), Reg::R0);
        }
        self.clear_vars(of.number, Some(of.var));
        self.loops = vec![(next, stop)];
        self.ops(&of.body);
        self.loops.clear();
        self.end_body(calls, next, stop);
    }
}

/// Whether the block may end in there.
pub(super) fn leaves(ops: &[Op]) -> bool {
    ops.iter().any(|op| match op {
        Op::Return | Op::Exit(..) => true,
        Op::If(_, then, otherwise) => leaves(then) || leaves(otherwise),
        // One that lasts too long ends the block.
        Op::Loop(of) => of.number.is_some() || leaves(&of.body),
        Op::Each(of) => leaves(&of.body),
        _ => false,
    })
}
