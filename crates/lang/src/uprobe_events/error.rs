//! What is wrong with a line or a filter, and where.

/// Why text was refused, and the place that the kernel's `error_log` would point to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{kind}")]
pub struct ParseError {
    /// In bytes from the start of the text; may be behind its end.
    pub position: usize,
    /// What is wrong.
    pub kind: ErrorKind,
}

impl ParseError {
    /// The message over the text with a caret at the position, as in the kernel's `error_log`. Ends
    /// with a newline.
    #[must_use]
    pub fn render(&self, text: &str) -> String {
        let shown: String = text.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let before = text.char_indices().take_while(|(at, _)| *at < self.position).count();
        let column = before + self.position.saturating_sub(text.len());
        let label = "  Command: ";
        format!("error: {}\n{label}{shown}\n{:width$}^\n", self.kind, "", width = label.len() + column)
    }
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What is wrong. The texts are the kernel's, where it has one (`ERRORS` of
        /// `kernel/trace/trace_probe.h` and of `kernel/trace/trace_events_filter.c`).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$doc])* #[error($text)] $name,)*
        }
    };
}

kinds! {
    /// Nothing but blanks and a comment.
    Empty = "The line defines no event: write p:GROUP/EVENT PATH:OFFSET ARGS",
    /// `-:GROUP/EVENT`.
    Delete = "There is no list of events to delete from: an event ends with the command that defines it",
    /// Neither `p` nor `r`.
    BadCommand = "A line starts with p (entry) or r (return)",
    /// Something other than a colon after `p` or `r`.
    BadCommandSuffix = "After p or r comes a colon and the name of the event",
    /// Neither a number nor a colon after `r`.
    BadMaxact = "Invalid maxactive number",
    /// More than 4096.
    MaxactTooBig = "Maxactive is too big",
    /// A number after `p`.
    MaxactNoKprobe = "Maxactive is not for kprobe",
    /// No path.
    NoPath = "The path of a file and an offset in it are missing: write PATH:OFFSET",
    /// A path without a slash.
    BadPath = "A path contains a slash: write the whole path of the file",
    /// No digit after the last colon of the path.
    NoOffset = "The path ends with a colon and the offset in the file, a number",

    /// A reference counter that is no number.
    BadRefcnt = "Invalid reference counter offset",
    /// `(` without `)`.
    RefcntOpenBrace = "Reference counter brace is not closed",
    /// Text after `)`.
    BadRefcntSuffix = "Reference counter has wrong suffix",
    /// An offset that is no number.
    BadUprobeOffs = "Invalid uprobe offset",
    /// `%` and something other than `return`.
    BadAddrSuffix = "Invalid probed address suffix",
    /// Nothing before the slash.
    NoGroupName = "Group name is not specified",
    /// 64 bytes or more.
    GroupTooLong = "Group name is too long",
    /// Not a C identifier.
    BadGroupName = "Group name must follow the same rules as C identifiers",
    /// Nothing after the colon.
    NoEventName = "Event name is not specified",
    /// 64 bytes or more.
    EventTooLong = "Event name is too long",
    /// Not a C identifier.
    BadEventName = "Event name must follow the same rules as C identifiers",
    /// More than 128.
    TooManyArgs = "Too many arguments are specified",

    /// `$retval` at an entry.
    RetvalOnProbe = "$retval is not available on probe",
    /// `$argN` at a return.
    ArgOnReturn = "$arg* can be used only on function entry: the registers have changed when it returns",
    /// `$argN` with a number that no function has.
    BadArgNum = "Invalid argument number",
    /// Not a variable.
    BadVar = "Invalid $-variable specified",
    /// Not a register.
    BadRegName = "Invalid register name",
    /// Not an address.
    BadMemAddr = "Invalid memory address",
    /// Not a number.
    BadImm = "Invalid immediate value",
    /// No closing quote.
    ImmstrNoClose = "String is not closed with '\"'",
    /// Not an offset.
    BadFileOffs = "Invalid file offset value",
    /// `@symbol`.
    SymOnUprobe = "Symbol is not available with uprobe",
    /// More than 14 derefs.
    TooManyOps = "Dereference is too much nested",
    /// `+8` without brace.
    DerefNeedBrace = "Dereference needs a brace",
    /// Not a number before the brace.
    BadDerefOffs = "Invalid dereference offset",
    /// `(` without `)`.
    DerefOpenBrace = "Dereference brace is not closed",
    /// `+0($comm)`.
    CommCantDeref = "$comm can not be dereferenced",
    /// None of the forms.
    BadFetchArg = "Invalid fetch argument",
    /// The name of a kernel variable.
    NosupBtfarg = "BTF is not available or not supported: name a register or $argN",
    /// `[` without `]`.
    ArrayNoClose = "Array is not closed",
    /// Text after `]`.
    BadArraySuffix = "Array has wrong suffix",
    /// Not a number, or 0.
    BadArrayNum = "Invalid array size",
    /// More than 64.
    ArrayTooBig = "Array number is too big",
    /// Not a type.
    BadType = "Unknown type is specified",
    /// `symbol` and `symstr`.
    KernelType = "Unknown type is specified: symbols are the kernel's, use x64 or string",
    /// A string or array that is not in memory.
    BadString = "String accepts only memory argument",
    /// Not bits of the number.
    BadBitfield = "Invalid bitfield",
    /// `$comm` or text as a number or array.
    NeedStringType = "$comm and immediate-string only accepts string type",
    /// An array of strings at a fixed number, which the kernel takes but cannot fetch.
    StringsAtImmediate = "An array of strings is in memory: write @ADDRESS",
    /// More than 32 bytes.
    ArgNameTooLong = "Argument name is too long",
    /// Nothing before `=`.
    NoArgName = "Argument name is not specified",
    /// Not a C identifier.
    BadArgName = "Argument name must follow the same rules as C identifiers",
    /// Used before, or reserved.
    UsedArgName = "This argument name is already used",
    /// More than 63 bytes.
    ArgTooLong = "Argument expression is too long",
    /// Nothing after `=`.
    NoArgBody = "No argument expression",
    /// More than 3072 bytes.
    EventTooBig = "Event too big (too many fields?)",

    /// Not an operator of filters.
    InvalidOp = "Invalid operator",
    /// `(` without `)`.
    TooManyOpen = "Too many '('",
    /// `)` without `(`.
    TooManyClose = "Too few '('",
    /// No closing quote.
    MissingQuote = "Missing matching quote",
    /// A value of 256 bytes and more, or a number of 24.
    OperandTooLong = "Operand too long",
    /// A number for a string. The kernel's text.
    ExpectString = "Expecting string field",
    /// A string for a number. The kernel's text.
    ExpectDigit = "Expecting numeric field",
    /// An operator that the field does not have.
    IllegalFieldOp = "Illegal operation for field type",
    /// No such field.
    FieldNotFound = "Field not found",
    /// A field that every event of the kernel has.
    KernelField = "This field exists only in the kernel: use common_pid, comm or CPU",
    /// Not a number.
    IllegalIntval = "Illegal integer value",
    /// Text after a term.
    TooManyPreds = "Too many terms in predicate expression",
    /// Where a field should be.
    InvalidFilter = "Meaningless filter expression",
    /// Not a value.
    InvalidValue = "Invalid value (did you forget quotes)?",
    /// `.function`.
    NoFunction = "Functions of the kernel are not known here: compare addresses",
    /// `CPUS` without `{`.
    MissingBraceOpen = "Missing '{{'",
    /// `{` without `}`.
    MissingBraceClose = "Missing '}}'",
    /// Not a list of CPUs.
    InvalidCpulist = "Invalid cpulist",
    /// A pattern of 64 and more characters.
    PatternTooLong = "A pattern has at most 63 characters besides *: make it shorter",
    /// Nothing in the text.
    NoFilter = "No filter found",
    /// `(` in `(` in ...
    TooDeep = "Parentheses are nested more than 64 deep: take some away",
}
