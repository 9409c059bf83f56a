//! The syntax tree.

mod expr;
mod operator;
mod stmt;

pub use expr::{Expr, ExprKind, Sized, TypeName};
pub use operator::{BinaryOp, Step, UnaryOp};
pub use stmt::{Stmt, StmtKind};

use super::ctype::Definitions;
use super::diagnostic::Span;

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// Names and values that are set after `config` is read: by the environment.
    pub environment: Vec<(String, String)>,
    /// Reads of numbers that fail are counted, too.
    pub count_reads: bool,
    /// Functions may be called that change the program.
    pub allow_unsafe: bool,
    /// The options that it asks for: `getopt(…)`.
    pub options: Vec<Declared>,
    /// `config = { … }`
    pub config: Vec<Setting>,
    /// The types that it declares.
    pub types: Definitions,
    /// `macro name(…) { … }`
    pub macros: Vec<Macro>,
    /// `fn name($a : type) : type { … }`
    pub functions: Vec<Function>,
    /// `let @name = kind(entries);`
    pub maps: Vec<DeclaredMap>,
    /// Its blocks, in order.
    pub blocks: Vec<Block>,
}

/// A map as it is declared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredMap {
    /// Without the sign.
    pub name: String,
    /// `lruhash`, for example.
    pub kind: String,
    /// Keys at most.
    pub entries: u64,
    /// Where it says so.
    pub span: Span,
}

/// An option of a script.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declared {
    /// Without the dashes.
    pub name: String,
    /// What it is when nobody says otherwise.
    pub default: String,
    /// What it does; may be empty.
    pub description: String,
    /// What is wrong with the value that the command line gives it.
    pub wrong: Option<String>,
}

/// What stands for statements and a value wherever it is called.
#[derive(Clone, PartialEq, Debug)]
pub struct Macro {
    /// Its name.
    pub name: String,
    /// What it is called with.
    pub params: Vec<Param>,
    /// What it does.
    pub body: Vec<Stmt>,
    /// Its value.
    pub value: Option<Expr>,
    /// Its name in the script.
    pub span: Span,
}

/// A function. It is checked; as in bpftrace, nothing calls it.
#[derive(Clone, PartialEq, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Names without the sign, types, and where they are.
    pub params: Vec<(String, Sized, Span)>,
    /// What it gives.
    pub result: Sized,
    /// What it does.
    pub body: Vec<Stmt>,
    /// Its name in the script.
    pub span: Span,
}

/// A parameter of a macro, without a sign.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Param {
    /// `$name`: a variable, which may be changed.
    Var(String),
    /// `@name`: a map, which may be changed.
    Map(String),
    /// `name`: an expression, evaluated wherever the name stands.
    Expr(String),
}

impl Param {
    /// Whether both take the same arguments.
    #[must_use]
    pub fn is_like(&self, other: &Param) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether it may be called with this.
    #[must_use]
    pub fn takes(&self, arg: &Expr) -> bool {
        match (self, &arg.kind) {
            (Param::Var(_), ExprKind::Var(_)) | (Param::Expr(_), _) => true,
            (Param::Map(_), ExprKind::Map(_, keys)) => keys.is_empty(),
            _ => false,
        }
    }

    /// As it is written.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Param::Var(name) => format!("${name}"),
            Param::Map(name) => format!("@{name}"),
            Param::Expr(name) => name.clone(),
        }
    }
}

/// `name = value` of the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// What is set.
    pub name: String,
    /// To what.
    pub value: String,
    /// Where it says so.
    pub span: Span,
}

/// Attach points and what is done there.
#[derive(Clone, PartialEq, Debug)]
pub struct Block {
    /// At least one.
    pub points: Vec<Point>,
    /// `/expr/`
    pub predicate: Option<Expr>,
    /// What is done.
    pub body: Vec<Stmt>,
}

/// Kinds of attach points.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Provider {
    /// Before anything is attached.
    Begin,
    /// After everything was detached.
    End,
    /// Again and again.
    Interval,
    /// An instruction, the first of a function for example.
    Uprobe,
    /// The return of a function.
    Uretprobe,
    /// A static probe.
    Usdt,
    /// What `--test` runs.
    Test,
    /// What `--bench` runs.
    Bench,
    /// When the tool itself gets a signal.
    Own,
}

impl Provider {
    /// Its full name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Provider::Begin => "begin",
            Provider::End => "end",
            Provider::Interval => "interval",
            Provider::Uprobe => "uprobe",
            Provider::Uretprobe => "uretprobe",
            Provider::Usdt => "usdt",
            Provider::Test => "test",
            Provider::Bench => "bench",
            Provider::Own => "self",
        }
    }

    /// Whether it needs a process.
    #[must_use]
    pub const fn has_target(self) -> bool {
        matches!(self, Provider::Uprobe | Provider::Uretprobe | Provider::Usdt)
    }
}

/// An attach point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Point {
    /// What it is.
    pub provider: Provider,
    /// What is between its colons, parameters replaced.
    pub fields: Vec<Field>,
    /// The name in front, as in `name = begin`.
    pub name: Option<String>,
    /// Where it is.
    pub span: Span,
}

impl Point {
    /// What `probe` is there: its name, or the point as it is written.
    #[must_use]
    pub fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.text())
    }

    /// As it is written, with the full name of its kind.
    #[must_use]
    pub fn text(&self) -> String {
        let fields = self.fields.iter().map(|field| match field.quoted {
            true => format!(":\"{}\"", field.text),
            false => format!(":{}", field.text),
        });
        self.provider.name().to_owned() + &fields.collect::<String>()
    }

    /// The file of a probe in a program, as it is written; empty if none is named.
    #[must_use]
    pub fn object(&self) -> &str {
        match &*self.fields {
            [object, _, ..] => &object.text,
            _ => "",
        }
    }
}

/// A part of an attach point.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Field {
    /// Without quotes.
    pub text: String,
    /// It was in quotes: a name, whatever is in it.
    pub quoted: bool,
}
