//! The verifier: proves that a program cannot hurt the target, before it gets there.
//!
//! It walks all paths and keeps of each register and stack slot what is certain, as the kernel's
//! verifier does (`Documentation/bpf/verifier.rst`): every access is within its memory, nothing is
//! read before it is written, every loop ends, helpers get what they take, and what was reserved is
//! given back. What it accepts needs no check at run time, except in helpers that read the target's
//! memory.
//!
//! ```
//! use sidestep_bpf::verify::{Rules, verify};
//!
//! let program = sidestep_bpf::assemble("
//!     r0 = *(u64 *)(r1 + 176)
//!     exit
//! ").unwrap();
//! let refused = verify(&program, &Rules::default()).unwrap_err();
//! assert_eq!(
//!     refused.to_string(),
//!     "insn 0: r0 = *(u64 *)(r1 + 176): bytes 176 to 184 of the context are accessed, \
//!      which has 176: check the offset first",
//! );
//! ```

mod arith;
mod call;
mod error;
mod explore;
mod facts;
mod flow;
mod helpers;
mod memory;
mod scalar;
mod state;
mod step;
mod tnum;
mod trail;
mod value;

pub use error::{Problem, VerifyError};
pub use facts::{Facts, Lookup, Memory};
pub use helpers::Helper;
pub(crate) use helpers::{HIST_BUCKET, LAST_BUCKET};

use crate::insn::Insn;
use crate::map::Map;
use crate::pass::body::Body;
use crate::pass::known;
use crate::program::Program;

/// Slots of a program at most, as in the kernel for privileged users
/// (`BPF_COMPLEXITY_LIMIT_INSNS`).
pub const MAX_SLOTS: usize = 1_000_000;

/// A slot, and what is wrong there.
type Located = (usize, Problem);

/// What a program may rely on.
#[derive(Clone, Debug)]
pub struct Rules<'a> {
    /// The maps that instructions refer to by index.
    pub maps: &'a [Map],
    /// Bytes of the context that `r1` points to at the entry.
    pub context_size: u32,
    /// Which of them may be written: none, or the cookie of a session (bytes 168 to 176).
    pub context_writable: std::ops::Range<u32>,
    /// Accesses to maps and records must be aligned, too: for machines that cannot do others.
    pub strict_alignment: bool,
    /// Allow helpers that change what the target does.
    pub allow_unsafe: bool,
    /// Instructions on all paths together at most. The kernel's limit is a million.
    pub max_steps: usize,
    /// Join all paths that meet: less is known there. Otherwise paths are joined only if there are
    /// too many.
    pub joins: bool,
}

impl Default for Rules<'_> {
    /// No maps; the context is `struct pt_regs` of x86-64, 21 registers, and the cookie of a
    /// session, all read-only.
    fn default() -> Self {
        Rules {
            maps: &[],
            context_size: 22 * 8,
            context_writable: 0..0,
            strict_alignment: false,
            allow_unsafe: false,
            max_steps: 1_000_000,
            joins: false,
        }
    }
}

/// A program that was verified, and what was learned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// The program; its functions say how much stack they use.
    pub program: Program,
    /// Instructions looked at, on all paths together.
    pub steps: usize,
    /// What is true on all paths.
    pub facts: Facts,
    /// The slot of the verified program that each slot comes from: linking moves instructions.
    pub origin: Vec<usize>,
}

/// Proves that a program is safe.
///
/// # Errors
/// The first instruction found that is not proven safe.
pub fn verify(program: &Program, rules: &Rules) -> Result<Verified, VerifyError> {
    check(program, rules).map_err(|(pc, problem)| VerifyError { insn: pc, text: text(program, pc), problem })
}

fn check(program: &Program, rules: &Rules) -> Result<Verified, Located> {
    let code = flow::Code::new(program)?;
    code.check_depth()?;
    let walk = walked(&code, rules)?;
    code.check_stacks(&walk.stacks)?;
    let (steps, stacks, mut facts) = (walk.steps, walk.stacks, walk.facts);
    let mut program = program.clone();
    program.functions = code.starts.iter().zip(stacks).map(|(&start, stack)| function(start, stack)).collect();
    facts.settle(&program);
    let origin: Vec<usize> = (0..program.slots.len()).collect();
    find_keys(&program, &mut facts, rules);
    Ok(Verified { program, steps, facts, origin })
}

/// All paths, each by itself; or, if there are too many, joined where they meet.
fn walked<'a>(code: &'a flow::Code, rules: &'a Rules) -> Result<explore::Walk<'a>, Located> {
    let mut walk = explore::Walk::new(code, rules, rules.joins);
    let Err(error) = walk.run() else { return Ok(walk) };
    if rules.joins || !matches!(error.1, Problem::TooComplex(_) | Problem::TooManyPaths) {
        return Err(error);
    }
    drop(walk);
    // What is not proven there says nothing.
    let mut joined = explore::Walk::new(code, rules, true);
    if joined.run().is_ok() { Ok(joined) } else { Err(error) }
}

/// Notes the keys of lookups that are always the same.
fn find_keys(program: &Program, facts: &mut Facts, rules: &Rules) {
    if facts.lookups.is_empty() {
        return;
    }
    let slots: Vec<usize> = program.iter().filter_map(Result::ok).map(|(at, _)| at).collect();
    let Some(body) = Body::new(program, facts, &[]) else { return };
    for (at, state) in slots.into_iter().zip(known::before(&body)) {
        if let (Some(lookup), Some(state)) = (facts.lookups.get_mut(&at), state) {
            let len = lookup.map.and_then(|map| rules.maps.get(map)).map(|map| map.key_size);
            lookup.key = len.and_then(|len| known::key(&state, len));
        }
    }
}

/// Stacks are used in slots of 8 bytes.
fn function(start: usize, stack: usize) -> crate::program::Function {
    let stack = u16::try_from(stack.next_multiple_of(8)).unwrap_or(crate::program::MAX_STACK);
    crate::program::Function { start, stack }
}

/// The instruction for a message; helpers by name.
fn text(program: &Program, pc: usize) -> String {
    match program.insn(pc) {
        Ok(Insn::CallHelper(number)) => match Helper::by_number(number) {
            Some(helper) => format!("call {}#{number}", helper.name),
            None => format!("call helper#{number}"),
        },
        Ok(insn) => insn.to_string(),
        Err(error) => format!("opcode {:#04x}", error.opcode),
    }
}
