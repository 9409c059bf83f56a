//! What the programs that are probed say of their types: the language asks, whoever reads debug
//! information answers.

use std::sync::Arc;

use super::ast::Point;
use super::ctype::{CType, Enum, Layout};

/// What a function takes and gives.
#[derive(Clone, PartialEq, Debug)]
pub struct Signature {
    /// In order. One that is passed by a hidden reference has the type of a pointer.
    pub parameters: Vec<Parameter>,
    /// What it returns.
    pub result: CType,
    /// It returns a class of C++ whose copies are calls: the caller says where the result is to be,
    /// whatever its size.
    pub result_in_memory: bool,
    /// How compilers of its language pass what is no single number or address.
    pub convention: Convention,
    /// Of each parameter, whether its compiler passes it like that: it may have left it out, or
    /// moved it.
    pub kept: Vec<bool>,
}

/// A parameter of a function.
#[derive(Clone, PartialEq, Debug)]
pub struct Parameter {
    /// Empty if it has none.
    pub name: String,
    /// What is passed.
    pub ty: CType,
    /// Where it is.
    pub passed: Passed,
    /// Of records, arrays and 16-byte numbers, the bytes that the function has, each with the
    /// register that they are in if that is known; empty: all bytes. Callers need not pass the
    /// others.
    pub parts: Vec<(std::ops::Range<u64>, Option<Argument>)>,
}

impl Parameter {
    /// A parameter that is where the [`Convention`] has it.
    #[must_use]
    pub fn new(name: String, ty: CType) -> Parameter {
        Parameter { name, ty, passed: Passed::Convention, parts: Vec::new() }
    }
}

/// Where a function finds a parameter when it is entered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Passed {
    /// Where the [`Convention`] has it.
    #[default]
    Convention,
    /// In registers, from its first byte on: each with so many bytes of it.
    Pieces(Vec<(Argument, u8)>),
    /// At the address in a register.
    At(Argument),
    /// In the register at this offset of the context.
    Register(u16),
    /// On the stack, so many bytes above the return address.
    Stack(u64),
    /// Nobody knows.
    Unknown,
}

/// A register that functions take arguments in: the how manyth of its kind, from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Argument {
    /// For numbers and addresses.
    Integer(u8),
    /// For floating-point numbers.
    Float(u8),
}

/// Who says where parameters are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Convention {
    /// The ABI.
    C,
    /// The compiler, as Rust's does it: what consists of one or two numbers or addresses is passed
    /// as if these were the arguments, and large records by address.
    Scalars,
    /// Go's own ABI.
    Go {
        /// What has room is in registers, as of Go 1.17; else all is on the stack.
        registers: bool,
    },
}

/// What a symbol names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Bytes; 0: not known.
    pub size: u64,
}

/// Types of the programs that are probed. An error is a clause that says what is missing, and what
/// to do.
pub trait Program {
    /// What the functions at an attach point take and give.
    ///
    /// # Errors
    /// There is no debug information, or it does not say; or several functions are meant that
    /// differ.
    fn signature(&mut self, point: &Point) -> Result<Signature, String>;

    /// A type by its name with its keyword (`struct a`, `union b`, `enum c`), or of a `typedef`. It
    /// is looked for in what these attach points are in.
    ///
    /// # Errors
    /// There is none.
    fn named(&mut self, points: &[Point], name: &str) -> Result<CType, String>;

    /// What a record consists of that an answer named by this place.
    ///
    /// # Errors
    /// It is only declared.
    fn layout(&mut self, place: u64) -> Result<Layout, String>;

    /// The symbol of this name in the objects of an attach point, as
    /// [`checked::Fact::Symbol`](super::checked::Fact) will find it.
    ///
    /// # Errors
    /// One of them has none.
    fn symbol(&mut self, point: &Point, name: &str) -> Result<Symbol, String>;

    /// Makes sure that the functions at an attach point know their goroutine; of a pattern, one is
    /// enough.
    ///
    /// # Errors
    /// They are no Go, or of a Go that is not known.
    fn goroutines(&mut self, point: &Point) -> Result<(), String>;

    /// A constant of an enumeration that the functions at these attach points know.
    fn constant(&mut self, points: &[Point], name: &str) -> Option<(Arc<Enum>, u64)>;
}

/// No program at all.
#[derive(Clone, Copy, Debug)]
pub struct Nothing;

impl Program for Nothing {
    fn signature(&mut self, point: &Point) -> Result<Signature, String> {
        Err(format!("nothing is known of the functions at {}", point.text()))
    }

    fn named(&mut self, _: &[Point], name: &str) -> Result<CType, String> {
        Err(format!("Cannot resolve unknown type \"{name}\""))
    }

    fn layout(&mut self, _: u64) -> Result<Layout, String> {
        Err("nothing is known of it".to_owned())
    }

    fn symbol(&mut self, point: &Point, name: &str) -> Result<Symbol, String> {
        Err(format!("Could not find symbol '{name}': nothing is known of {}", point.text()))
    }

    fn goroutines(&mut self, point: &Point) -> Result<(), String> {
        Err(format!("goid is the number of a goroutine: nothing is known of {}", point.text()))
    }

    fn constant(&mut self, _: &[Point], _: &str) -> Option<(Arc<Enum>, u64)> {
        None
    }
}
