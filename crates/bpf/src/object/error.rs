//! Why an object cannot be loaded.

use crate::codec::DecodeError;

/// An object that cannot be loaded. The message says what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ObjectError {
    /// Not an ELF file that can be read.
    #[error("no ELF object: {0}; compile with clang -target bpf -g -O2 -c")]
    Elf(String),
    /// Longer than programs are.
    #[error("the object has {0} bytes, more than {max}: make it smaller", max = super::MAX_FILE)]
    TooLarge(usize),
    /// For another machine.
    #[error("an object for another machine: compile with clang -target bpf -g -O2 -c")]
    Machine,
    /// A big-endian object.
    #[error("a big-endian object: compile with -target bpfel")]
    BigEndian,
    /// No function outside of `.text`.
    #[error("the object has no program: put functions into sections such as SEC(\"uprobe\")")]
    NoProgram,
    /// The section `.BTF` or `.BTF.ext` cannot be read.
    #[error("section {section}: {error}")]
    Btf {
        /// The name of the section.
        section: &'static str,
        /// What is wrong with it.
        error: BtfError,
    },
    /// Maps without types.
    #[error("maps are defined in {0}, but there are no types: compile with -g, and define maps in SEC(\".maps\")")]
    NoBtf(String),
    /// The old way to define maps.
    #[error(
        "section maps: struct bpf_map_def is no longer supported; define maps in SEC(\".maps\") with __uint and __type"
    )]
    LegacyMaps,
    /// A map that makes no sense here.
    #[error("map '{map}': {problem}")]
    Map {
        /// The name or number of the map.
        map: String,
        /// What is wrong with it.
        problem: MapProblem,
    },
    /// Variables that are too large.
    #[error("section {section} has {size} bytes, more than {max}: make it smaller", max = super::MAX_DATA)]
    DataSize {
        /// The name of the section.
        section: String,
        /// In bytes.
        size: u64,
    },
    /// Pointers in variables.
    #[error("section {0} holds addresses: set pointers in the program instead")]
    DataRelocation(String),
    /// Something in a program.
    #[error("{function}, insn {insn}: {problem}")]
    Code {
        /// Its name.
        function: String,
        /// The slot in the function.
        insn: usize,
        /// What is wrong with it.
        problem: CodeProblem,
    },
}

/// What is wrong with a map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapProblem {
    /// Not a structure of `__uint` and `__type`.
    #[error("its definition is not understood at '{0}': use __uint and __type")]
    Field(String),
    /// A kind without a number, or with one that probes cannot use.
    #[error(
        "maps of kind {0} are not supported: use hash, array, their per-CPU and LRU variants, stack traces or rings"
    )]
    Kind(u32),
    /// No type.
    #[error("it has no type: add __uint(type, ...)")]
    NoKind,
    /// A length that must not be 0.
    #[error("{0} is missing: add it")]
    Missing(&'static str),
    /// A length that does not fit.
    #[error("{field} is {size}: {hint}")]
    Size {
        /// The name of the field.
        field: &'static str,
        /// In bytes, or entries.
        size: u32,
        /// What to do.
        hint: &'static str,
    },
    /// Given twice, differently.
    #[error("{0} is given twice: keep one")]
    Twice(&'static str),
    /// Shared through the file system of the kernel.
    #[error("it is pinned: maps of probes belong to one session; remove the pinning")]
    Pinned,
    /// The types do not say it.
    #[error("{0}")]
    Btf(BtfError),
}

/// What is wrong in a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeProblem {
    /// Not an instruction.
    #[error("{}", .0.problem)]
    Decode(DecodeError),
    /// Code with a length that is no multiple of 8, or outside of its section.
    #[error("the function is cut off: compile again")]
    Truncated,
    /// A reference to what the object does not have.
    #[error("'{0}' is not defined in the object: link the objects with bpftool gen object, or define it")]
    Undefined(String),
    /// A reference to the kernel.
    #[error("'{0}' is a variable of the kernel: it has no value in a target")]
    Kernel(String),
    /// A call of what is no function.
    #[error("the target {offset:#x} in section {section} is no function: compile again")]
    NoFunction {
        /// Where it is.
        section: String,
        /// In bytes.
        offset: u64,
    },
    /// A reference to a section that is no data.
    #[error("'{symbol}' is in section {section}, which is neither maps nor data: move it")]
    Section {
        /// The symbol.
        symbol: String,
        /// Its section.
        section: String,
    },
    /// A reference into the middle of a map definition.
    #[error("'{0}' is no map that is defined in SEC(\".maps\")")]
    NoMap(String),
    /// A kind of relocation that is not for code.
    #[error("relocation {0} is not understood: compile with clang 12 or later")]
    Relocation(u32),
    /// A relocation of another instruction.
    #[error("a relocation of '{0}' fits neither a call nor a long immediate: compile again")]
    Misplaced(String),
    /// Types of the kernel.
    #[error(
        "{access} is a CO-RE relocation, which only the kernel's types resolve: compile without preserve_access_index"
    )]
    CoRe {
        /// Type and field.
        access: String,
    },
    /// Too much code.
    #[error("program and functions have more than {max} instructions: make them smaller", max = crate::verify::MAX_SLOTS)]
    TooLong,
}

/// What is wrong with types.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BtfError {
    /// Ends too early.
    #[error("it is cut off: compile again")]
    Truncated,
    /// Not BTF.
    #[error("it is no BTF: compile with clang -g")]
    Magic,
    /// For a big-endian machine.
    #[error("it is big-endian: compile with -target bpfel")]
    BigEndian,
    /// Of a version that does not exist.
    #[error("version {0} is not known: compile with another clang")]
    Version(u8),
    /// A kind that does not exist.
    #[error("kind {0} of types is not known: compile with another clang")]
    Kind(u32),
    /// No such string.
    #[error("there is no string at {0}: compile again")]
    String(u32),
    /// No such type.
    #[error("there is no type {0}: compile again")]
    Type(u32),
    /// Contains itself.
    #[error("type {0} contains itself: compile again")]
    Circle(u32),
    /// Has no length.
    #[error("type {0} has no length: use a complete type")]
    NoSize(u32),
}
