//! What a script becomes: programs and maps.

use sidestep_bpf::Program;
use sidestep_bpf::map::Map;

use super::super::ast::Point;
use super::super::checked;
use crate::build::BuildError;

/// Programs and maps of a script.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// Programs refer to them by index.
    pub maps: Vec<Map>,
    /// In the order of the script.
    pub probes: Vec<Probe>,
    /// The code.
    pub programs: Vec<Program>,
    /// The map of each of the script's maps.
    pub map_of: Vec<usize>,
    /// The map of each kind of stack.
    pub stack_of: Vec<usize>,
    /// The map that counts strings that could not be read: a word for each block.
    pub faults: usize,
    /// The map of the names of functions, by the numbers of probes; `None`: no program looks at
    /// them.
    pub names: Option<usize>,
    /// The map of the attach points, by the numbers of probes; `None`: no program looks at them.
    pub places: Option<usize>,
    /// The map of the names of processes, by their numbers; `None`: no program looks at them.
    pub processes: Option<usize>,
    /// The map with a word for each of the script's facts, by the numbers of probes; `None`: there
    /// are none.
    pub facts: Option<usize>,
    /// Those facts.
    pub asked: Vec<checked::Fact>,
    /// The map whose word is the pid of the command, once it is started.
    pub command: usize,
    /// Addresses are printed as names.
    pub uses_symbols: bool,
}

/// An attach point with its program.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The attach point.
    pub point: Point,
    /// The number of the block that the attach point belongs to.
    pub block: usize,
    /// The index of the program that runs there.
    pub program: usize,
    /// What has to run at the entry of a call whose return is probed.
    pub entry: Option<usize>,
}

/// Why there is no program, as a clause.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LowerError {
    /// Too much at once.
    #[error("a block needs more than 512 bytes of stack: use fewer variables, keys and arguments at once")]
    Stack,
    /// Jumps would be too far.
    #[error("a block is too long: split it")]
    TooLong,
    /// A bug of the compiler.
    #[error("the program cannot be decoded: {0}")]
    Decode(sidestep_bpf::DecodeError),
}

impl From<BuildError> for LowerError {
    fn from(error: BuildError) -> LowerError {
        match error {
            BuildError::TooLong => LowerError::TooLong,
            BuildError::Decode(error) => LowerError::Decode(error),
        }
    }
}
