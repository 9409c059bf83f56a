//! The syntax tree.

use super::ctype::Definitions;
use super::diagnostic::Span;

/// A whole script.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Script {
    /// Names and values that are set after `config` is read: by the environment.
    pub environment: Vec<(String, String)>,
    /// Reads of numbers that fail are counted, too.
    pub count_reads: bool,
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
    /// Where it is.
    pub span: Span,
}

impl Point {
    /// As it is written, with the full name of its kind.
    #[must_use]
    pub fn text(&self) -> String {
        let fields = self.fields.iter().map(|field| match field.quoted {
            true => format!(":\"{}\"", field.text),
            false => format!(":{}", field.text),
        });
        self.provider.name().to_owned() + &fields.collect::<String>()
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

/// A statement.
#[derive(Clone, PartialEq, Debug)]
pub struct Stmt {
    /// What it is.
    pub kind: StmtKind,
    /// Where it is.
    pub span: Span,
}

/// Kinds of statements.
#[derive(Clone, PartialEq, Debug)]
pub enum StmtKind {
    /// A call, `++`, or any other.
    Expr(Expr),
    /// `target = value`, or `target op= value`.
    Assign {
        /// A variable or a map.
        target: Expr,
        /// The operator before the sign.
        op: Option<BinaryOp>,
        /// What is assigned.
        value: Expr,
    },
    /// `let $name : type = value`
    Let {
        /// Without the sign.
        name: String,
        /// What it holds, if it says so.
        ty: Option<Sized>,
        /// What it begins with.
        value: Option<Expr>,
    },
    /// `if (cond) { … } else { … }`
    If {
        /// Which of them.
        cond: Expr,
        /// If it holds.
        then: Vec<Stmt>,
        /// If not.
        otherwise: Vec<Stmt>,
    },
    /// `for ($name : @map) { … }`
    ForMap {
        /// Without the sign.
        name: String,
        /// The map.
        map: Expr,
        /// What is done for each entry.
        body: Vec<Stmt>,
    },
    /// `for ($name : from..to) { … }`
    ForRange {
        /// Without the sign.
        name: String,
        /// The first.
        from: Expr,
        /// Behind the last.
        to: Expr,
        /// What is done for each.
        body: Vec<Stmt>,
    },
    /// `while (cond) { … }`
    While {
        /// As long as it holds.
        cond: Expr,
        /// What is done.
        body: Vec<Stmt>,
    },
    /// `unroll (count) { … }`
    Unroll {
        /// A constant.
        count: Expr,
        /// What is done so often.
        body: Vec<Stmt>,
    },
    /// `return value`
    Return(Option<Expr>),
    /// `break`
    Break,
    /// `continue`
    Continue,
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub struct Expr {
    /// What it is.
    pub kind: ExprKind,
    /// Where it is.
    pub span: Span,
}

/// Kinds of expressions.
#[derive(Clone, PartialEq, Debug)]
pub enum ExprKind {
    /// A number.
    Int(u64),
    /// A text.
    Str(Vec<u8>),
    /// `$name`
    Var(String),
    /// `$1`
    Param(u32),
    /// `$#`
    ParamCount,
    /// `@name[keys]`
    Map(String, Vec<Expr>),
    /// A builtin or constant.
    Ident(String),
    /// `name(args)`
    Call(String, Vec<Expr>),
    /// `-x`
    Unary(UnaryOp, Box<Expr>),
    /// `++x`, `x--`
    Step(Step, Box<Expr>),
    /// `a + b`
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// `a ? b : c`
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
    /// `(type)x`
    Cast(Box<Sized>, Box<Expr>),
    /// `a.name`, `a->name`
    Member(Box<Expr>, String),
    /// `a[i]`
    Index(Box<Expr>, Box<Expr>),
    /// `(a, b)`
    Tuple(Vec<Expr>),
    /// `(a=1, b=2)`: names and values.
    Record(Vec<String>, Vec<Expr>),
    /// `{ …; value }`
    Block(Vec<Stmt>, Option<Box<Expr>>),
    /// `sizeof(of)`
    SizeOf(Box<Sized>),
    /// `offsetof(of, a.b)`
    OffsetOf(Box<Sized>, Vec<String>),
    /// `typeof(of)`, where a macro takes a type.
    TypeOf(Box<Sized>),
    /// `typeinfo(of)`
    TypeInfo(Box<Sized>),
}

/// A type, wherever one is meant: that of a cast or variable, or what `sizeof` is about.
#[derive(Clone, PartialEq, Debug)]
pub enum Sized {
    /// By its name.
    Type(TypeName),
    /// That of an expression: `typeof(x)`.
    Expr(Expr),
}

impl Sized {
    /// As it is written; of an expression, only what it is.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Sized::Type(name) => name.text(),
            Sized::Expr(_) => "typeof".to_owned(),
        }
    }
}

/// The name of a type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeName {
    /// `struct`, `union`, `enum`, or nothing.
    pub keyword: &'static str,
    /// Its name.
    pub name: String,
    /// How many stars.
    pub stars: u32,
    /// `[n]`
    pub length: Option<u64>,
}

impl TypeName {
    /// As it is written.
    #[must_use]
    pub fn text(&self) -> String {
        let name = self.full_name();
        let stars = if self.stars > 0 { " ".to_owned() + &"*".repeat(self.stars as usize) } else { String::new() };
        let length = self.length.map_or(String::new(), |n| format!("[{n}]"));
        format!("{name}{stars}{length}")
    }

    /// Its name with its keyword.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.keyword.is_empty() { self.name.clone() } else { format!("{} {}", self.keyword, self.name) }
    }
}

/// Operators before an expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnaryOp {
    /// `!`
    Not,
    /// `~`
    Invert,
    /// `-`
    Negate,
    /// `*`
    Deref,
    /// `&`
    Address,
}

impl UnaryOp {
    /// Its sign.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            UnaryOp::Not => "!",
            UnaryOp::Invert => "~",
            UnaryOp::Negate => "-",
            UnaryOp::Deref => "*",
            UnaryOp::Address => "&",
        }
    }
}

/// `++` and `--`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// `++`, not `--`.
    pub up: bool,
    /// The value is that from before.
    pub post: bool,
}

/// Operators between expressions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BinaryOp {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Mod,
    /// `&`
    And,
    /// `|`
    Or,
    /// `^`
    Xor,
    /// `<<`
    Shl,
    /// `>>`
    Shr,
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
    /// `&&`
    LogicalAnd,
    /// `||`
    LogicalOr,
}

impl BinaryOp {
    /// Its sign, and how strongly it binds.
    pub const ALL: [(BinaryOp, &'static str, u8); 18] = [
        (BinaryOp::LogicalOr, "||", 1),
        (BinaryOp::LogicalAnd, "&&", 2),
        (BinaryOp::Or, "|", 3),
        (BinaryOp::Xor, "^", 4),
        (BinaryOp::And, "&", 5),
        (BinaryOp::Eq, "==", 6),
        (BinaryOp::Ne, "!=", 6),
        (BinaryOp::Lt, "<", 7),
        (BinaryOp::Le, "<=", 7),
        (BinaryOp::Gt, ">", 7),
        (BinaryOp::Ge, ">=", 7),
        (BinaryOp::Shl, "<<", 8),
        (BinaryOp::Shr, ">>", 8),
        (BinaryOp::Add, "+", 9),
        (BinaryOp::Sub, "-", 9),
        (BinaryOp::Mul, "*", 10),
        (BinaryOp::Div, "/", 10),
        (BinaryOp::Mod, "%", 10),
    ];

    /// Its sign.
    #[must_use]
    pub fn text(self) -> &'static str {
        Self::ALL.iter().find(|(op, ..)| *op == self).map_or("", |(_, text, _)| text)
    }

    /// Whether its result says yes or no.
    #[must_use]
    pub fn is_comparison(self) -> bool {
        use BinaryOp::{Eq, Ge, Gt, Le, Lt, Ne};
        matches!(self, Eq | Ne | Lt | Le | Gt | Ge)
    }
}
