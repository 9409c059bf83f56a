//! `self.x`: what a call keeps until it returns. Calls inside of calls have their own.
//!
//! One number that is assigned where functions are entered, and used where the same ones return, is
//! in the word that the engine keeps for each call ([`InWord`]).
//!
//! Else there is an entry for each call that is not over, in a map by its frame and its function.
//! The entry goes when the call returns, if one program sees that; one whose call never does (an
//! exception, `longjmp`) is cleared when another call of the function has the same frame, or
//! dropped to make room.
//!
//! Either way, a block that uses `self` where functions return runs for calls that were seen to
//! begin: it has a program at the entry.

use sidestep_bpf::{AluOp, Cond, Program, Reg, Size, Width};

use super::super::ast::{Point, Provider};
use super::super::checked::{Block, Builtin, Checked, Op, Value, ValueKind};
use super::super::types::Type;
use super::text::At;
use super::{FIRST, Lower, LowerError, Site, helper};

/// Bytes of a key: where the return address is, and the address of the function. (Of Go functions,
/// whose stacks move, the first word is made of the goroutine and the distance from the end of its
/// stack.)
pub(super) const KEY: u32 = 16;

/// The blocks of a script whose `self` is in the word of the call.
#[derive(Clone, Copy, Debug)]
pub(super) struct InWord {
    /// The number of the block that assigns. It does nothing else. `None`: it is the address of the
    /// result.
    pub setter: Option<usize>,
    /// The number of the block at the returns of the same functions.
    pub reader: usize,
}

impl InWord {
    /// `None`: it has to be in a map.
    pub fn of(checked: &Checked) -> Option<InWord> {
        let [ty] = &checked.own[..] else { return None };
        let mut users = checked.blocks.iter().enumerate().filter(|(_, block)| block.uses_own);
        let is_at = |block: &Block, provider| block.points.iter().all(|point| point.provider == provider);
        let first = users.next()?;
        let Some(second) = users.next() else {
            let fits = first.1.result_in.is_some() && is_at(first.1, Provider::Uretprobe) && !first.1.uses_latency;
            return fits.then_some(InWord { setter: None, reader: first.0 });
        };
        let (setter, reader) = if second.1.sets_own { (second, first) } else { (first, second) };
        let fits = users.next().is_none()
            && !ty.is_wide()
            && is_at(setter.1, Provider::Uprobe)
            && is_at(reader.1, Provider::Uretprobe)
            && setter.1.points.iter().map(|point| &point.fields).eq(reader.1.points.iter().map(|point| &point.fields))
            && setter.1.body.iter().all(|op| matches!(op, Op::SetOwn(..)))
            && !reader.1.sets_own
            && !reader.1.uses_latency;
        fits.then_some(InWord { setter: Some(setter.0), reader: reader.0 })
    }
}

impl Lower<'_, '_> {
    fn own_map(&self) -> u32 {
        FIRST + (self.shared.checked.maps.len() + self.shared.checked.stacks.len()) as u32
    }

    fn own_offset(&self, index: usize) -> usize {
        self.shared.checked.own.iter().take(index).map(Type::stored).sum()
    }

    fn own_key(&mut self) -> At {
        let at = self.stack(KEY as usize);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::FUNC_IP);
        self.out.put(Reg::R10, at + 8, Reg::R0);
        self.register(Reg::R2, self.context().stack_pointer);
        // A return takes the return address off the stack, where it is there.
        let taken = i32::from(self.context().words_before_arguments()) * i32::from(self.shared.checked.word);
        if self.site == Site::Return && taken != 0 {
            self.out.alu_imm(AluOp::Sub, Reg::R2, taken);
        }
        self.register(Reg::R3, self.context().goroutine);
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::CALL_PLACE);
        self.out.put(Reg::R10, at, Reg::R0);
        At::Stack(at)
    }

    /// The address of the value into `r0`, or 0.
    fn lookup_own(&mut self) {
        let (key, map) = (self.own_key(), self.own_map());
        self.lookup_in(map, key);
    }

    /// A number into `r0`; 0 if nothing was assigned.
    pub(super) fn own_number(&mut self, index: usize) {
        if self.shared.in_word.is_some() {
            self.register(Reg::R0, self.context().cookie());
            return;
        }
        let used = self.used;
        let missing = self.out.label();
        self.lookup_own();
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.load(Size::Dw, Reg::R0, Reg::R0, self.own_offset(index) as i16);
        self.out.bind(missing);
        self.release(used);
    }

    /// Where a copy of something wide lies; zeros if nothing was assigned.
    pub(super) fn own_place(&mut self, index: usize, ty: &Type) -> At {
        let used = self.used;
        let missing = self.out.label();
        let to = At::Scratch(self.scratch(ty.stored()));
        self.clear(to, ty.stored());
        self.lookup_own();
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        let offset = self.own_offset(index) as i32;
        self.copy_words(to, ty.stored(), |lower, dst| {
            lower.out.mov(dst, Reg::R0);
            lower.out.alu_imm(AluOp::Add, dst, offset);
        });
        self.out.bind(missing);
        self.release(used);
        to
    }

    pub(super) fn set_own(&mut self, index: usize, value: &Value) {
        if self.shared.in_word.is_some() {
            self.int(value);
            self.out.put(Reg::R6, self.context().cookie() as i16, Reg::R0);
            return;
        }
        let used = self.used;
        let ty = self.shared.checked.own[index].clone();
        let from = if ty.is_wide() { At::Scratch(self.scratch(ty.stored())) } else { At::Stack(self.stack(8)) };
        self.write(from, value, &ty);
        let missing = self.out.label();
        let (key, map) = (self.own_key(), self.own_map());
        self.lookup_or_insert_in(map, key, 0, missing);
        self.out.mov(Reg::R1, Reg::R0);
        let offset = self.own_offset(index) as i32;
        if ty.is_wide() {
            self.out.alu_imm(AluOp::Add, Reg::R1, offset);
            self.out.mov_imm(Reg::R2, ty.stored() as i32);
            self.address(Reg::R3, from);
            self.out.call(helper::READ_KERNEL);
        } else {
            self.address(Reg::R3, from);
            self.out.load(Size::Dw, Reg::R0, Reg::R3, 0);
            self.out.put(Reg::R1, offset as i16, Reg::R0);
        }
        self.out.bind(missing);
        self.release(used);
    }

    /// The program at the entry of a call whose result is in memory. `stamp`: it keeps the time,
    /// too.
    pub(super) fn keep_result(mut self, block: &Block, stamp: bool) -> Result<Program, LowerError> {
        self.out.mov(Reg::R6, Reg::R1);
        if stamp {
            self.out.call(helper::NSECS);
            self.out.put(Reg::R6, self.context().cookie() as i16, Reg::R0);
        }
        if let Some(index) = block.result_in {
            let kind = ValueKind::Builtin(Builtin::Register(self.context().result_address));
            self.set_own(index, &Value { ty: Type::UINT, kind });
        }
        self.out.mov_imm(Reg::R0, 0);
        self.out.push(sidestep_bpf::Insn::Exit);
        Ok(self.out.finish()?)
    }

    /// Ends the program, and counts a failed read, if it is not known where the result is: of very
    /// many calls at once, some are dropped.
    pub(super) fn needs_result(&mut self, index: usize) {
        let known = self.out.label();
        self.own_number(index);
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, known);
        self.out.mov_imm(Reg::R0, -1);
        self.count_fault();
        let end = self.end;
        self.out.goto(end);
        self.out.bind(known);
    }

    /// The entry of this call goes.
    pub(super) fn forget_own(&mut self) {
        let used = self.used;
        let (key, map) = (self.own_key(), self.own_map());
        self.out.map(Reg::R1, map);
        self.address(Reg::R2, key);
        self.out.call(helper::DELETE);
        self.release(used);
    }

    /// Whether this is the first program that sees the entry of the call, as far as that is known.
    pub(super) fn begins_call(&self) -> bool {
        let blocks = &self.shared.checked.blocks;
        let (before, own) = (&blocks[..self.shared.block], &blocks[self.shared.block]);
        self.shared.in_word.is_none()
            && self.site == Site::Entry
            && own.uses_own
            && !before.iter().any(|block| meet(block, own, Provider::Uprobe))
    }

    /// Whether this is the only program that sees the return of the call, as far as that is known.
    pub(super) fn ends_call(&self) -> bool {
        let blocks = &self.shared.checked.blocks;
        let own = &blocks[self.shared.block];
        let meeting = blocks.iter().filter(|block| meet(block, own, Provider::Uretprobe));
        self.shared.in_word.is_none() && self.site == Site::Return && own.uses_own && meeting.count() == 1
    }
}

/// Whether two blocks that use `self` may run at the same place.
fn meet(a: &Block, b: &Block, provider: Provider) -> bool {
    let name = |point: &Point| point.fields.last().map(|field| field.text.clone()).unwrap_or_default();
    let points = |block: &Block| -> Vec<String> {
        block.points.iter().filter(|point| point.provider == provider).map(name).collect()
    };
    let is_glob = |name: &String| name.contains(['*', '?', '[']);
    let (a_points, b_points) = (points(a), points(b));
    a.uses_own && a_points.iter().any(|a| b_points.iter().any(|b| a == b || is_glob(a) || is_glob(b)))
}
