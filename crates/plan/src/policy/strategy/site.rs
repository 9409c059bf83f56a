//! The place that is going to be written: what each technique needs there, and whether it is so.

use sidestep_isa::syscalls::is_call;
use sidestep_isa::{DecodeError, Flow, INSN_MAX, Insn, Len, Va, relocated_len, sweep};

use super::Shape;
use crate::analysis::index::Index;
use crate::analysis::sweep::{Borders, Stretch};
use crate::fixed::Fixed;
use crate::object::Extent;
use crate::policy::lead::{Lead, Needs, Placement};
use crate::policy::plan::{DisplacedInsn, Patch, Technique};
use crate::policy::room::Room;
use crate::reason::Reason;

/// How far behind an instruction a system call may be whose guard begins with that.
const GUARDED: usize = 64;

/// The place that is going to be written.
#[derive(Clone)]
pub(super) struct Site<'i, 'a> {
    index: &'i Index<'a>,
    pub stretch: &'i Stretch,
    pub asked: Va,
    pub va: Va,
    /// The text from the site to the end of its section.
    pub code: &'a [u8],
    pub first: Insn,
    /// What was asked for, if it stays in front.
    pub lead: Option<Lead>,
}

impl<'i, 'a> Site<'i, 'a> {
    /// Finds the first byte to write and decodes what is there.
    pub fn new(index: &'i Index<'a>, stretch: &'i Stretch, asked: Va) -> Result<Site<'i, 'a>, Reason> {
        let at = |va| index.code.insn_at(va).ok_or(DecodeError { at: va });
        let mut first = at(asked)?;
        // A mark for indirect branches stays where it is. Unless a loop starts right behind it: its
        // rounds are no hits.
        if first.is_target_mark() && !index.is_loop_head(first.next()) {
            first = at(first.next())?;
        }
        // So does what the program changes itself at the start of a function. All of the function's
        // calls come behind it.
        if let Some(Extent { start, len }) = index.rewritten(&first).map(|place| place.extent) {
            let at_entry = index.is_start(asked) || index.is_start(first.va());
            if at_entry && first.va() >= start && stretch.end > start.plus(len) {
                first = at(start.plus(len))?;
            }
        }
        if first.is_breakpoint() {
            return Err(Reason::Breakpoint);
        }
        let va = first.va();
        if let Some(why) = index.stays(&first) {
            return Err(why);
        }
        let code = index.code.text_from(va).unwrap_or_default();
        relocated_len(index.code.isa, code, va)?;
        Ok(Site { index, stretch, asked, va, code, first, lead: None })
    }

    /// As [`Site::new`], but behind the instruction that was asked for where `placement` says so.
    pub fn placed(
        index: &'i Index<'a>,
        stretch: &'i Stretch,
        asked: Va,
        placement: Placement,
    ) -> Result<Site<'i, 'a>, Reason> {
        let site = Site::new(index, stretch, asked)?;
        match placement {
            // A mark for indirect branches stays in front anyway.
            Placement::Behind(needs) if site.va == asked => match site.behind(needs) {
                Ok(behind) if behind.is_proven() || !site.is_proven() => Ok(behind),
                _ => Ok(site),
            },
            Placement::First | Placement::Behind(_) => Ok(site),
            Placement::Forced(needs) => {
                site.behind(needs).map_err(|why| Reason::ForeignBreakpoint { site: site.va, why: Box::new(why) })
            }
        }
    }

    /// Bytes of the jump that is written.
    pub fn jump(&self) -> usize {
        self.index.code.isa.limits().jump
    }

    /// Whether instructions have any length, so that a jump may overlap the next one, and a shorter
    /// jump may lead to it.
    pub fn has_overlaps(&self) -> bool {
        self.index.code.isa.limits().overlaps
    }

    /// Whether one of the techniques is possible that need no room.
    fn is_proven(&self) -> bool {
        self.nop().is_ok() || self.single().is_ok() || self.several(true).is_ok()
    }

    /// The site behind the first instruction: each execution of that, and nothing else, must lead
    /// there.
    fn behind(&self, needs: Needs) -> Result<Site<'i, 'a>, Reason> {
        let Site { index, stretch, asked, first, .. } = *self;
        if index.code.go {
            return Err(Reason::GoChecksStack);
        }
        if !(index.is_start(asked) || first.is_nop()) {
            return Err(Reason::NotFirst { insn: first });
        }
        let passed = first.passed().filter(|passed| needs.allow(index.code.isa, *passed));
        let passed = passed.ok_or(Reason::StateLost { insn: first })?;
        if index.is_loop_head(first.va()) {
            return Err(Reason::LoopHead);
        }
        let va = first.next();
        if va >= stretch.end {
            return Err(Reason::EndsBehind { insn: first });
        }
        if let Some(clause) = index.arrival(Va(first.va().0 + 1), Va(va.0 + 1)) {
            return Err(clause);
        }
        index.control_flow_known(first.va(), Va(va.0 + 1))?;
        let second = index.code.insn_at(va).ok_or(DecodeError { at: va })?;
        if second.is_breakpoint() || index.stays(&second).is_some() {
            return Err(Reason::NextStays { insn: second });
        }
        let code = index.code.text_from(va).unwrap_or_default();
        relocated_len(index.code.isa, code, va)?;
        // A handler of the fault may have it executed again: that would be a hit more.
        if second.may_fault_off_stack() {
            return Err(Reason::NextMayFault { insn: second });
        }
        // A guard of a system call may need these bytes.
        let near = sweep(index.code.isa, &code[..code.len().min(GUARDED)], va).map_while(Result::ok);
        let mut own = near.take_while(|insn| insn.va() < stretch.end);
        if own.any(|insn| is_call(index.code.isa, &code[insn.va().since(va) as usize..])) {
            return Err(Reason::SyscallNear);
        }
        let bytes = self.code.get(..first.len()).unwrap_or_default();
        let mut insn = DisplacedInsn { va: first.va(), bytes: [0; INSN_MAX], len: first.len() as u8 };
        insn.bytes[..bytes.len()].copy_from_slice(bytes);
        Ok(Site { index, stretch, asked, va, code, first: second, lead: Some(Lead { insn, passed }) })
    }

    pub fn end(&self, region: usize) -> Va {
        self.va.plus(Len(region as u64))
    }

    /// Nobody may come to an address inside the region, other than from before it.
    pub fn no_arrival(&self, region: usize) -> Result<(), Reason> {
        match self.index.arrival(Va(self.va.0 + 1), self.end(region)) {
            Some(clause) => Err(clause),
            None => Ok(()),
        }
    }

    /// Whether a jump may take the place of the first instruction: indirect branches may lead
    /// there, and to no jump; or a thread may stand inside it, where the jump would be.
    fn takes_jump(&self) -> Result<(), Reason> {
        if self.index.code.isa.limits().guards_targets && self.first.is_target_mark() {
            return Err(Reason::TargetMark { insn: self.first });
        }
        match self.first.is_divisible() {
            true => Err(Reason::Divisible { insn: self.first }),
            false => Ok(()),
        }
    }

    pub fn nop(&self) -> Result<usize, Reason> {
        self.takes_jump()?;
        if !self.first.is_nop() || self.first.len() < self.jump() {
            return Err(Reason::NoNop { insn: self.first, needed: self.jump() });
        }
        self.no_arrival(self.first.len())?;
        Ok(self.first.len())
    }

    pub fn single(&self) -> Result<usize, Reason> {
        self.takes_jump()?;
        let len = self.first.len();
        if len >= self.jump() {
            self.no_arrival(len)?;
            return Ok(len);
        }
        if self.first.falls_through() {
            return Err(Reason::TooShort { insn: self.first, needed: self.jump() });
        }
        self.padding(len)?;
        self.no_arrival(self.jump())?;
        Ok(self.jump())
    }

    /// `closed`: all control flow of the function is known, and nobody comes back to the middle.
    pub fn several(&self, closed: bool) -> Result<usize, Reason> {
        self.takes_jump()?;
        if self.index.code.go {
            return Err(Reason::GoPreempts);
        }
        let mut region = 0;
        while region < self.jump() {
            let at = self.end(region);
            if at >= self.stretch.end {
                return Err(Reason::FunctionEnds { end: at, len: region });
            }
            let insn = self.index.code.insn_at(at).ok_or(DecodeError { at })?;
            if let Some(why) = self.index.stays(&insn) {
                return Err(why);
            }
            relocated_len(self.index.code.isa, &self.code[region..], at)?;
            region += insn.len();
            if region >= self.jump() {
                break;
            }
            if closed && matches!(insn.flow(), Flow::Call(_) | Flow::CallIndirect) {
                return Err(Reason::CallReturnsInside { insn });
            }
            if !insn.falls_through() {
                self.padding(region)?;
                region = self.jump();
            }
        }
        if closed {
            self.index.control_flow_known(self.va, self.end(region))?;
            self.no_arrival(region)?;
        }
        Ok(region)
    }

    /// All instructions up to `end`, the end of an exit, with padding behind it if they are short.
    /// Nobody comes to their middle.
    pub fn up_to(&self, end: Va) -> Result<usize, Reason> {
        self.takes_jump()?;
        self.closed(end)?;
        let len = end.since(self.va) as usize;
        if len >= self.jump() {
            return Ok(len);
        }
        let last = self.displaced_to(end).last().and_then(|insn| insn.decoded(self.index.code.isa).ok());
        if last.is_none_or(|insn| insn.falls_through()) {
            return Err(Reason::GroupTooShort { end, len, needed: self.jump() });
        }
        self.padding(len)?;
        self.no_arrival(self.jump())?;
        Ok(self.jump())
    }

    /// Whether the instructions up to `end` may be displaced together: all can be relocated, and
    /// nobody comes to their middle.
    pub fn closed(&self, end: Va) -> Result<(), Reason> {
        if self.index.code.go && end > self.first.next() {
            return Err(Reason::GoPreempts);
        }
        self.first_of(end)
    }

    /// Whether the first instruction may be replaced by a jump to copies of all up to `end`, which
    /// stay where they are: all can be relocated, and nobody comes to their middle.
    pub fn first_of(&self, end: Va) -> Result<(), Reason> {
        for insn in self.displaced_to(end) {
            let decoded = insn.decoded(self.index.code.isa)?;
            if let Some(why) = self.index.stays(&decoded) {
                return Err(why);
            }
            relocated_len(self.index.code.isa, insn.bytes(), insn.va)?;
        }
        if end > self.first.next() {
            self.index.control_flow_known(self.va, end)?;
        }
        self.no_arrival(end.since(self.va) as usize)
    }

    /// Several instructions, with a trap at the start of each but the first: only those that the
    /// jump would cover matter, what is behind it is still there.
    pub fn guarded(&self, room: &mut dyn Room) -> Result<Shape, Reason> {
        let region = self.several(false)?;
        self.guarded_region(region, room)
    }

    /// The same of all instructions up to `end`, the end of an exit.
    pub fn guarded_to(&self, end: Va, room: &mut dyn Room) -> Result<Shape, Reason> {
        let len = end.since(self.va) as usize;
        let region = len.max(self.jump());
        if region > len {
            self.padding(len)?;
        }
        self.guarded_region(region, room)
    }

    /// Whether an instruction up to `end` may raise an exception.
    pub fn may_fault(&self, end: Va) -> bool {
        let isa = self.index.code.isa;
        self.displaced_to(end).iter().any(|insn| insn.decoded(isa).is_ok_and(|insn| insn.may_fault()))
    }

    /// Whether goroutines run the code, which are not seen while they wait.
    pub fn is_go(&self) -> bool {
        self.index.code.go
    }

    fn guarded_region(&self, region: usize, room: &mut dyn Room) -> Result<Shape, Reason> {
        if self.index.is_frequented(Va(self.va.0 + 1), self.end(self.jump())) {
            return Err(self.no_arrival(self.jump()).err().unwrap_or(Reason::Frequented));
        }
        let mut fixed = Fixed::default();
        let breakpoint = self.index.code.isa.limits().breakpoint[0];
        for insn in self.displaced(region).iter().skip(1) {
            let offset = insn.va.since(self.va) as usize;
            if let Some(byte) = offset.checked_sub(1).and_then(|i| fixed.0.get_mut(i)) {
                *byte = Some(breakpoint);
            }
        }
        self.jump_to_stub(room, Technique::GuardedJump, region, 0, fixed)
    }

    /// A jump of which only as much is written as the first instructions have bytes, of which there
    /// are `len`.
    pub fn pun(&self, len: usize, room: &mut dyn Room) -> Result<Shape, Reason> {
        self.no_arrival(len)?;
        let mut reason = Reason::SectionEnds;
        for prefixes in 0..len.min(self.jump()) {
            let stays = self.code.get(len..prefixes + self.jump());
            let stays = stays.ok_or(Reason::SectionEnds)?;
            let mut fixed = Fixed::default();
            let free = 4 - stays.len();
            for (byte, there) in fixed.0[free..].iter_mut().zip(stays) {
                *byte = Some(*there);
            }
            match self.jump_to_stub(room, Technique::Pun, len, prefixes as u8, fixed) {
                Ok(shape) => return Ok(shape),
                Err(why) => reason = why,
            }
        }
        Err(reason)
    }

    fn jump_to_stub(
        &self,
        room: &mut dyn Room,
        technique: Technique,
        region: usize,
        prefixes: u8,
        fixed: Fixed,
    ) -> Result<Shape, Reason> {
        let end = self.end(usize::from(prefixes) + self.jump());
        let all = self.va..self.end(region.max(usize::from(prefixes) + self.jump()));
        room.is_free(self.va, all.clone())?;
        let stub = room.stub(end, fixed).ok_or(Reason::NoStub { fixed })?;
        room.claim(self.va, all);
        Ok(Shape { technique, region, patch: Patch::Jump { prefixes, stub: Some(stub) } })
    }

    /// Padding between functions within the reach of a 2-byte jump, which is written over the first
    /// `len` bytes.
    pub fn short(&self, len: usize, room: &mut dyn Room) -> Result<Shape, Reason> {
        const SHORT: usize = 2;
        if len < SHORT {
            return Err(Reason::TooShortForShortJump { insn: self.first, needed: SHORT });
        }
        self.no_arrival(len)?;
        room.is_free(self.va, self.va..self.end(len))?;
        let (from, to) = (self.end(SHORT).offset(-128), self.end(SHORT).offset(127));
        for hole in self.index.holes(from, to) {
            // From its end: its start may be needed by the function before it.
            let mut island = hole.end.offset(-(self.jump() as i64));
            while island >= hole.start {
                let range = island..island.offset(self.jump() as i64);
                if island >= from && island <= to && room.is_free(self.va, range.clone()).is_ok() {
                    room.claim(self.va, range);
                    room.claim(self.va, self.va..self.end(len));
                    return Ok(Shape { technique: Technique::ShortJump, region: len, patch: Patch::Short { island } });
                }
                island = island.offset(-1);
            }
        }
        Err(Reason::NoIsland)
    }

    pub fn stack_check(&self, (len, _): (usize, usize)) -> Result<usize, Reason> {
        self.no_arrival(len)?;
        Ok(len)
    }

    /// Where the padding behind the function ends at the latest: the start of the next one.
    fn padded_end(&self) -> Va {
        match self.index.stretch(self.stretch.end) {
            Some((_, next)) if next.borders == Borders::Gap => next.end,
            _ => self.stretch.end,
        }
    }

    /// The bytes from `from` to the end of the jump must be filler that is never executed.
    pub fn padding(&self, from: usize) -> Result<(), Reason> {
        let start = self.end(from);
        if self.end(self.jump()) > self.padded_end() {
            return Err(Reason::NextTooNear { len: from, needed: self.jump(), next: self.padded_end() });
        }
        let bytes = self.index.code.text_from(start).unwrap_or_default();
        let mut at = from;
        for insn in sweep(self.index.code.isa, bytes, start) {
            match insn {
                Ok(insn) if self.index.is_free(&insn) => at += insn.len(),
                _ if self.zeros(start) => return Ok(()),
                _ => return Err(Reason::NoPadding { len: from, needed: self.jump(), at: start }),
            }
            if at >= self.jump() {
                break;
            }
        }
        // Filler between functions is never a target; a nop inside one could be the start of a
        // `case`.
        if self.end(self.jump()) > self.stretch.end && start >= self.stretch.end {
            Ok(())
        } else {
            self.index.control_flow_known(self.va, self.end(self.jump()))
        }
    }

    /// Zeros fill up to a function that starts at a multiple of 16. They could be data, but not if
    /// nothing refers to them.
    fn zeros(&self, start: Va) -> bool {
        let end = self.padded_end();
        start >= self.stretch.end
            && end.0 % 16 == 0
            && end.since(start) < 16
            && self.index.arrival(start, end).is_none()
            && self.index.code.text_at(start, end).is_some_and(|fill| fill.iter().all(|b| *b == 0))
    }

    /// The instructions up to an address.
    pub fn displaced_to(&self, end: Va) -> Vec<DisplacedInsn> {
        self.displaced(end.since(self.va).max(0) as usize)
    }

    /// The instructions in a region. Padding behind the last one that is executed is none of them.
    pub fn displaced(&self, region: usize) -> Vec<DisplacedInsn> {
        let mut all = Vec::new();
        for insn in sweep(self.index.code.isa, self.code, self.va).map_while(Result::ok) {
            if insn.va() >= self.end(region) {
                break;
            }
            let offset = insn.va().since(self.va) as usize;
            let mut bytes = [0; INSN_MAX];
            bytes[..insn.len()].copy_from_slice(&self.code[offset..offset + insn.len()]);
            all.push(DisplacedInsn { va: insn.va(), bytes, len: insn.len() as u8 });
            if !insn.falls_through() {
                break;
            }
        }
        all
    }
}
