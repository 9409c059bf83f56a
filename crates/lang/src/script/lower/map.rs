//! Entries of maps.

use sidestep_bpf::{AtomicOp, Cond, Insn, Reg, Size, Width};

use super::super::checked::{Entry, Stat, Value};
use super::super::types::Type;
use super::text::At;
use super::{CONSTANTS, Lower, helper, is_array, key_size};
use crate::build::Label;

/// Keys up to this length lie on the stack.
const SHORT: usize = 64;
/// `BPF_NOEXIST`
const NO_EXIST: i32 = 1;

impl Lower<'_, '_> {
    /// Whether the map is one value at a place that is known.
    pub(super) fn is_array(&self, map: usize) -> bool {
        is_array(&self.shared.checked.maps[map])
    }

    /// Puts the key together.
    pub(super) fn key(&mut self, entry: &Entry) -> At {
        let types = self.shared.checked.maps[entry.map].keys.clone();
        let len = key_size(&types);
        let at = if len <= SHORT { At::Stack(self.stack(len)) } else { At::Scratch(self.scratch(len)) };
        if entry.keys.is_empty() {
            self.address(Reg::R1, at);
            self.out.put_imm(Reg::R1, 0, 0);
        }
        // A tuple is as many keys, a record is one.
        match &entry.keys[..] {
            [key @ Value { ty: Type::Tuple(parts), .. }] if parts.are_keys() => {
                self.write(at, key, &Type::Tuple(types.into()));
                return at;
            }
            _ => {}
        }
        let mut offset = 0;
        for (ty, key) in types.iter().zip(&entry.keys) {
            self.write(at.plus(offset), key, ty);
            offset += ty.stored();
        }
        at
    }

    /// `r0` becomes the address of the entry's value, or 0.
    pub(super) fn lookup(&mut self, map: usize, key: At) {
        let index = self.map_index(map);
        self.lookup_in(index, key);
    }

    /// The same, of a map by its index in the session.
    pub(super) fn lookup_in(&mut self, index: u32, key: At) {
        self.address(Reg::R2, key);
        self.out.map(Reg::R1, index);
        self.out.call(helper::LOOKUP);
    }

    /// The same, with a constant in an entry that was not there (at 0 are zeros). Goes to `missing`
    /// if there is no room for one.
    pub(super) fn lookup_or_insert(&mut self, map: usize, key: At, first: u32, missing: Label) {
        let index = self.map_index(map);
        self.lookup_or_insert_in(index, key, first, missing);
    }

    /// The same, of a map by its index in the session.
    pub(super) fn lookup_or_insert_in(&mut self, index: u32, key: At, first: u32, missing: Label) {
        let there = self.out.label();
        self.lookup_in(index, key);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, there);
        self.out.map(Reg::R1, index);
        self.address(Reg::R2, key);
        self.out.map_value(Reg::R3, CONSTANTS, first);
        self.out.mov_imm(Reg::R4, NO_EXIST);
        self.out.call(helper::UPDATE);
        self.lookup_in(index, key);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.bind(there);
    }

    /// The number in a map, or one of what is counted there, into `r0`; 0 if it is not there.
    pub(super) fn read_map(&mut self, entry: &Entry, stat: Option<Stat>) {
        let index = self.map_index(entry.map);
        if self.is_array(entry.map) {
            self.unless_set(entry);
            self.out.map_value(Reg::R0, index, 0);
            self.number_at(entry.map, stat);
            return;
        }
        let used = self.used;
        let key = self.key(entry);
        self.lookup(entry.map, key);
        let missing = self.out.label();
        self.unless_there(entry, missing);
        self.number_at(entry.map, stat);
        self.out.bind(missing);
        self.release(used);
    }

    /// Whether a key is there, into `r0`.
    pub(super) fn has(&mut self, entry: &Entry) {
        let used = self.used;
        let key = self.key(entry);
        self.lookup(entry.map, key);
        let missing = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.mov_imm(Reg::R0, 1);
        self.out.bind(missing);
        self.release(used);
    }

    pub(super) fn set_map(&mut self, entry: &Entry, value: &Value) {
        let index = self.map_index(entry.map);
        let content = self.shared.checked.maps[entry.map].content.clone();
        let wide = match &content {
            super::Content::Value(ty) if ty.is_wide() => Some(ty),
            _ => None,
        };
        if self.is_array(entry.map) {
            match wide {
                Some(ty) => {
                    self.set_wide(At::Value(index, 0), ty, value);
                    self.out.map_value(Reg::R1, index, 0);
                }
                None => {
                    self.int(value);
                    self.out.map_value(Reg::R1, index, 0);
                    self.out.put(Reg::R1, 0, Reg::R0);
                }
            }
            self.out.put_imm(Reg::R1, content.stored() as i16, 1);
            return;
        }
        let at = match wide {
            Some(ty) => {
                let at = At::Scratch(self.scratch(content.stored()));
                self.write(at, value, ty);
                at
            }
            None => {
                self.int(value);
                let at = At::Stack(self.stack(8));
                self.store(at, Reg::R0);
                at
            }
        };
        let key = self.key(entry);
        self.out.map(Reg::R1, index);
        self.address(Reg::R2, key);
        self.address(Reg::R3, at);
        self.out.mov_imm(Reg::R4, 0);
        self.out.call(helper::UPDATE);
    }

    /// Adds to the number in a map, in one step. `fetch`: `r0` becomes what was there before.
    pub(super) fn add_map(&mut self, entry: &Entry, value: &Value, fetch: bool) {
        let index = self.map_index(entry.map);
        let add = Insn::Atomic { width: Width::W64, op: AtomicOp::Add { fetch }, base: Reg::R1, off: 0, src: Reg::R0 };
        self.int(value);
        if self.is_array(entry.map) {
            self.out.map_value(Reg::R1, index, 0);
            self.out.push(add);
            self.out.put_imm(Reg::R1, 8, 1);
            return;
        }
        let used = self.used;
        let missing = self.out.label();
        let number = self.stack(8);
        self.out.put(Reg::R10, number, Reg::R0);
        let key = self.key(entry);
        self.lookup_or_insert(entry.map, key, 0, missing);
        self.out.mov(Reg::R1, Reg::R0);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, number);
        self.out.push(add);
        self.out.bind(missing);
        self.release(used);
    }

    pub(super) fn delete(&mut self, entry: &Entry) {
        let index = self.map_index(entry.map);
        if self.is_array(entry.map) {
            let words = self.shared.checked.maps[entry.map].content.stored() / 8;
            self.out.map_value(Reg::R1, index, 0);
            for word in 0..=words {
                self.out.put_imm(Reg::R1, 8 * word as i16, 0);
            }
            return;
        }
        let key = self.key(entry);
        self.out.map(Reg::R1, index);
        self.address(Reg::R2, key);
        self.out.call(helper::DELETE);
        self.failed_removal(entry);
    }
}
