//! Random expressions: their text, their type and their value.

use super::value::{Int, State, Ty, Value, binary};
use crate::random::Rng;

/// What expressions may name.
pub struct Scope {
    /// Numbers.
    pub ints: Vec<(String, Int)>,
    /// Texts.
    pub texts: Vec<String>,
    /// Tuples and records.
    pub tuples: Vec<(String, Ty)>,
    /// Maps with keys, which have values of 64 bits.
    pub maps: Vec<&'static str>,
    /// Variables so far, for new names.
    pub named: usize,
}

impl Scope {
    pub fn new(inputs: &[(Int, u64)]) -> Scope {
        let ints = inputs.iter().map(|(int, _)| (int.variable(), *int)).collect();
        Scope { ints, texts: vec!["text".to_owned()], tuples: Vec::new(), maps: Vec::new(), named: 0 }
    }

    /// A name that is not taken.
    pub fn new_name(&mut self) -> String {
        self.named += 1;
        format!("v{}", self.named)
    }
}

/// An expression with its type.
#[derive(Clone, Debug)]
pub struct Expr {
    pub ty: Ty,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A literal, which is not negative.
    Number(u64),
    Text(&'static str),
    Variable(String),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// Equality of what are no numbers.
    Same(bool, Box<Expr>, Box<Expr>),
    /// `c ? a : b`, or the same as a block.
    Choice(bool, Box<[Expr; 3]>),
    /// `a ?: b`
    OrElse(Box<Expr>, Box<Expr>),
    /// `larger(a, b)`
    Larger(Box<Expr>, Box<Expr>),
    Cast(Box<Expr>),
    /// A function of texts.
    Call(&'static str, Vec<Expr>),
    Char(Box<Expr>, Box<Expr>),
    Tuple(Vec<(&'static str, Expr)>),
    Item(Box<Expr>, usize),
    /// A map with its key.
    Read(&'static str, Vec<Expr>),
    HasKey(&'static str, Vec<Expr>),
}

/// Texts that scripts compare, and look for.
const TEXTS: [&str; 6] = ["alpha", "alp", "pha", "", "a longer text", "alphabet"];
/// Names of the parts of records.
const PARTS: [&str; 4] = ["first", "b", "c_3", "last"];

fn new(ty: Ty, kind: Kind) -> Expr {
    Expr { ty, kind }
}

impl Expr {
    pub fn variable(name: &str, ty: Ty) -> Expr {
        new(ty, Kind::Variable(name.to_owned()))
    }

    /// `(int)of`
    pub fn cast(self, int: Int) -> Expr {
        new(int.ty(), Kind::Cast(Box::new(self)))
    }

    /// `self op other`, as an assignment calculates it.
    pub fn operation(self, op: &'static str, other: Expr) -> Expr {
        let (a, b) = (self.int(), other.int());
        let of = if matches!(op, "<<" | ">>") { a.widest() } else { a.with(b) };
        new(of.ty(), Kind::Binary(op, Box::new(self), Box::new(other)))
    }

    pub fn int(&self) -> Int {
        match self.ty {
            Ty::Int(int) => int,
            _ => unreachable!("{self:?} is no number"),
        }
    }

    fn is_literal(&self) -> bool {
        matches!(self.kind, Kind::Number(_))
    }

    pub fn write(&self, suffix: &str) -> String {
        let list = |items: &[Expr]| items.iter().map(|item| item.write(suffix)).collect::<Vec<_>>().join(", ");
        match &self.kind {
            Kind::Number(n) => n.to_string(),
            Kind::Text(text) => format!("\"{text}\""),
            Kind::Variable(name) => format!("${name}"),
            Kind::Unary(op, of) => format!("{op}({})", of.write(suffix)),
            Kind::Binary(op, a, b) => format!("({} {op} {})", a.write(suffix), b.write(suffix)),
            Kind::Same(same, a, b) => {
                format!("({} {} {})", a.write(suffix), if *same { "==" } else { "!=" }, b.write(suffix))
            }
            Kind::Choice(is_block, parts) => {
                let [c, a, b] = [&parts[0], &parts[1], &parts[2]].map(|part| part.write(suffix));
                match is_block {
                    true => format!("(if {c} {{ {a} }} else {{ {b} }})"),
                    false => format!("({c} ? {a} : {b})"),
                }
            }
            Kind::OrElse(a, b) => format!("({} ?: {})", a.write(suffix), b.write(suffix)),
            Kind::Larger(a, b) => format!("larger({}, {})", a.write(suffix), b.write(suffix)),
            Kind::Cast(of) => format!("({})({})", self.int().name(), of.write(suffix)),
            Kind::Call(name, args) => format!("{name}({})", list(args)),
            Kind::Char(of, at) => format!("{}[{}]", of.write(suffix), at.write(suffix)),
            Kind::Tuple(items) => {
                let named = |(name, item): &(&str, Expr)| match *name {
                    "" => item.write(suffix),
                    name => format!("{name}={}", item.write(suffix)),
                };
                format!("({})", items.iter().map(named).collect::<Vec<_>>().join(", "))
            }
            Kind::Item(of, at) => {
                let Ty::Tuple(items) = &of.ty else { unreachable!("{self:?}") };
                let name = if items[*at].0.is_empty() { at.to_string() } else { items[*at].0.to_owned() };
                format!("{}.{name}", of.write(suffix))
            }
            Kind::Read(name, keys) => format!("@{name}{suffix}[{}]", list(keys)),
            Kind::HasKey(name, keys) => {
                let key = if keys.len() > 1 { format!("({})", list(keys)) } else { list(keys) };
                format!("has_key(@{name}{suffix}, {key})")
            }
        }
    }

    pub fn value(&self, state: &State) -> Value {
        let value = match &self.kind {
            Kind::Number(n) => Value::Int(self.int(), *n),
            Kind::Text(text) => Value::Text((*text).to_owned()),
            Kind::Variable(name) => state.get(name),
            Kind::Unary(op, of) => {
                let n = of.value(state).bits();
                match *op {
                    "-" => self.int().value(n.wrapping_neg()),
                    "~" => self.int().value(!n),
                    _ => Value::Bool(n == 0),
                }
            }
            Kind::Binary("&&", a, b) => Value::Bool(a.value(state).is_true() && b.value(state).is_true()),
            Kind::Binary("||", a, b) => Value::Bool(a.value(state).is_true() || b.value(state).is_true()),
            Kind::Binary(op, a, b) => {
                let (first, second) = (a.value(state).bits(), b.value(state).bits());
                match self.ty {
                    Ty::Int(of) => of.value(binary(op, of, first, second)),
                    _ => Value::Bool(binary(op, compared(a, b), first, second) != 0),
                }
            }
            Kind::Same(same, a, b) => Value::Bool((a.value(state) == b.value(state)) == *same),
            Kind::Choice(_, parts) => parts[if parts[0].value(state).is_true() { 1 } else { 2 }].value(state),
            Kind::OrElse(a, b) => {
                let value = a.value(state);
                if value.is_true() { value } else { b.value(state) }
            }
            Kind::Larger(a, b) => {
                let (first, second) = (a.value(state), b.value(state));
                if binary(">", compared(a, b), first.bits(), second.bits()) != 0 { first } else { second }
            }
            Kind::Cast(of) => self.int().value(of.value(state).bits()),
            Kind::Call(name, args) => call(name, &args.iter().map(|arg| arg.value(state)).collect::<Vec<_>>()),
            Kind::Char(of, at) => {
                let (text, at) = (of.value(state), at.value(state).bits());
                let byte = text.text().as_bytes().get(at as usize).copied();
                Int::I8.value(byte.unwrap_or(0).into())
            }
            Kind::Tuple(items) => Value::Tuple(items.iter().map(|(name, of)| (*name, of.value(state))).collect()),
            Kind::Item(of, at) => match of.value(state) {
                Value::Tuple(mut items) => items.swap_remove(*at).1,
                value => unreachable!("{value:?} has no parts"),
            },
            Kind::Read(name, keys) => {
                let found = state.maps.get(name).and_then(|map| map.get(&key(keys, state)));
                found.cloned().unwrap_or(Value::Int(Int::I64, 0))
            }
            Kind::HasKey(name, keys) => {
                Value::Bool(state.maps.get(name).is_some_and(|map| map.contains_key(&key(keys, state))))
            }
        };
        // Both sides of a choice get the type of the whole.
        match (&self.ty, value) {
            (Ty::Int(int), Value::Int(_, n)) => Value::Int(*int, n),
            (_, value) => value,
        }
    }
}

/// The values of a key.
pub fn key(keys: &[Expr], state: &State) -> Vec<Value> {
    keys.iter().map(|key| key.value(state)).collect()
}

/// As what two numbers are compared.
fn compared(a: &Expr, b: &Expr) -> Int {
    match (a.is_literal(), b.is_literal()) {
        (false, true) => a.int(),
        (true, false) => b.int(),
        _ => a.int().with(b.int()),
    }
}

fn call(name: &str, args: &[Value]) -> Value {
    let number = |n: i64| Value::Int(Int::I64, n as u64);
    let text = |n: usize| args[n].text();
    match name {
        "strlen" => number(text(0).len() as i64),
        "strstr" => number(text(0).find(text(1)).map_or(-1, |at| at as i64)),
        "strcontains" => Value::Bool(text(0).contains(text(1))),
        "str_concat" => Value::Text(format!("{}{}", text(0), text(1))),
        "strncmp" => {
            let n = args[2].bits() as usize;
            let part = |n_th: usize| text(n_th).bytes().take(n).collect::<Vec<_>>();
            number((part(0) != part(1)).into())
        }
        _ => unreachable!("{name}"),
    }
}

/// A number that a variable holds: of any type, or what the script was given.
fn variable(rng: &mut Rng, scope: &Scope) -> Expr {
    let (name, int) = &scope.ints[rng.below(scope.ints.len())];
    Expr::variable(name, int.ty())
}

/// The key of a map of numbers: few, so that some are there.
pub fn map_key(rng: &mut Rng, scope: &Scope, name: &str) -> Vec<Expr> {
    let small = |rng: &mut Rng| {
        let few = new(Int::I64.ty(), Kind::Number(3));
        number(rng, scope, 1).cast(Int::I64).operation("&", few)
    };
    match name {
        "pair" => vec![small(rng), text(rng, scope)],
        "by_text" => vec![text(rng, scope)],
        _ => vec![small(rng)],
    }
}

/// A literal.
fn literal(rng: &mut Rng) -> Expr {
    let n = match rng.below(4) {
        0 => rng.below(4) as u64,
        1 => rng.below(128) as u64,
        2 => (1_u64 << rng.below(63)) - rng.below(2) as u64,
        _ => rng.number() >> (1 + rng.below(62)),
    };
    new(Int::I64.ty(), Kind::Number(n))
}

/// A number of any type, which is not known before the script runs.
pub fn number(rng: &mut Rng, scope: &Scope, depth: usize) -> Expr {
    if depth == 0 {
        return variable(rng, scope);
    }
    let some = |rng: &mut Rng| number(rng, scope, depth - 1);
    let boxed = |rng: &mut Rng| Box::new(number(rng, scope, depth - 1));
    match rng.below(34) {
        0..=17 => {
            let op = rng.of(&["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"]);
            let (a, mut b) = (some(rng), some(rng));
            if rng.one_in(3) {
                b = literal(rng);
            }
            if matches!(op, "<<" | ">>") {
                // What is shifted by more than the width is not said. A literal would be folded.
                let most = new(Int::I64.ty(), Kind::Number(63));
                let by = if b.is_literal() { variable(rng, scope) } else { b };
                return a.operation(op, by.operation("&", most));
            }
            let of = compared(&a, &b).widest();
            new(of.ty(), Kind::Binary(op, Box::new(a), Box::new(b)))
        }
        18 => new(Int::I64.ty(), Kind::Unary("-", boxed(rng))),
        19 => {
            let of = boxed(rng);
            new(of.int().widest().ty(), Kind::Unary("~", of))
        }
        20..=22 => some(rng).cast(rng.of(&Int::ALL)),
        23 => boolean(rng, scope, depth - 1).cast(rng.of(&Int::ALL)),
        24..=26 => {
            let (condition, a, b) = (boolean(rng, scope, depth - 1), some(rng), some(rng));
            let ty = a.int().joined(b.int()).ty();
            new(ty, Kind::Choice(rng.one_in(3), Box::new([condition, a, b])))
        }
        27 => {
            let (a, b) = (variable(rng, scope), some(rng));
            new(a.int().joined(b.int()).ty(), Kind::OrElse(Box::new(a), Box::new(b)))
        }
        28 => {
            let (a, b) = (variable(rng, scope), variable(rng, scope));
            new(a.int().joined(b.int()).ty(), Kind::Larger(Box::new(a), Box::new(b)))
        }
        29 => match rng.below(3) {
            0 => new(Int::I64.ty(), Kind::Call("strlen", vec![held(rng, scope)])).cast(Int::I64),
            1 => new(Int::I64.ty(), Kind::Call("strstr", vec![held(rng, scope), text(rng, scope)])).cast(Int::I64),
            _ => {
                let most = new(Int::I64.ty(), Kind::Number(3));
                let at = variable(rng, scope).operation("&", most);
                new(Int::I8.ty(), Kind::Char(Box::new(held(rng, scope)), Box::new(at)))
            }
        },
        30 | 31 if !scope.maps.is_empty() => {
            let name = rng.of(&scope.maps);
            new(Int::I64.ty(), Kind::Read(name, map_key(rng, scope, name)))
        }
        32 if !scope.tuples.is_empty() => part(rng, scope),
        _ => some(rng),
    }
}

/// A number of a tuple or record.
fn part(rng: &mut Rng, scope: &Scope) -> Expr {
    let (name, ty) = &scope.tuples[rng.below(scope.tuples.len())];
    let Ty::Tuple(items) = ty else { unreachable!("{ty:?}") };
    let numbers: Vec<usize> = (0..items.len()).filter(|at| matches!(items[*at].1, Ty::Int(_))).collect();
    if numbers.is_empty() {
        return variable(rng, scope);
    }
    let at = rng.of(&numbers);
    new(items[at].1.clone(), Kind::Item(Box::new(Expr::variable(name, ty.clone())), at))
}

/// A text in a variable.
fn held(rng: &mut Rng, scope: &Scope) -> Expr {
    Expr::variable(&scope.texts[rng.below(scope.texts.len())], Ty::Text)
}

/// A text: held, or a literal.
pub fn text(rng: &mut Rng, scope: &Scope) -> Expr {
    if rng.one_in(2) { held(rng, scope) } else { new(Ty::Text, Kind::Text(rng.of(&TEXTS))) }
}

/// A text that is made of others.
pub fn made_text(rng: &mut Rng, scope: &Scope) -> Expr {
    match rng.below(3) {
        0 => new(Ty::Text, Kind::Call("str_concat", vec![held(rng, scope), text(rng, scope)])),
        1 => {
            let parts = [boolean(rng, scope, 1), held(rng, scope), held(rng, scope)];
            new(Ty::Text, Kind::Choice(false, Box::new(parts)))
        }
        _ => text(rng, scope),
    }
}

/// A tuple, or a record.
pub fn tuple(rng: &mut Rng, scope: &Scope) -> Expr {
    let names = if rng.one_in(2) { PARTS } else { [""; 4] };
    let items: Vec<(&str, Expr)> = names[..2 + rng.below(3)]
        .iter()
        .map(|name| match rng.below(4) {
            0 => (*name, held(rng, scope)),
            1 => (*name, boolean(rng, scope, 1)),
            _ => (*name, number(rng, scope, 1)),
        })
        .collect();
    let ty = Ty::Tuple(items.iter().map(|(name, item)| (*name, item.ty.clone())).collect());
    new(ty, Kind::Tuple(items))
}

/// A condition.
pub fn boolean(rng: &mut Rng, scope: &Scope, depth: usize) -> Expr {
    let boxed = |rng: &mut Rng| Box::new(number(rng, scope, depth.saturating_sub(1)));
    let truth = |kind| new(Ty::Bool, kind);
    match rng.below(12) {
        0..=5 => {
            let op = rng.of(&["==", "!=", "<", "<=", ">", ">="]);
            let (a, b) = (boxed(rng), if rng.one_in(4) { Box::new(literal(rng)) } else { boxed(rng) });
            truth(Kind::Binary(op, a, b))
        }
        6 if depth > 0 => {
            let (a, b) = (boolean(rng, scope, depth - 1), boolean(rng, scope, depth - 1));
            truth(Kind::Binary(rng.of(&["&&", "||"]), Box::new(a), Box::new(b)))
        }
        // A number is a condition, too.
        7 => truth(Kind::Binary(rng.of(&["&&", "||"]), boxed(rng), boxed(rng))),
        8 => truth(Kind::Unary("!", boxed(rng))),
        9 => truth(Kind::Same(rng.one_in(2), Box::new(held(rng, scope)), Box::new(text(rng, scope)))),
        10 => match rng.below(2) {
            0 => truth(Kind::Call("strcontains", vec![held(rng, scope), text(rng, scope)])),
            _ => {
                let length = new(Int::I64.ty(), Kind::Number(1 + rng.below(6) as u64));
                let call = Kind::Call("strncmp", vec![held(rng, scope), text(rng, scope), length]);
                let none = new(Int::I64.ty(), Kind::Number(0));
                let same = Kind::Binary("==", Box::new(new(Int::I64.ty(), call)), Box::new(none));
                truth(same)
            }
        },
        _ if !scope.maps.is_empty() && rng.one_in(2) => {
            let name = rng.of(&scope.maps);
            truth(Kind::HasKey(name, map_key(rng, scope, name)))
        }
        _ if !scope.tuples.is_empty() => {
            let (name, ty) = &scope.tuples[rng.below(scope.tuples.len())];
            let of = || Box::new(Expr::variable(name, ty.clone()));
            truth(Kind::Same(rng.one_in(2), of(), of()))
        }
        _ => truth(Kind::Unary("!", boxed(rng))),
    }
}
