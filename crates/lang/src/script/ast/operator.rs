//! Operators.

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
