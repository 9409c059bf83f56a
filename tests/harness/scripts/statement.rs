//! Random statements: their text, and what they do.

use std::fmt::Write;

use super::expression::{self, Expr, Scope, key};
use super::value::{Flow, Int, State, Value, binary};
use crate::random::Rng;

/// Where the text goes.
pub struct Writer {
    pub text: String,
    /// What names of maps end with.
    pub suffix: &'static str,
}

#[derive(Debug)]
pub enum Statement {
    /// `print((…))` of several.
    Print(Vec<Expr>),
    /// `printf` with conversions.
    Printf(Vec<(&'static str, Expr)>),
    /// A variable, the type that it is declared with, and its value.
    Let(String, Option<Int>, Expr),
    /// `$x = …` of a variable of that type.
    Set(String, Option<Int>, Expr),
    /// `$x op= …`
    Update(String, Int, &'static str, Expr),
    /// `print($x++)` and the like: whether up, and whether behind.
    Step(String, Int, bool, bool),
    /// `bump($x, n)`
    Bump(String, Expr),
    If(Expr, Vec<Statement>, Vec<Statement>),
    Loop(Loop, Vec<Statement>),
    /// `if (…) { break; }` or `continue`.
    Leave(Expr, Flow),
    MapSet(&'static str, Vec<Expr>, Expr),
    MapUpdate(&'static str, Vec<Expr>, &'static str, Expr),
    Delete(&'static str, Vec<Expr>),
    /// `@name[…] = function(…)`
    Gather(Gather, Vec<Expr>, Expr),
    /// Prints what was gathered.
    Gathered(Gather, Vec<Expr>),
}

/// How often a body runs, and the variable that counts.
#[derive(Clone, Debug)]
pub enum Loop {
    Unroll(u64),
    While(String, u64),
    For(String, From, u64),
}

/// Where a loop over numbers begins.
#[derive(Clone, Debug)]
pub enum From {
    Number(u64),
    /// The lower three bits of what is only known when it runs: there may be no round at all.
    Low(Expr),
}

/// A map with a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gather {
    Count,
    Sum,
    Least,
    Most,
    Average,
    /// Printed at the end alone.
    Hist,
    Linear,
}

impl Gather {
    const ALL: [Gather; 7] =
        [Gather::Count, Gather::Sum, Gather::Least, Gather::Most, Gather::Average, Gather::Hist, Gather::Linear];

    fn name(self) -> &'static str {
        match self {
            Gather::Count => "count",
            Gather::Sum => "sum",
            Gather::Least => "min",
            Gather::Most => "max",
            Gather::Average => "avg",
            Gather::Hist => "hist",
            Gather::Linear => "lhist",
        }
    }
}

/// Assignments that calculate.
const UPDATES: [&str; 8] = ["+", "-", "*", "/", "%", "&", "|", "^"];

/// The statements of a script.
pub fn body(rng: &mut Rng, scope: &mut Scope) -> Vec<Statement> {
    let mut all = Vec::new();
    // All maps have their types before something reads them.
    for name in ["by_number", "pair", "by_text"] {
        let keys = expression::map_key(rng, scope, name);
        all.push(Statement::MapSet(name, keys, expression::number(rng, scope, 2).cast(Int::I64)));
        scope.maps.push(name);
    }
    for gather in Gather::ALL {
        all.push(gathers(rng, scope, gather));
    }
    for _ in 0..25 {
        statement(rng, scope, 0, &mut all);
    }
    all
}

fn gathers(rng: &mut Rng, scope: &Scope, gather: Gather) -> Statement {
    let keys = expression::map_key(rng, scope, gather.name());
    Statement::Gather(gather, keys, expression::number(rng, scope, 2).cast(Int::I64))
}

/// A block in a scope of its own.
fn block(rng: &mut Rng, scope: &mut Scope, depth: usize, count: usize) -> Vec<Statement> {
    let known = (scope.ints.len(), scope.texts.len(), scope.tuples.len());
    let mut all = Vec::new();
    for _ in 0..1 + rng.below(count) {
        statement(rng, scope, depth, &mut all);
    }
    scope.ints.truncate(known.0);
    scope.texts.truncate(known.1);
    scope.tuples.truncate(known.2);
    all
}

fn statement(rng: &mut Rng, scope: &mut Scope, depth: usize, all: &mut Vec<Statement>) {
    let some = |rng: &mut Rng, scope: &Scope| expression::number(rng, scope, 3);
    let map = |rng: &mut Rng, scope: &Scope| {
        let name = rng.of(&scope.maps);
        (name, expression::map_key(rng, scope, name))
    };
    all.push(match rng.below(30) {
        0..=6 => Statement::Print((0..1 + rng.below(4)).map(|_| any(rng, scope)).collect()),
        7..=9 => Statement::Printf((0..1 + rng.below(5)).map(|_| conversion(rng, scope)).collect()),
        10 | 11 => {
            let (name, int) = (scope.new_name(), rng.of(&Int::ALL));
            let value = some(rng, scope);
            scope.ints.push((name.clone(), int));
            Statement::Let(name, Some(int), value)
        }
        12 | 13 => return grown(rng, scope, all),
        14 => {
            let (name, value) = (scope.new_name(), expression::made_text(rng, scope));
            scope.texts.push(name.clone());
            Statement::Let(name, None, value)
        }
        15 => {
            let (name, value) = (scope.new_name(), expression::tuple(rng, scope));
            scope.tuples.push((name.clone(), value.ty.clone()));
            Statement::Let(name, None, value)
        }
        16 | 17 => {
            let int = rng.of(&Int::ALL);
            let value = some(rng, scope);
            Statement::Update(int.variable(), int, rng.of(&UPDATES), value)
        }
        18 => {
            let int = rng.of(&Int::ALL);
            Statement::Set(int.variable(), Some(int), some(rng, scope))
        }
        19 => {
            let int = rng.of(&Int::ALL);
            Statement::Step(int.variable(), int, rng.one_in(2), rng.one_in(2))
        }
        20 => Statement::Bump(Int::I64.variable(), some(rng, scope)),
        21 | 22 if depth < 3 => {
            let condition = expression::boolean(rng, scope, 2);
            let then = block(rng, scope, depth + 1, 3);
            let otherwise = if rng.one_in(2) { block(rng, scope, depth + 1, 3) } else { Vec::new() };
            Statement::If(condition, then, otherwise)
        }
        23 | 24 if depth < 2 => loops(rng, scope, depth),
        25 => {
            let (name, keys) = map(rng, scope);
            Statement::MapSet(name, keys, some(rng, scope).cast(Int::I64))
        }
        26 => {
            let (name, keys) = map(rng, scope);
            Statement::MapUpdate(name, keys, rng.of(&UPDATES), some(rng, scope).cast(Int::I64))
        }
        27 => {
            let (name, keys) = map(rng, scope);
            Statement::Delete(name, keys)
        }
        28 => {
            let gather = rng.of(&Gather::ALL);
            gathers(rng, scope, gather)
        }
        _ => {
            let gather = rng.of(&Gather::ALL[..5]);
            Statement::Gathered(gather, expression::map_key(rng, scope, gather.name()))
        }
    });
}

/// A variable that has the type of all that it is assigned.
fn grown(rng: &mut Rng, scope: &mut Scope, all: &mut Vec<Statement>) {
    let (a, b, name) = (rng.of(&Int::ALL), rng.of(&Int::ALL), scope.new_name());
    let (first, second) = (expression::number(rng, scope, 2).cast(a), expression::number(rng, scope, 2).cast(b));
    let int = a.joined(b);
    let of = || Expr::variable(&name, int.ty());
    all.push(Statement::Let(name.clone(), None, first));
    all.push(Statement::Print(vec![of()]));
    all.push(Statement::Set(name.clone(), Some(int), second));
    scope.ints.push((name, int));
}

/// A loop, in which something may end a round or all of them.
fn loops(rng: &mut Rng, scope: &mut Scope, depth: usize) -> Statement {
    let rounds = 1 + rng.below(4) as u64;
    let name = scope.new_name();
    let form = match rng.below(3) {
        0 => Loop::Unroll(rounds),
        1 => Loop::While(name.clone(), rounds),
        _ if rng.one_in(2) => Loop::For(name.clone(), From::Low(expression::number(rng, scope, 1)), 4 + rounds),
        _ => {
            let from = rng.below(20) as u64;
            Loop::For(name.clone(), From::Number(from), from + rounds)
        }
    };
    let known = scope.ints.len();
    // The body sees the number.
    if let Loop::For(name, ..) = &form {
        scope.ints.push((name.clone(), Int::I64));
    }
    let mut body = block(rng, scope, depth + 1, 4);
    scope.ints.truncate(known);
    // Nothing leaves the rounds of `unroll`, which are no loop.
    if rng.one_in(2) && !matches!(form, Loop::Unroll(_)) {
        let condition = expression::boolean(rng, scope, 1);
        body.insert(rng.below(body.len()), Statement::Leave(condition, rng.of(&[Flow::Break, Flow::Continue])));
    }
    Statement::Loop(form, body)
}

/// A value of any type.
fn any(rng: &mut Rng, scope: &Scope) -> Expr {
    match rng.below(8) {
        0 => expression::boolean(rng, scope, 3),
        1 => expression::text(rng, scope),
        2 => expression::tuple(rng, scope),
        _ => expression::number(rng, scope, 4),
    }
}

/// A conversion of printf, and what it prints.
fn conversion(rng: &mut Rng, scope: &Scope) -> (&'static str, Expr) {
    if rng.one_in(4) {
        return (rng.of(&["%s", "%9s", "%-9s"]), expression::text(rng, scope));
    }
    let of = ["%d", "%u", "%x", "%X", "%o", "%ld", "%lu", "%lx", "%lld", "%hd", "%hhu", "%9d", "%-22ld", "%016lx"];
    (rng.of(&of), expression::number(rng, scope, 3))
}

/// What a conversion prints.
fn converted(conversion: &str, value: &Value) -> String {
    let (body, kind) = conversion[1..].split_at(conversion.len() - 2);
    let flags_end = body.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(body.len());
    let (width, length) = body.split_at(flags_end);
    let bytes = match length {
        "hh" => 8,
        "h" => 16,
        "" => 32,
        _ => 64,
    };
    let shown = match (kind, value) {
        ("s", value) => value.shown(),
        (kind, value) => {
            let n = value.bits() << (64 - bytes);
            let (signed, n) = (n as i64 >> (64 - bytes), n >> (64 - bytes));
            match kind {
                "d" => signed.to_string(),
                "u" => n.to_string(),
                "x" => format!("{n:x}"),
                "X" => format!("{n:X}"),
                _ => format!("{n:o}"),
            }
        }
    };
    match (width.strip_prefix('-'), width.strip_prefix('0')) {
        (Some(width), _) => format!("{shown:<0$}", width.parse().unwrap_or(0)),
        (_, Some(width)) => format!("{shown:0>0$}", width.parse().unwrap_or(0)),
        _ => format!("{shown:>0$}", width.parse().unwrap_or(0)),
    }
}

impl Statement {
    pub fn write(&self, to: &mut Writer) {
        let suffix = to.suffix;
        let of = |expr: &Expr| expr.write(suffix);
        let list = |all: &[Expr]| all.iter().map(of).collect::<Vec<_>>().join(", ");
        let map = |name: &str, keys: &[Expr]| format!("@{name}{suffix}[{}]", list(keys));
        let line = match self {
            Statement::Print(all) if all.len() == 1 => format!("print({});", list(all)),
            Statement::Print(all) => format!("print(({}));", list(all)),
            Statement::Printf(all) => {
                let format: Vec<&str> = all.iter().map(|(conversion, _)| *conversion).collect();
                let values: Vec<String> = all.iter().map(|(_, value)| of(value)).collect();
                format!("printf(\"{}\\n\", {});", format.join("|"), values.join(", "))
            }
            Statement::Let(name, Some(int), value) => format!("let ${name} : {} = {};", int.name(), of(value)),
            Statement::Let(name, None, value) | Statement::Set(name, _, value) => format!("${name} = {};", of(value)),
            Statement::Update(name, _, op, value) => format!("${name} {op}= {};", of(value)),
            Statement::Step(name, _, up, post) => {
                let step = if *up { "++" } else { "--" };
                if *post { format!("print(${name}{step});") } else { format!("print({step}${name});") }
            }
            Statement::Bump(name, value) => format!("bump(${name}, {});", of(value)),
            Statement::If(condition, then, otherwise) => {
                let _ = writeln!(to.text, "if ({}) {{", of(condition));
                then.iter().for_each(|statement| statement.write(to));
                if !otherwise.is_empty() {
                    to.text += "} else {\n";
                    otherwise.iter().for_each(|statement| statement.write(to));
                }
                "}".to_owned()
            }
            Statement::Loop(form, body) => {
                match form {
                    Loop::Unroll(n) => _ = writeln!(to.text, "unroll({n}) {{"),
                    Loop::While(name, n) => {
                        _ = writeln!(to.text, "${name} = 0; while (${name} < {n}) {{\n${name}++;");
                    }
                    Loop::For(name, From::Number(from), end) => {
                        _ = writeln!(to.text, "for ${name} : {from}..{end} {{");
                    }
                    Loop::For(name, From::Low(from), end) => {
                        _ = writeln!(to.text, "for ${name} : ({} & 7)..{end} {{", of(from));
                    }
                }
                body.iter().for_each(|statement| statement.write(to));
                "}".to_owned()
            }
            Statement::Leave(condition, flow) => {
                let word = if *flow == Flow::Break { "break" } else { "continue" };
                format!("if ({}) {{ {word}; }}", of(condition))
            }
            Statement::MapSet(name, keys, value) => format!("{} = {};", map(name, keys), of(value)),
            Statement::MapUpdate(name, keys, op, value) => format!("{} {op}= {};", map(name, keys), of(value)),
            Statement::Delete(name, keys) => {
                let key = if keys.len() > 1 { format!("({})", list(keys)) } else { list(keys) };
                format!("delete(@{name}{suffix}, {key});")
            }
            Statement::Gather(gather, keys, value) => {
                let call = match gather {
                    Gather::Count => "count()".to_owned(),
                    Gather::Linear => format!("lhist({}, -100, 100, 10)", of(value)),
                    gather => format!("{}({})", gather.name(), of(value)),
                };
                format!("{} = {call};", map(gather.name(), keys))
            }
            Statement::Gathered(gather, keys) => format!("print((int64){});", map(gather.name(), keys)),
        };
        to.text += &line;
        to.text.push('\n');
    }

    pub fn run(&self, state: &mut State) -> Flow {
        match self {
            Statement::Print(all) if all.len() == 1 => {
                let shown = all[0].value(state).shown();
                let _ = writeln!(state.printed, "{shown}");
            }
            Statement::Print(all) => {
                let all: Vec<_> = all.iter().map(|expr| ("", expr.value(state))).collect();
                let _ = writeln!(state.printed, "{}", Value::Tuple(all).shown());
            }
            Statement::Printf(all) => {
                let all: Vec<_> = all.iter().map(|(of, expr)| converted(of, &expr.value(state))).collect();
                let _ = writeln!(state.printed, "{}", all.join("|"));
            }
            Statement::Let(name, int, value) | Statement::Set(name, int, value) => {
                let value = value.value(state);
                state.set(name, int.map_or(value.clone(), |int| int.value(value.bits())));
            }
            Statement::Update(name, int, op, value) => {
                let new = Expr::variable(name, int.ty()).operation(op, value.clone());
                let new = new.value(state);
                state.set(name, int.value(new.bits()));
            }
            Statement::Step(name, int, up, post) => {
                let old = state.get(name).bits();
                let new = if *up { old.wrapping_add(1) } else { old.wrapping_sub(1) };
                state.set(name, int.value(new));
                let shown = int.widest().value(if *post { old } else { new }).shown();
                let _ = writeln!(state.printed, "{shown}");
            }
            Statement::Bump(name, value) => {
                let new = state.get(name).bits().wrapping_add(value.value(state).bits());
                state.set(name, Int::I64.value(new));
            }
            Statement::If(condition, then, otherwise) => {
                let chosen = if condition.value(state).is_true() { then } else { otherwise };
                return run(chosen, state);
            }
            Statement::Loop(form, body) => {
                let rounds = match form {
                    Loop::Unroll(n) | Loop::While(_, n) => 0..*n,
                    Loop::For(_, From::Number(from), end) => *from..*end,
                    Loop::For(_, From::Low(from), end) => (from.value(state).bits() & 7)..*end,
                };
                for n in rounds {
                    match form {
                        Loop::Unroll(_) => {}
                        Loop::While(name, _) => state.set(name, Value::Int(Int::I64, n + 1)),
                        Loop::For(name, ..) => state.set(name, Value::Int(Int::I64, n)),
                    }
                    if run(body, state) == Flow::Break {
                        break;
                    }
                }
            }
            Statement::Leave(condition, flow) => {
                if condition.value(state).is_true() {
                    return *flow;
                }
            }
            Statement::MapSet(name, keys, value) => {
                let (key, value) = (key(keys, state), value.value(state));
                state.maps.entry(name).or_default().insert(key, value);
            }
            Statement::MapUpdate(name, keys, op, value) => {
                let (key, value) = (key(keys, state), value.value(state).bits());
                let map = state.maps.entry(name).or_default();
                let old = map.get(&key).map_or(0, Value::bits);
                map.insert(key, Value::Int(Int::I64, binary(op, Int::I64, old, value)));
            }
            Statement::Delete(name, keys) => {
                let key = key(keys, state);
                state.maps.entry(name).or_default().remove(&key);
            }
            Statement::Gather(gather, keys, value) => {
                let (key, n) = (key(keys, state), value.value(state).bits());
                let sum = state.sums.entry((gather.name(), key)).or_default();
                sum.count += 1;
                sum.total = sum.total.wrapping_add(n);
                sum.least = Some(sum.least.map_or(n as i64, |least| least.min(n as i64)));
                sum.most = Some(sum.most.map_or(n as i64, |most| most.max(n as i64)));
            }
            Statement::Gathered(gather, keys) => {
                let sum = state.sums.get(&(gather.name(), key(keys, state))).cloned().unwrap_or_default();
                let n = match gather {
                    Gather::Count => sum.count as i64,
                    Gather::Sum => sum.total as i64,
                    Gather::Least => sum.least.unwrap_or(0),
                    Gather::Most => sum.most.unwrap_or(0),
                    _ => (sum.total as i64).checked_div(sum.count as i64).unwrap_or(0),
                };
                let _ = writeln!(state.printed, "{n}");
            }
        }
        Flow::Next
    }
}

/// Runs statements up to one that leaves them.
fn run(all: &[Statement], state: &mut State) -> Flow {
    for statement in all {
        let flow = statement.run(state);
        if flow != Flow::Next {
            return flow;
        }
    }
    Flow::Next
}
