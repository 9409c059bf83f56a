//! Errors, one enum per operation; each message is one line that says what to do.

use std::io;
use std::path::PathBuf;

/// Why a file could not be opened as an object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory, a device, a pipe.
    #[error("{} is not a regular file: give the path of a program or shared library", path.display())]
    NotRegular {
        /// Which file.
        path: PathBuf,
    },
    /// No ELF magic number.
    #[error("{} is not an ELF file: give the path of a program or shared library", path.display())]
    NotElf {
        /// Which file.
        path: PathBuf,
    },
    /// ELF, but not of a kind that can be probed.
    #[error("{} is {what}: not supported yet", path.display())]
    Unsupported {
        /// Which file.
        path: PathBuf,
        /// What it is, with its article: "a 32-bit i386 program".
        what: String,
    },
    /// ELF, but it contradicts itself.
    #[error("{} is corrupt: {what}", path.display())]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What is wrong: a clause.
        what: &'static str,
    },
    /// A member of an archive that is not there, or that no process can map.
    #[error("{}: {what}", path.display())]
    Archived {
        /// The archive and the member.
        path: PathBuf,
        /// What is wrong: a clause.
        what: &'static str,
    },
    /// More bytes would have to be read than is sensible.
    #[error("{} is too large: {bytes} bytes of code, data and symbols (at most {limit})", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Bytes to read.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
}

/// Why a function or address was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// Nothing matches.
    #[error("no function `{name}` in {} ({looked}){}", path.display(), suggestion(nearest))]
    NotFound {
        /// What was asked for.
        name: String,
        /// In which object.
        path: PathBuf,
        /// Where symbols were looked for, and not found: `looked in .dynsym; no .symtab, …`.
        looked: String,
        /// At most three names that are close.
        nearest: Vec<String>,
    },
    /// `symbol+0xOFF` points behind the function's end.
    #[error("Offset outside the function bounds ('{name}' size is {size}): {offset} is too large")]
    OutsideFunction {
        /// The symbol.
        name: String,
        /// The offset asked for.
        offset: u64,
        /// The function's size.
        size: u64,
    },
    /// `0xADDR` is not code.
    #[error("{va:#x} is not in an executable section of {}: give a virtual address as `objdump -d` shows it", path.display())]
    NotCode {
        /// The link-time address.
        va: u64,
        /// In which object.
        path: PathBuf,
    },
}

fn suggestion(nearest: &[String]) -> String {
    if nearest.is_empty() {
        return String::new();
    }
    let quoted: Vec<String> = nearest.iter().map(|n| format!("`{n}`")).collect();
    format!("; did you mean {}?", quoted.join(" or "))
}

/// Why a line of a source file was not found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// There is no line table.
    #[error(
        "no line numbers of {} (looked in {looked}); compile it with -g, or install its debug symbols (PACKAGE-dbgsym)",
        path.display()
    )]
    NoTable {
        /// In which object.
        path: PathBuf,
        /// The files that have none.
        looked: String,
    },
    /// The line table contradicts itself.
    #[error("the line numbers of {} cannot be read: {what}", path.display())]
    Corrupt {
        /// In which object.
        path: PathBuf,
        /// What is wrong: a clause.
        what: String,
    },
    /// No such source file.
    #[error("no source file `{file}` in {}{}", path.display(), suggestion(nearest))]
    NoFile {
        /// In which object.
        path: PathBuf,
        /// What was asked for.
        file: String,
        /// At most three names that are close.
        nearest: Vec<String>,
    },
    /// A line without code.
    #[error("no code at {file}:{line} in {}{}", path.display(), next_line(*next))]
    NoCode {
        /// In which object.
        path: PathBuf,
        /// The source file.
        file: String,
        /// The line.
        line: u64,
        /// The next one that has code.
        next: Option<u64>,
    },
    /// A column that nothing begins at.
    #[error("no code at {file}:{line}:{column} in {}; columns with code are {}", path.display(), list(columns))]
    NoColumn {
        /// In which object.
        path: PathBuf,
        /// The source file.
        file: String,
        /// The line.
        line: u64,
        /// The column.
        column: u64,
        /// Those that have code.
        columns: Vec<u64>,
    },
}

fn list(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

fn next_line(next: Option<u64>) -> String {
    next.map_or_else(String::new, |next| format!("; the next line with code is {next}"))
}

/// Why types are not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeError {
    /// There is none.
    #[error(
        "no debug information of {} (looked in {looked}); compile it with -g, or install its debug symbols (PACKAGE-dbgsym)",
        path.display()
    )]
    NoDebugInfo {
        /// Of which object.
        path: PathBuf,
        /// The files that have none.
        looked: String,
    },
    /// It was split into files, and one is missing.
    #[error(
        "the debug information of {} is split, and neither {name} nor {package} is there (looked in {looked})",
        path.display()
    )]
    NoSplit {
        /// Of which object.
        path: PathBuf,
        /// The file as the compiler names it.
        name: String,
        /// The package that would do as well.
        package: String,
        /// Where it was looked for.
        looked: String,
    },
    /// It contradicts itself.
    #[error("the debug information of {} cannot be read: {what}", path.display())]
    Corrupt {
        /// Of which object.
        path: PathBuf,
        /// What is wrong: a clause.
        what: String,
    },
    /// It is of other parts of the object.
    #[error("the debug information of {} does not describe {name}: compile all of it with -g", path.display())]
    NoFunction {
        /// The function.
        name: String,
        /// Of which object.
        path: PathBuf,
    },
    /// What is described is the code that chooses the function's.
    #[error("{name} is an indirect function, and only the code that chooses it is described: use arg0, arg1, …")]
    Indirect {
        /// The function.
        name: String,
    },
    /// It is no function of the source.
    #[error("the compiler has made {name} of another function, with other arguments: use arg0, arg1, …")]
    Changed {
        /// The function.
        name: String,
    },
    /// No such type.
    #[error("no type '{name}' in the debug information of {}", path.display())]
    NoType {
        /// Its name with its keyword.
        name: String,
        /// Of which object.
        path: PathBuf,
    },
}

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The regular expression does not parse.
    #[error("`{pattern}` is not a regular expression: {reason}")]
    Regex {
        /// The pattern.
        pattern: String,
        /// What the parser says.
        reason: String,
    },
}
