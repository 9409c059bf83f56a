//! Types and values of scripts, and what operators make of them.

use std::collections::BTreeMap;

/// A type of numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Int {
    bits: u32,
    signed: bool,
}

impl Int {
    pub const I64: Int = Int { bits: 64, signed: true };
    pub const U64: Int = Int { bits: 64, signed: false };
    pub const I8: Int = Int { bits: 8, signed: true };
    pub const ALL: [Int; 8] = [
        Int::I8,
        Int { bits: 8, signed: false },
        Int { bits: 16, signed: true },
        Int { bits: 16, signed: false },
        Int { bits: 32, signed: true },
        Int { bits: 32, signed: false },
        Int::I64,
        Int::U64,
    ];

    /// As scripts call it.
    pub fn name(self) -> String {
        format!("{}int{}", if self.signed { "" } else { "u" }, self.bits)
    }

    /// The variable of this type that all scripts have.
    pub fn variable(self) -> String {
        format!("{}{}", if self.signed { "i" } else { "u" }, self.bits)
    }

    /// The lower bits, extended by the sign.
    pub fn value(self, n: u64) -> Value {
        let unused = 64 - self.bits;
        let n = if self.signed { ((n << unused) as i64 >> unused) as u64 } else { n << unused >> unused };
        Value::Int(self, n)
    }

    /// The type of what is calculated from both.
    pub fn with(self, other: Int) -> Int {
        if self.signed || other.signed { Int::I64 } else { Int::U64 }
    }

    /// 64 bits of the same sign.
    pub fn widest(self) -> Int {
        Int { bits: 64, ..self }
    }

    /// The smallest type that holds numbers of both.
    pub fn joined(self, other: Int) -> Int {
        if self.signed == other.signed {
            return Int { bits: self.bits.max(other.bits), ..self };
        }
        let (with, without) = if self.signed { (self, other) } else { (other, self) };
        if with.bits > without.bits { with } else { Int { bits: (2 * without.bits).min(64), signed: true } }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ty {
    Int(Int),
    Bool,
    Text,
    /// With names, it is a record.
    Tuple(Vec<(&'static str, Ty)>),
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Value {
    /// Extended to 64 bits.
    Int(Int, u64),
    Bool(bool),
    Text(String),
    Tuple(Vec<(&'static str, Value)>),
}

impl Value {
    /// The 64 bits of a number.
    pub fn bits(&self) -> u64 {
        match self {
            Value::Int(_, n) => *n,
            Value::Bool(truth) => (*truth).into(),
            _ => unreachable!("{self:?} is no number"),
        }
    }

    pub fn is_true(&self) -> bool {
        self.bits() != 0
    }

    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            _ => unreachable!("{self:?} is no text"),
        }
    }

    /// As `print` shows it.
    pub fn shown(&self) -> String {
        match self {
            Value::Int(Int { signed: true, .. }, n) => (*n as i64).to_string(),
            Value::Int(_, n) => n.to_string(),
            Value::Bool(truth) => truth.to_string(),
            Value::Text(text) => text.clone(),
            Value::Tuple(items) if items.iter().any(|(name, _)| !name.is_empty()) => {
                let items: Vec<_> = items.iter().map(|(name, item)| format!(".{name} = {}", item.shown())).collect();
                format!("{{ {} }}", items.join(", "))
            }
            Value::Tuple(items) => {
                let items: Vec<_> = items.iter().map(|(_, item)| item.shown()).collect();
                format!("({})", items.join(", "))
            }
        }
    }
}

/// What an operator gives. `of`: the type that it calculates in, whose sign decides `/ % >> <`.
pub fn binary(op: &str, of: Int, a: u64, b: u64) -> u64 {
    let (x, y) = (a as i64, b as i64);
    let truth = |signed: bool, unsigned: bool| u64::from(if of.signed { signed } else { unsigned });
    match op {
        "+" => a.wrapping_add(b),
        "-" => a.wrapping_sub(b),
        "*" => a.wrapping_mul(b),
        // Instead of a fault.
        "/" | "%" if b == 0 => 1,
        "/" if of.signed => x.wrapping_div(y) as u64,
        "/" => a / b,
        "%" if of.signed => x.wrapping_rem(y) as u64,
        "%" => a % b,
        "&" => a & b,
        "|" => a | b,
        "^" => a ^ b,
        "<<" => a.wrapping_shl(b as u32),
        ">>" if of.signed => x.wrapping_shr(b as u32) as u64,
        ">>" => a.wrapping_shr(b as u32),
        "==" => (a == b).into(),
        "!=" => (a != b).into(),
        "<" => truth(x < y, a < b),
        "<=" => truth(x <= y, a <= b),
        ">" => truth(x > y, a > b),
        ">=" => truth(x >= y, a >= b),
        _ => unreachable!("{op}"),
    }
}

/// Why statements do not go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    Next,
    Break,
    Continue,
}

/// What was counted or summed under one key.
#[derive(Clone, Default, Debug)]
pub struct Sum {
    pub count: u64,
    pub total: u64,
    pub least: Option<i64>,
    pub most: Option<i64>,
}

/// Variables and maps while a script runs, and what it has printed.
#[derive(Default, Debug)]
pub struct State {
    variables: BTreeMap<String, Value>,
    pub maps: BTreeMap<&'static str, BTreeMap<Vec<Value>, Value>>,
    pub sums: BTreeMap<(&'static str, Vec<Value>), Sum>,
    pub printed: String,
}

impl State {
    pub fn set(&mut self, name: impl Into<String>, value: Value) {
        self.variables.insert(name.into(), value);
    }

    pub fn get(&self, name: &str) -> Value {
        self.variables.get(name).unwrap_or_else(|| panic!("${name} has no value")).clone()
    }
}
