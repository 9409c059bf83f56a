//! Choosing how a site is probed: the best technique that is proven safe.

use sidestep_isa::x86::emit::TRAP_PATCH;
use sidestep_isa::x86::emulate::{Op, prepare};
use sidestep_isa::x86::{self, Insn, live, relocated_len};
use sidestep_isa::{Isa, Len, Va};

use crate::go;
use crate::index::Index;
use crate::plan::{DisplacedInsn, Patch, Plan, Refusal, Rejected, SiteKind, Technique};
use crate::returns;
use crate::room::{Fixed, Room};
use crate::sweep::{Borders, How, Stretch};

/// Bytes of a `jmp rel32`.
const JUMP: usize = 5;
/// Where a goroutine's stack ends is not looked at by the thunks of 32-bit code.
const GO_STACKS: &str = "the stacks of 32-bit Go programs are too small for a handler";
/// Go's runtime walks stacks by return addresses and moves them.
const GO_RETURNS: &str = "Go moves its stacks and checks return addresses";

/// Decides how to probe the code at link-time address `asked`: the start of a function, or any instruction in one.
/// With `trap_only` better techniques than a trap are not considered, nor are those that need a [`Room`].
///
/// The plan is complete: nothing that follows has a choice. Fails with the reason, in the user's words, if no technique
/// is safe.
pub fn plan(index: &Index<'_>, asked: Va, trap_only: bool) -> Result<Plan, Refusal> {
    let ladder = if trap_only { Ladder::Trap } else { Ladder::Anywhere };
    plan_by(index, asked, ladder)
}

/// As [`plan`], with all techniques. What the plan takes of the room is claimed.
pub fn plan_in(index: &Index<'_>, asked: Va, room: &mut dyn Room) -> Result<Plan, Refusal> {
    plan_by(index, asked, Ladder::Within(room))
}

fn plan_by(index: &Index<'_>, asked: Va, ladder: Ladder<'_>) -> Result<Plan, Refusal> {
    match choose(index, asked, ladder) {
        Ok(choice) => Ok(complete(index, choice)),
        Err(reason) => Err(Refusal { asked, reason }),
    }
}

/// The address that a probe at `asked` is written to: behind an `endbr64`, for example.
#[must_use]
pub fn site_of(index: &Index<'_>, asked: Va) -> Option<Va> {
    let stretch = locate(index, asked).ok()?;
    Some(Site::new(index, stretch, asked).ok()?.va)
}

/// Which techniques are considered.
pub(crate) enum Ladder<'r> {
    Trap,
    Anywhere,
    Within(&'r mut dyn Room),
}

/// What a technique needs of a site.
struct Shape {
    technique: Technique,
    /// Bytes that become unusable.
    region: usize,
    patch: Patch,
}

impl Shape {
    fn jump(technique: Technique, region: usize) -> Shape {
        Shape { technique, region, patch: Patch::Jump { prefixes: 0, stub: None } }
    }
}

/// The technique for a site, with what a plan needs besides.
pub(crate) struct Choice<'i, 'a> {
    site: Site<'i, 'a>,
    entry: bool,
    /// Length and instructions of the stack check of a Go function that begins here.
    check: Option<(usize, usize)>,
    pub technique: Technique,
    region: usize,
    patch: Patch,
    displaced: Vec<DisplacedInsn>,
    pub rejected: Vec<Rejected>,
}

/// The first half of [`plan`]: all that can fail.
pub(crate) fn choose<'i, 'a>(index: &'i Index<'a>, asked: Va, ladder: Ladder<'_>) -> Result<Choice<'i, 'a>, String> {
    let stretch = locate(index, asked)?;
    if index.code.go && index.code.isa == Isa::X86 {
        return Err(GO_STACKS.into());
    }
    let entry = index.is_start(asked);
    if !entry {
        on_boundary(index, stretch, asked)?;
    }
    let site = Site::new(index, stretch, asked)?;

    let check = if entry && index.code.go { go::stack_check(site.code) } else { None };
    let mut rejected = Vec::new();
    // The bytes behind a trap stay as they are, but the check runs before the handler there, too.
    let trap_region = check.map_or(site.first.len(), |(len, _)| len);
    let shape = site.climb(ladder, check, &mut rejected)?.unwrap_or(Shape {
        technique: Technique::Trap,
        region: trap_region,
        patch: Patch::Trap,
    });
    let Shape { technique, region, patch } = shape;
    let displaced = site.displaced(region);
    for insn in &displaced {
        relocated_len(index.code.isa, insn.bytes(), insn.va).map_err(|e| e.to_string())?;
    }
    Ok(Choice { site, entry, check, technique, region, patch, displaced, rejected })
}

/// The second half of [`plan`]: what the detour and the user should know besides.
fn complete(index: &Index<'_>, choice: Choice<'_, '_>) -> Plan {
    let Choice { site, entry, check, technique, region, patch, displaced, rejected } = choice;
    let Site { asked, stretch, .. } = site;
    let before_handler = check.map_or(0, |(_, insns)| insns).min(displaced.len());
    let handler_at = displaced.get(before_handler).map_or(site.va.plus(Len(region as u64)), |insn| insn.va);
    let dead = match index.code.text_at(stretch.start, stretch.end) {
        Some(code) => live::dead_before(index.code.isa, code, stretch.start, handler_at),
        None => live::Dead::default(),
    };
    let (kind, at_start) = nature(index, &site, entry, check.is_some());
    let text = |va: Va| {
        let (_, stretch) = index.stretch(va)?;
        Some((stretch.start, index.code.text_at(stretch.start, stretch.end)?))
    };
    let returns = at_start.and_then(|()| returns::watched(index.code.isa, &text, asked));
    Plan {
        isa: index.code.isa,
        asked,
        site: site.va,
        kind,
        technique,
        patch,
        region: Len(region as u64),
        resume: resume(index.code.isa, &displaced),
        emulated: emulated(index.code.isa, technique, &displaced),
        displaced,
        before_handler,
        dead_regs: dead.regs,
        dead_flags: dead.flags,
        returns,
        rejected,
        blocked_by: Vec::new(),
        gate: false,
    }
}

/// Keeps a technique, or notes why it was not possible.
fn attempt(rejected: &mut Vec<Rejected>, technique: Technique, shape: Result<Shape, String>) -> Option<Shape> {
    shape.map_err(|reason| rejected.push(Rejected { technique, reason })).ok()
}

fn locate<'i>(index: &'i Index<'_>, asked: Va) -> Result<&'i Stretch, String> {
    match index.stretch(asked) {
        None => Err("no executable section of the object holds this address".into()),
        Some((_, stretch)) if stretch.borders == Borders::Gap => Err(format!(
            "no function is known at this address: {} to {} is padding, data, or code that has no symbol and that no call, jump \
             or pointer in known code leads to",
            stretch.start, stretch.end
        )),
        Some((_, stretch)) => Ok(stretch),
    }
}

/// Whether an instruction starts at `asked`, its function decoded from the start.
fn on_boundary(index: &Index<'_>, stretch: &Stretch, asked: Va) -> Result<(), String> {
    if let Some(fault) = &stretch.fault {
        return Err(format!("where the instructions of its function start is not certain: {fault}"));
    }
    match stretch.insn_start(asked).and_then(|start| index.code.insn_at(start)) {
        Some(insn) if insn.va() == asked => Ok(()),
        Some(insn) => {
            Err(format!("it is inside `{insn}`: the nearest instructions start at {} and {}", insn.va(), insn.next()))
        }
        None => Err("its function does not decode up to it".into()),
    }
}

const PART: &str = "nobody calls it: it is a part of another function";

/// What the return addresses and the red zone at a site are like.
fn nature(index: &Index<'_>, site: &Site<'_, '_>, entry: bool, go_check: bool) -> (SiteKind, Result<(), &'static str>) {
    if !entry {
        return (SiteKind::Inside, Err("it is not the start of a function"));
    }
    if index.code.go {
        // Only C code in a Go program uses a red zone, and has no stack check.
        let kind = if go_check { SiteKind::FunctionEntry } else { SiteKind::Inside };
        return (kind, Err(GO_RETURNS));
    }
    if index.is_part(site.asked) {
        return (SiteKind::Inside, Err(PART));
    }
    if index.is_loop_head(site.va) {
        return (SiteKind::Inside, Err("a loop inside the function jumps back to its first instruction"));
    }
    // A cold part looks like a function, but is only jumped to, from where the red zone may be in use.
    let end = site.va.plus(Len(1));
    let (mut called, mut jumped, mut branched) = (false, false, false);
    for edge in index.edges_to(site.asked, end) {
        match edge.how {
            How::Call => called = true,
            How::Jump => jumped = true,
            How::Branch => branched = true,
            How::Maybe => {}
        }
    }
    // Of what nothing describes, only a call says for certain that nothing is below the stack pointer.
    if index.is_named(site.asked) {
        match site.stretch.borders {
            Borders::Found => jumped = true,
            _ => called = true,
        }
    }
    match (called, jumped, branched) {
        (false, _, true) => (SiteKind::Inside, Err(PART)),
        (false, true, false) => (SiteKind::Inside, Ok(())),
        _ => (SiteKind::FunctionEntry, Ok(())),
    }
}

/// What a trap handler does without the copy.
fn emulated(isa: Isa, technique: Technique, displaced: &[DisplacedInsn]) -> Option<Op> {
    match (technique, displaced) {
        (Technique::Trap, [only]) => prepare(isa, only.bytes()),
        _ => None,
    }
}

fn resume(isa: Isa, displaced: &[DisplacedInsn]) -> Option<Va> {
    let insn = displaced.last()?.decoded(isa).ok()?;
    insn.falls_through().then(|| insn.next())
}

/// The place that is going to be written.
struct Site<'i, 'a> {
    index: &'i Index<'a>,
    stretch: &'i Stretch,
    asked: Va,
    va: Va,
    /// The text from the site to the end of its section.
    code: &'a [u8],
    first: Insn,
}

impl<'i, 'a> Site<'i, 'a> {
    /// Finds the first byte to write and decodes what is there.
    fn new(index: &'i Index<'a>, stretch: &'i Stretch, asked: Va) -> Result<Site<'i, 'a>, String> {
        let at = |va| index.code.insn_at(va).ok_or_else(|| x86::DecodeError { at: va }.to_string());
        let mut first = at(asked)?;
        // A mark for indirect branches stays where it is. Unless a loop starts right behind it: its rounds are no hits.
        if first.is_endbr() && !index.is_loop_head(first.next()) {
            first = at(first.next())?;
        }
        if first.is_int3() {
            return Err("there is a breakpoint already".into());
        }
        let va = first.va();
        if let Some(start) = index.restartable(&first) {
            return Err(format!(
                "it is in the restartable sequence at {start}, in which the kernel goes by the instruction pointer"
            ));
        }
        relocated_len(index.code.isa, index.code.text_from(va).unwrap_or_default(), va).map_err(|e| e.to_string())?;
        Ok(Site { index, stretch, asked, va, code: index.code.text_from(va).unwrap_or_default(), first })
    }

    fn end(&self, region: usize) -> Va {
        self.va.plus(Len(region as u64))
    }

    /// Nobody may come to an address inside the region, other than from before it.
    fn no_arrival(&self, region: usize) -> Result<(), String> {
        match self.index.arrival(Va(self.va.0 + 1), self.end(region)) {
            Some(clause) => Err(clause),
            None => Ok(()),
        }
    }

    /// The best technique that is safe, none = a trap. Fails if not even that is possible.
    fn climb(
        &self,
        ladder: Ladder<'_>,
        check: Option<(usize, usize)>,
        rejected: &mut Vec<Rejected>,
    ) -> Result<Option<Shape>, String> {
        use Technique::{GuardedJump, Jump, JumpOverSeveral, NopSite, Pun, ShortJump};
        let mut room: Option<&mut dyn Room> = match ladder {
            Ladder::Trap => return Ok(None),
            Ladder::Anywhere => None,
            Ladder::Within(room) => Some(room),
        };
        if let Some(room) = &mut room {
            room.is_free(self.va, self.va..self.end(1))?;
            room.claim(self.va, self.va..self.end(1));
        }
        // Claims what a technique needs; a region that holds another site is none.
        let mut jump = |technique, region: Result<usize, String>, room: &mut Option<&mut dyn Room>| {
            let shape = region.and_then(|region| {
                if let Some(room) = room {
                    room.is_free(self.va, self.va..self.end(region))?;
                    room.claim(self.va, self.va..self.end(region));
                }
                Ok(Shape::jump(technique, region))
            });
            attempt(rejected, technique, shape)
        };
        let found = match check {
            Some(check) => jump(JumpOverSeveral, self.stack_check(check), &mut room),
            None => jump(NopSite, self.nop(), &mut room)
                .or_else(|| jump(Jump, self.single(), &mut room))
                .or_else(|| jump(JumpOverSeveral, self.several(true), &mut room)),
        };
        // A stack check that cannot be displaced by a jump is by the trap: behind it is where a call is counted, once.
        let behind_check = check.is_some_and(|check| self.stack_check(check).is_err());
        let room = match (found, room) {
            (None, Some(room)) if !behind_check => room,
            (found, _) => return Ok(found),
        };
        // Short instructions leave a pun so little choice that it often gets a page of its own.
        let roomy = self.first.len() > 2;
        let mut pun = |room: &mut dyn Room| attempt(rejected, Pun, self.pun(room));
        let early = if roomy { pun(room) } else { None };
        Ok(early
            .or_else(|| attempt(rejected, GuardedJump, self.guarded(room)))
            .or_else(|| if roomy { None } else { attempt(rejected, Pun, self.pun(room)) })
            .or_else(|| attempt(rejected, ShortJump, self.short(room))))
    }

    fn nop(&self) -> Result<usize, String> {
        if !self.first.is_nop() || self.first.len() < JUMP {
            return Err(format!("`{}` is no nop of at least {JUMP} bytes", self.first));
        }
        self.no_arrival(self.first.len())?;
        Ok(self.first.len())
    }

    fn single(&self) -> Result<usize, String> {
        let len = self.first.len();
        if len >= JUMP {
            self.no_arrival(len)?;
            return Ok(len);
        }
        if self.first.falls_through() {
            return Err(format!("`{}` has {len} of {JUMP} bytes, and execution goes on behind it", self.first));
        }
        self.padding(len)?;
        self.no_arrival(JUMP)?;
        Ok(JUMP)
    }

    /// `closed`: all control flow of the function is known, and nobody comes back to the middle.
    fn several(&self, closed: bool) -> Result<usize, String> {
        if self.index.code.go {
            return Err("Go may stop a thread between any two instructions and expects to know the place".into());
        }
        let mut region = 0;
        while region < JUMP {
            let at = self.end(region);
            if at >= self.stretch.end {
                return Err(format!("the function ends at {at}, after {region} bytes, and execution goes on"));
            }
            let insn = self.index.code.insn_at(at).ok_or_else(|| x86::DecodeError { at }.to_string())?;
            if let Some(start) = self.index.restartable(&insn) {
                return Err(format!("the restartable sequence at {start} has to stay where it is"));
            }
            relocated_len(self.index.code.isa, &self.code[region..], at).map_err(|e| e.to_string())?;
            region += insn.len();
            if region >= JUMP {
                break;
            }
            if closed && matches!(insn.flow(), x86::Flow::Call(_) | x86::Flow::CallIndirect) {
                return Err(format!("`{insn}` at {at} comes back to {}, inside the jump", insn.next()));
            }
            if !insn.falls_through() {
                self.padding(region)?;
                region = JUMP;
            }
        }
        if closed {
            self.index.control_flow_known(self.va, self.end(region))?;
            self.no_arrival(region)?;
        }
        Ok(region)
    }

    /// Several instructions, with a trap at the start of each but the first: only those that the jump would cover matter, what is
    /// behind it is still there.
    fn guarded(&self, room: &mut dyn Room) -> Result<Shape, String> {
        let region = self.several(false)?;
        if self.index.is_frequented(Va(self.va.0 + 1), self.end(JUMP)) {
            return Err(self.no_arrival(JUMP).err().unwrap_or_else(|| "others jump into it".into()));
        }
        let mut fixed = Fixed::default();
        for insn in self.displaced(region).iter().skip(1) {
            let offset = insn.va.since(self.va) as usize;
            if let Some(byte) = offset.checked_sub(1).and_then(|i| fixed.0.get_mut(i)) {
                *byte = Some(TRAP_PATCH[0]);
            }
        }
        self.jump_to_stub(room, Technique::GuardedJump, region, 0, fixed)
    }

    /// A jump of which only as much is written as the first instruction has bytes.
    fn pun(&self, room: &mut dyn Room) -> Result<Shape, String> {
        let len = self.first.len();
        self.no_arrival(len)?;
        let mut reason = String::new();
        for prefixes in 0..len.min(JUMP) {
            let stays = self.code.get(len..prefixes + JUMP);
            let stays = stays.ok_or("the section ends behind it")?;
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
    ) -> Result<Shape, String> {
        let end = self.end(usize::from(prefixes) + JUMP);
        let all = self.va..self.end(region.max(usize::from(prefixes) + JUMP));
        room.is_free(self.va, all.clone())?;
        let stub = room.stub(end, fixed).ok_or_else(|| {
            format!(
                "no address that a jump with the displacement `{fixed}` leads to is free ({} are possible)",
                fixed.choices()
            )
        })?;
        room.claim(self.va, all);
        Ok(Shape { technique, region, patch: Patch::Jump { prefixes, stub: Some(stub) } })
    }

    /// Padding between functions within the reach of a 2-byte jump.
    fn short(&self, room: &mut dyn Room) -> Result<Shape, String> {
        const SHORT: usize = 2;
        let len = self.first.len();
        if len < SHORT {
            return Err(format!("`{}` has {len} of {SHORT} bytes", self.first));
        }
        self.no_arrival(len)?;
        room.is_free(self.va, self.va..self.end(len))?;
        let (from, to) = (self.end(SHORT).offset(-128), self.end(SHORT).offset(127));
        for hole in self.index.holes(from, to) {
            // From its end: its start may be needed by the function before it.
            let mut island = hole.end.offset(-(JUMP as i64));
            while island >= hole.start {
                let range = island..island.offset(JUMP as i64);
                if island >= from && island <= to && room.is_free(self.va, range.clone()).is_ok() {
                    room.claim(self.va, range);
                    room.claim(self.va, self.va..self.end(len));
                    return Ok(Shape { technique: Technique::ShortJump, region: len, patch: Patch::Short { island } });
                }
                island = island.offset(-1);
            }
        }
        Err("there is no padding between functions near it that nobody else uses".into())
    }

    fn stack_check(&self, (len, _): (usize, usize)) -> Result<usize, String> {
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
    fn padding(&self, from: usize) -> Result<(), String> {
        let start = self.end(from);
        let next = format!("the code ends after {from} of {JUMP} bytes, and");
        if self.end(JUMP) > self.padded_end() {
            return Err(format!("{next} something else starts at {}", self.padded_end()));
        }
        let bytes = self.index.code.text_from(start).unwrap_or_default();
        let mut at = from;
        for insn in x86::sweep(self.index.code.isa, bytes, start) {
            match insn {
                Ok(insn) if insn.is_nop() || insn.is_int3() => at += insn.len(),
                _ if self.zeros(start) => return Ok(()),
                _ => return Err(format!("{next} the bytes at {start} are no padding")),
            }
            if at >= JUMP {
                break;
            }
        }
        // Filler between functions is never a target; a nop inside one could be the start of a `case`.
        if self.end(JUMP) > self.stretch.end && start >= self.stretch.end {
            Ok(())
        } else {
            self.index.control_flow_known(self.va, self.end(JUMP))
        }
    }

    /// Zeros fill up to a function that starts at a multiple of 16. They could be data, but not if nothing refers to them.
    fn zeros(&self, start: Va) -> bool {
        let end = self.padded_end();
        start >= self.stretch.end
            && end.0 % 16 == 0
            && end.since(start) < 16
            && self.index.arrival(start, end).is_none()
            && self.index.code.text_at(start, end).is_some_and(|fill| fill.iter().all(|b| *b == 0))
    }

    /// The instructions in a region. Padding behind the last one that is executed is none of them.
    fn displaced(&self, region: usize) -> Vec<DisplacedInsn> {
        let mut all = Vec::new();
        for insn in x86::sweep(self.index.code.isa, self.code, self.va).map_while(Result::ok) {
            if insn.va() >= self.end(region) {
                break;
            }
            let offset = insn.va().since(self.va) as usize;
            let mut bytes = [0; x86::decode::INSN_MAX];
            bytes[..insn.len()].copy_from_slice(&self.code[offset..offset + insn.len()]);
            all.push(DisplacedInsn { va: insn.va(), bytes, len: insn.len() as u8 });
            if !insn.falls_through() {
                break;
            }
        }
        all
    }
}
