//! Events as programs.
//!
//! A program first looks at what its filter says about registers, so that an event that nobody
//! wants costs a compare or two and no call. Then it reserves a record, fills it, looks at what the
//! filter says about the rest, and submits the record or discards it. Reads that fail take no
//! branch of their own: their results are collected and become a bit of the record or a string of
//! length 0, so the verifier has one path to walk, however many arguments there are.
//!
//! `r6` is the context, `r7` the record, `r8` where in the record the next string goes, `r9` is
//! negative if the current argument could not be read.

mod fetch;
mod glob;
mod predicate;

use sidestep_bpf::map::{Map, MapKind};
use sidestep_bpf::{AluOp, Cond, DecodeError, Imm64, Insn, Program, Reg, Size, Width};

use super::event::{Arg, Base, Event, Kind, MAX_ARRAY, Register, Type};
use super::fetch::MAX_EVENT;
use super::filter::{Expr, Filter};
use super::record::{COMM, COMM_LEN, FUNC, HEADER, IP, MAX_RECORD, PID, Place, RecordFormat};
use crate::build::{BuildError, Builder, Label};

const GET_CURRENT_PID_TGID: u32 = 14;
const GET_SMP_PROCESSOR_ID: u32 = 8;
const GET_CURRENT_COMM: u32 = 16;
const PROBE_READ_USER: u32 = 112;
const PROBE_READ_USER_STR: u32 = 114;
const RINGBUF_RESERVE: u32 = 131;
const RINGBUF_SUBMIT: u32 = 132;
const RINGBUF_DISCARD: u32 = 133;
const GET_FUNC_IP: u32 = 173;
/// Not the kernel's: submits the first bytes of a record and gives the rest back.
const RINGBUF_SUBMIT_PART: u32 = 257;

/// An event and which of its hits are recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The event.
    pub event: Event,
    /// `None`: all.
    pub filter: Option<Filter>,
}

/// How records with strings are submitted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Submit {
    /// As long as they are, by helper 257, `ringbuf_submit_part`.
    Part,
    /// As long as they can be, by the kernel's `ringbuf_submit`.
    Whole,
}

/// How programs are made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Bytes of a string at most, with its zero byte.
    pub max_string: usize,
    /// Length of the ring, in bytes.
    pub ring: u32,
    /// How records with strings are submitted. Others are always whole.
    pub submit: Submit,
}

impl Default for Options {
    /// Strings of 256 bytes in a ring of 256 KiB, no longer than they are.
    fn default() -> Options {
        Options { max_string: 256, ring: 1 << 18, submit: Submit::Part }
    }
}

/// A program, and what it writes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// Takes `struct pt_regs` of x86-64; returns 0.
    pub program: Program,
    /// Map 0 is the ring. Programs that were compiled together can share it.
    pub maps: Vec<Map>,
    /// What is in the ring.
    pub format: RecordFormat,
}

/// Why an event has no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompileError {
    /// An argument that no line could say.
    #[error("argument {name}: {problem}")]
    Argument {
        /// Its name.
        name: String,
        /// What is wrong with it.
        problem: ArgProblem,
    },
    /// Too many values.
    #[error("the values of the event need {size} bytes: record fewer")]
    TooBig {
        /// How much they need.
        size: usize,
    },
    /// Strings would have no room.
    #[error("{strings} strings do not fit into a record of {MAX_RECORD} bytes: record fewer")]
    TooManyStrings {
        /// How many, elements of arrays included.
        strings: usize,
    },
    /// Jumps would be too far.
    #[error("the program is too long for its jumps: record fewer values")]
    TooLong,
    /// A bug of the compiler.
    #[error("the program cannot be decoded: {0}")]
    Decode(#[from] DecodeError),
}

impl From<BuildError> for CompileError {
    fn from(error: BuildError) -> CompileError {
        match error {
            BuildError::TooLong => CompileError::TooLong,
            BuildError::Decode(error) => CompileError::Decode(error),
        }
    }
}

/// What is wrong with an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ArgProblem {
    /// A string in a register.
    #[error("a string is in memory: add a deref")]
    StringInRegister,
    /// An array in a register.
    #[error("an array is in memory: add a deref")]
    ArrayInRegister,
    /// 0 elements, or more than 64.
    #[error("an array has 1 to {MAX_ARRAY} elements")]
    Count,
    /// `$comm` or text as something else than a string.
    #[error("text is a string, no array, and not in memory: remove derefs and use the type string")]
    Text,
    /// Bits outside of the number.
    #[error("the bits are not within the number: make them fewer")]
    Bits,
    /// `$retval` at an entry.
    #[error("a function returns nothing when it is entered: probe its return")]
    ReturnValueAtEntry,
    /// `$argN` at a return.
    #[error("registers have changed when a function returns: probe its entry")]
    ArgumentAtReturn,
}

/// Compiles events. Their numbers in records are their indexes.
///
/// # Errors
/// If an event is too large; if it was not read from a line: if an argument makes no sense.
pub fn compile(probes: &[Probe], options: &Options) -> Result<Vec<Compiled>, CompileError> {
    (0..).zip(probes).map(|(number, probe)| compile_one(number, probe, options)).collect()
}

fn compile_one(number: u32, probe: &Probe, options: &Options) -> Result<Compiled, CompileError> {
    let event = &probe.event;
    for arg in &event.args {
        let name = || arg.name.clone();
        check(event.kind, arg).map_err(|problem| CompileError::Argument { name: name(), problem })?;
    }
    let size = event.args.iter().map(|arg| arg.ty.size().bytes() * arg.count.unwrap_or(1) as usize).sum();
    if size > MAX_EVENT {
        return Err(CompileError::TooBig { size });
    }
    let format = RecordFormat::new(event, number, options)?;
    let program = Compiler { event, format: &format, out: Builder::new(), discard: Label::default() }
        .program(probe.filter.as_ref(), options.submit)?;
    let ring = Map {
        name: "events".to_owned(),
        kind: MapKind::Ringbuf,
        key_size: 0,
        value_size: 0,
        max_entries: options.ring,
        flags: 0,
        readonly: false,
        initial: Vec::new(),
    };
    Ok(Compiled { program, maps: vec![ring], format })
}

fn check(kind: Kind, arg: &Arg) -> Result<(), ArgProblem> {
    let in_memory = !arg.fetch.derefs.is_empty();
    if arg.count.is_some_and(|count| count == 0 || count > MAX_ARRAY) {
        return Err(ArgProblem::Count);
    }
    if arg.fetch.is_text() {
        return if in_memory || arg.ty != Type::String || arg.count.is_some() { Err(ArgProblem::Text) } else { Ok(()) };
    }
    match (&arg.fetch.base, kind) {
        (Base::ReturnValue, Kind::Entry) => return Err(ArgProblem::ReturnValueAtEntry),
        (Base::Argument(_), Kind::Return) => return Err(ArgProblem::ArgumentAtReturn),
        _ => {}
    }
    if arg.count.is_some() && !in_memory {
        return Err(ArgProblem::ArrayInRegister);
    }
    match arg.ty {
        // Words of the stack are read, but hold addresses, as registers do.
        Type::String if !in_memory && !matches!(arg.fetch.base, Base::Immediate(_)) => {
            Err(ArgProblem::StringInRegister)
        }
        Type::Bits { width, shift, size } if width == 0 || u32::from(width) + u32::from(shift) > size.bits() => {
            Err(ArgProblem::Bits)
        }
        _ => Ok(()),
    }
}

/// A program in the making.
struct Compiler<'a> {
    event: &'a Event,
    format: &'a RecordFormat,
    out: Builder,
    /// Where the record is discarded.
    discard: Label,
}

impl Compiler<'_> {
    fn program(mut self, filter: Option<&Filter>, submit: Submit) -> Result<Program, CompileError> {
        let expr = filter.map_or(Expr::TRUE, |filter| self.fold(&filter.expr));
        let early = self.early(&expr);
        if early == Expr::FALSE {
            self.exit();
            return Ok(self.out.finish()?);
        }
        if early != Expr::TRUE {
            let go = self.out.label();
            self.branch_early(&early, true, go);
            self.exit();
            self.out.bind(go);
        }
        self.discard = self.out.label();
        self.reserve();
        self.header();
        self.fields();
        let late = self.late(&expr);
        let discard = self.discard;
        let globs = self.branch_late(&late, discard);
        self.submit(submit);
        if self.out.is_used(discard) {
            self.out.bind(discard);
            self.out.mov(Reg::R1, Reg::R7);
            self.out.mov_imm(Reg::R2, 0);
            self.out.call(RINGBUF_DISCARD);
            self.exit();
        }
        for (label, pattern, room) in globs {
            self.out.bind(label);
            glob::function(&mut self.out, &pattern, room);
        }
        Ok(self.out.finish()?)
    }

    fn exit(&mut self) {
        self.out.mov_imm(Reg::R0, 0);
        self.out.push(Insn::Exit);
    }

    fn reserve(&mut self) {
        self.out.mov(Reg::R6, Reg::R1);
        self.out.push(Insn::LoadImm64 { dst: Reg::R1, imm: Imm64::Map(0) });
        self.out.mov_imm(Reg::R2, self.format.size as i32);
        self.out.mov_imm(Reg::R3, 0);
        self.out.call(RINGBUF_RESERVE);
        let have = self.out.label();
        self.out.branch_imm(Width::W64, Cond::Ne, Reg::R0, 0, have);
        self.exit();
        self.out.bind(have);
        self.out.mov(Reg::R7, Reg::R0);
    }

    fn header(&mut self) {
        let out = &mut self.out;
        out.store_imm(Size::W, 0, self.format.number as i32);
        out.store_imm(Size::W, 4, 0);
        out.call(GET_CURRENT_PID_TGID);
        out.store(Size::Dw, PID, Reg::R0);
        out.mov(Reg::R1, Reg::R7);
        out.alu_imm(AluOp::Add, Reg::R1, COMM.into());
        out.mov_imm(Reg::R2, COMM_LEN as i32);
        out.call(GET_CURRENT_COMM);
        out.load(Size::Dw, Reg::R1, Reg::R6, Register::pc().offset());
        out.store(Size::Dw, IP, Reg::R1);
        match self.event.kind {
            Kind::Entry => out.store_imm(Size::Dw, FUNC, 0),
            Kind::Return => {
                out.mov(Reg::R1, Reg::R6);
                out.call(GET_FUNC_IP);
                out.store(Size::Dw, FUNC, Reg::R0);
            }
        }
        for index in 0..self.event.args.len().div_ceil(8) {
            out.store_imm(Size::B, (HEADER + index) as i16, 0);
        }
        if self.format.has_strings() {
            out.mov_imm(Reg::R8, self.format.strings as i32);
        }
    }

    fn fields(&mut self) {
        for (index, arg) in self.event.args.iter().enumerate() {
            if let Place::At(at) = self.format.fields[index].place {
                self.field(index, arg, at);
            }
        }
    }

    fn submit(&mut self, submit: Submit) {
        self.out.mov(Reg::R1, Reg::R7);
        if self.format.has_strings() && submit == Submit::Part {
            self.out.mov(Reg::R2, Reg::R8);
            self.out.mov_imm(Reg::R3, 0);
            self.out.call(RINGBUF_SUBMIT_PART);
        } else {
            self.out.mov_imm(Reg::R2, 0);
            self.out.call(RINGBUF_SUBMIT);
        }
        self.exit();
    }
}
