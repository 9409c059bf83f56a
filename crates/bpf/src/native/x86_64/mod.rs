//! Native code for x86-64: bytes that run at any address.
//!
//! Each function of a program is a function of the System V ABI: `r1` to `r5` in `rdi`, `rsi`,
//! `rdx`, `rcx`, `r8`, the *table* in `r9`, the result `r0` in `rax`. Helper `n` is called by the
//! same ABI through the pointer at `table + 8 * n`, with the table as its sixth argument. So the
//! table can also hold, after the pointers, what the helpers need, and a helper that is given a
//! function of the program calls it in the same way. Nothing else is outside the code: jumps are
//! relative, and addresses of maps are those that linking put in:
//! [`crate::verify::Verified::link`], or [`Program::link`].
//!
//! The frame of a function, when it calls something:
//!
//! ```text
//!   return address
//!   saved registers          only those of rbx, rbp, r12 to r15 that stand for r6 to r9
//!   padding                  so that rsp is a multiple of 16
//!   stack of the program     r10 is its end: no register is spent on it
//!   table                    <- rsp
//! ```
//!
//! One that calls nothing keeps up to 128 bytes of stack below `rsp`, and `r6` to `r9` where
//! nothing must be saved.
//!
//! Small programs need no function: [`Shape::Inline`] and [`Shape::Filter`] are parts of a detour,
//! which read the registers of the site where a function loads words of the context, and so change
//! few registers or none. What the verifier learned ([`Facts`]) says which memory no other thread
//! touches: there atomic operations need no `lock`.
//!
//! Only for programs that were verified: the code checks neither addresses nor the number of
//! instructions.
//!
//! ```
//! use sidestep_bpf::native::x86_64::{Env, Shape, Site, compile};
//! use sidestep_bpf::pass::filter;
//! use sidestep_bpf::verify::{Rules, verify};
//! use sidestep_isa::x86::emit::Reg;
//!
//! // Calls ktime_get_ns if the first argument is above 64.
//! let program = sidestep_bpf::assemble("
//!     r2 = *(u64 *)(r1 + 112)
//!     if r2 <= 64 goto out
//!     call 5
//!     out: r0 = 0
//!     exit
//! ").unwrap();
//! let program = verify(&program, &Rules::default()).unwrap().link(&[]).unwrap();
//! let filter = filter(&program).unwrap();
//! let site = Site { dead: 0, cells: Some(Reg::R9), sp: 0, ip: 0x1000, cookie: None };
//! let shape = Shape::Filter(site);
//! let code = compile(&filter.program, &filter.facts, &Env::default(), shape).unwrap();
//! // cmp rdi, 64; ja ...
//! assert_eq!(code.bytes, [0x48, 0x83, 0xff, 64, 0x0f, 0x87, 0, 0, 0, 0]);
//! assert_eq!((code.go, code.clobbers), (vec![6], 0));
//! ```

mod allocate;
mod atomic;
mod division;
mod emit;
mod fold;
mod intrinsic;
mod lower;
mod place;

use sidestep_isa::RegisterSet;
use sidestep_isa::x86::emit::Reg as Machine;

pub use super::code::{Clock, Code, CompileError, Env, MAX_HELPERS};
use super::functions;
use crate::insn::Insn;
use crate::pass::body::Body;
use crate::program::Program;
use crate::verify::Facts;
use allocate::Frame;
use fold::Step;
use lower::{Branches, Lowered};

/// How the code begins and ends, and what it may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A function: saves what the ABI says, and returns.
    Function,
    /// A part of a detour: falls through at its end, saves nothing ([`Code::clobbers`] is what it
    /// changes).
    ///
    /// For programs that call nothing but what is computed in place ([`Env`]), and that load no
    /// more of the context than general registers, `rsp`, `rip` and [`Site::cookie`]: there is no
    /// context, loads read the registers of the site. What the program returns is not there. 128
    /// bytes below `rsp` are free.
    Inline(Site),
    /// The same for what [`crate::pass::filter`] gives: falls through at its end where the result
    /// is 0, and jumps at each of [`Code::go`] where it is 1.
    ///
    /// So the straight way is the one on which nothing is done; whoever wants it the other way
    /// round puts the slow path behind the filter, has the jumps go there, and a jump of its own
    /// before it.
    Filter(Site),
}

/// Where inlined code runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Registers whose values nobody needs any more, one bit each by their number: they are used
    /// before others.
    pub dead: RegisterSet,
    /// The register that holds the address of the thread's memory, if [`Code::cells`]: none that
    /// the program reads. All others hold what they do at the site.
    pub cells: Option<Machine>,
    /// What must be added to `rsp` at the start of the code to get the site's.
    pub sp: i32,
    /// Run-time address of the site: `rip` of the context.
    pub ip: u64,
    /// The register that holds the word that a program keeps from the entry of a call to its
    /// return, if there is one: none that the program reads. Loads read it, stores write it.
    pub cookie: Option<Machine>,
}

/// Programs with more instructions are compiled as they are.
const MAX_FOLDED: usize = 1 << 16;

/// Compiles a program of which `facts` are known.
///
/// # Errors
/// If it was not verified or linked, or cannot be inlined.
pub fn compile(program: &Program, facts: &Facts, env: &Env, shape: Shape) -> Result<Code, CompileError> {
    let source = Source::new(program, facts, env, shape)?;
    let mut branches = Branches::all_long(program.slots.len());
    let mut lowered = lower::lower(&source, &branches)?;
    // Code only shrinks, so what fits once fits later. Two or three rounds find nearly all.
    for _ in 0..8 {
        if !lowered.shorten(&source, &mut branches) {
            break;
        }
        lowered = lower::lower(&source, &branches)?;
    }
    let stack = functions::stack(&source.functions, 0, &mut Vec::new())?;
    let Lowered { bytes, clobbers, flags, map, go, .. } = lowered;
    Ok(Code {
        bytes,
        clobbers,
        flags,
        cells: source.functions.iter().any(|f| f.usage.cells),
        helpers: source.functions.iter().any(|f| f.usage.helpers),
        stack,
        map,
        go,
    })
}

impl Shape {
    /// Whether anyone looks at the result.
    fn result(self) -> bool {
        self == Shape::Function
    }

    fn site(&self) -> Option<&Site> {
        match self {
            Shape::Function => None,
            Shape::Inline(site) | Shape::Filter(site) => Some(site),
        }
    }
}

/// A program that was looked at once.
struct Source<'a> {
    shape: Shape,
    env: &'a Env,
    functions: Vec<Function>,
    /// Slots that are the start of an instruction.
    starts: Vec<bool>,
}

/// A function of it.
struct Function {
    steps: Vec<Step>,
    usage: allocate::Usage,
    frame: Frame,
}

impl<'a> Source<'a> {
    fn new(program: &Program, facts: &Facts, env: &'a Env, shape: Shape) -> Result<Source<'a>, CompileError> {
        if program.functions.first().map(|f| f.start) != Some(0) {
            return Err(CompileError::Target { at: 0 });
        }
        let mut starts = vec![false; program.slots.len()];
        let mut steps = Vec::new();
        for insn in program.iter() {
            let (at, insn) = insn?;
            starts[at] = true;
            steps.push(Step::plain(at, insn));
        }
        // One that was not verified is compiled as it is, for as far as it can be.
        let body = Body::new(program, facts, &[]).filter(|body| body.nodes.len() <= MAX_FOLDED);
        match &body {
            Some(body) => fold::fold(&mut steps, body, &shape)?,
            None if shape.site().is_some() => return Err(CompileError::Inline { at: 0 }),
            None => {}
        }
        let mut functions = Vec::new();
        let ends = program.functions.iter().skip(1).map(|f| f.start).chain([program.slots.len()]);
        for (function, end) in program.functions.iter().zip(ends) {
            let from = steps.partition_point(|s| s.at < function.start);
            let to = steps.partition_point(|s| s.at < end);
            let steps: Vec<Step> = steps.get(from..to).unwrap_or_default().to_vec();
            match steps.last() {
                Some(step) if !step.insn.falls_through() => {}
                Some(step) => return Err(CompileError::Target { at: step.at }),
                None => return Err(CompileError::Target { at: function.start }),
            }
            let usage = allocate::Usage::of(&steps, shape, env);
            if shape.site().is_some() {
                usage.check_inline(&steps)?;
            }
            let frame = Frame::new(&usage, function.stack, shape).ok_or(CompileError::Inline { at: function.start })?;
            functions.push(Function { steps, usage, frame });
        }
        Ok(Source { shape, env, functions, starts })
    }
}

impl functions::Step for Step {
    fn at(&self) -> usize {
        self.at
    }

    fn insn(&self) -> &Insn {
        &self.insn
    }
}

impl functions::Function for Function {
    type Step = Step;
    /// The return address.
    const CALL: usize = 8;

    fn steps(&self) -> &[Step] {
        &self.steps
    }

    fn stack(&self) -> usize {
        self.frame.stack()
    }
}
