//! Expressions and types.

use super::super::diagnostic::Span;
use super::{BinaryOp, Step, Stmt, UnaryOp};

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
    /// How many stars are behind it.
    pub pointers: u32,
}

impl TypeName {
    /// As it is written.
    #[must_use]
    pub fn text(&self) -> String {
        let name = self.full_name();
        let stars = if self.stars > 0 { " ".to_owned() + &"*".repeat(self.stars as usize) } else { String::new() };
        let length = self.length.map_or(String::new(), |n| format!("[{n}]"));
        format!("{name}{stars}{length}{}", "*".repeat(self.pointers as usize))
    }

    /// Its name with its keyword.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.keyword.is_empty() { self.name.clone() } else { format!("{} {}", self.keyword, self.name) }
    }
}
