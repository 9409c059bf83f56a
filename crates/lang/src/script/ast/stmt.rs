//! Statements.

use super::super::diagnostic::Span;
use super::{BinaryOp, Expr, Sized};

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
    /// `_ = value`: nobody wants it.
    Discard(Expr),
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
