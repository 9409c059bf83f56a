//! Names and types: syntax tree → [`Checked`].

mod abi;
mod address;
mod advice;
mod aggregate;
mod argument;
mod assign;
mod call;
mod cast;
mod change;
mod counted;
mod declared;
mod each;
mod entry;
mod expr;
mod failure;
mod field;
mod function;
mod ident;
mod keys;
mod kind;
mod known;
mod literal;
mod macros;
mod meaning;
mod memory;
mod net;
mod own;
mod read;
mod say;
mod series;
mod signal;
mod stmt;
mod straight;
mod text;
mod tuple;
mod typed;
mod view;

use std::collections::HashMap;

use aggregate::readable;
pub(super) use literal::fold;
use memory::Types;

use super::ast::{self, Provider, Script};
use super::checked::{Action, Block, Checked, Map, Stack, Value, ValueKind};
use super::config::{NoSetting, SETTINGS, outdated};
use super::diagnostic::{Diagnostic, Severity, Span, Unknown};
use super::program::{Nothing, Program};
use super::types::{Content, Type};

/// Whether it is the name of a function that has a value.
pub(super) fn has_value(name: &str) -> bool {
    advice::is_known(name) && !call::ACTIONS.contains(&name)
}

/// Whether the language has a value of this name, which no parameter of a macro may hide.
pub(super) fn is_builtin(name: &str) -> bool {
    matches!(name, "pid" | "tid" | "args" | "nsecs" | "ustack")
}

/// Rounds after which the types of all must be known, beside one for each map: one that is used
/// before it is assigned gets its type from another, which may be used before it is assigned.
const ROUNDS: usize = 10;

/// Checks a script. `params` are the arguments of its command line.
///
/// # Errors
/// All mistakes. What is returned beside a script are warnings.
pub fn check(script: &Script, params: &[String]) -> Result<(Checked, Vec<Diagnostic>), Vec<Diagnostic>> {
    check_with(script, params, &mut Nothing)
}

/// The same; `program` tells what the programs that are probed know of their types.
///
/// # Errors
/// All mistakes. What is returned beside a script are warnings.
pub fn check_with(
    script: &Script,
    params: &[String],
    program: &mut dyn Program,
) -> Result<(Checked, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut known = Known::default();
    let mut types = Types::new(program, &script.types);
    for round in 0.. {
        let mut checker = Checker::new(params, types, known.clone(), false);
        checker.script(script);
        let vars = std::mem::take(&mut checker.found_vars);
        let now = Known { maps: checker.maps, own: checker.own, vars };
        types = checker.types;
        let settled = now == known;
        known = now;
        if settled || round >= ROUNDS + known.maps.len() + known.own.len() {
            break;
        }
    }
    let mut checker = Checker::new(params, types, known, true);
    checker.script(script);
    checker.finish()
}

/// What a round has found.
#[derive(Clone, Default, PartialEq, Debug)]
struct Known {
    maps: Vec<MapState>,
    /// Names and types of `self.x`.
    own: Vec<(String, Type)>,
    /// Types of the variables of each block, and whether they get nothing but literals.
    vars: Vec<Vec<(Type, bool)>>,
}

/// What is known of a map so far.
#[derive(Clone, PartialEq, Debug)]
struct MapState {
    name: String,
    keys: Option<Vec<Type>>,
    content: Option<Content>,
    /// All keys so far, and all values, are literals that are not negative: they take any sign.
    free_keys: Vec<bool>,
    free: bool,
    /// Programs read it: then what they count is kept in one place for all threads.
    read: bool,
    /// See [`Map::declared`].
    declared: Option<(u32, bool)>,
}

struct Checker<'a> {
    params: &'a [String],
    macros: &'a [ast::Macro],
    /// How many macros were put in so far.
    expanded: usize,
    /// Where the macros are called that the expression is in, the outermost first.
    calls: Vec<Span>,
    types: Types<'a>,
    out: Checked,
    maps: Vec<MapState>,
    /// Names and types of `self.x`.
    own: Vec<(String, Type)>,
    /// Types of the variables of each block, as the round before has found them: there is room for
    /// all that is assigned.
    before: Vec<Vec<(Type, bool)>>,
    /// The same of this round.
    found_vars: Vec<Vec<(Type, bool)>>,
    found: Vec<Diagnostic>,
    /// Maps and variables that a wrong statement would have assigned.
    unassigned: Vec<Unknown>,
    /// Types are known: what is not is an error.
    last: bool,
    // Of the block:
    points: &'a [ast::Point],
    vars: Vec<Type>,
    /// For each variable whether it gets nothing but literals that are not negative.
    free: Vec<bool>,
    scopes: Vec<HashMap<String, usize>>,
    /// Types of the variables that were declared with one.
    typed: HashMap<usize, Type>,
    /// The function that the statement is in.
    returns: Option<function::Returns>,
    /// Only the type of an expression is wanted.
    measuring: bool,
    /// Loops around the statement.
    loops: usize,
    /// Rounds of all `unroll` around it.
    rounds: u64,
    /// Rounds of the loops of the block that are in its own code.
    inline_rounds: u64,
    /// Conditions around it that are known not to hold.
    dead: usize,
    /// The block uses `self`.
    uses_own: bool,
    /// It assigns to `self`.
    sets_own: bool,
    /// See [`Block::result_in`].
    result_in: Option<usize>,
    /// It asks for the latency of calls.
    uses_latency: bool,
    /// See [`Block::owners`].
    owners: Vec<Option<usize>>,
    /// The innermost loop over a map that the statement is in, and how many there are in the block.
    walk: usize,
    walks: usize,
}

/// A mistake was found, and noted: what it is part of is left out.
struct Wrong;

type Checking<T> = Result<T, Wrong>;

impl<'a> Checker<'a> {
    fn new(params: &'a [String], types: Types<'a>, known: Known, last: bool) -> Checker<'a> {
        Checker {
            params,
            macros: &[],
            expanded: 0,
            calls: Vec::new(),
            types,
            out: Checked::default(),
            maps: known.maps,
            own: known.own,
            before: known.vars,
            found_vars: Vec::new(),
            found: Vec::new(),
            unassigned: Vec::new(),
            last,
            points: &[],
            vars: Vec::new(),
            free: Vec::new(),
            scopes: Vec::new(),
            typed: HashMap::new(),
            returns: None,
            measuring: false,
            loops: 0,
            rounds: 1,
            inline_rounds: 0,
            dead: 0,
            uses_own: false,
            sets_own: false,
            result_in: None,
            uses_latency: false,
            owners: Vec::new(),
            walk: 0,
            walks: 0,
        }
    }

    fn error<T>(&mut self, span: Span, message: impl Into<String>) -> Checking<T> {
        self.found.push(Diagnostic::error(span, message));
        Err(Wrong)
    }

    fn error_with<T>(&mut self, span: Span, message: impl Into<String>, hint: impl Into<String>) -> Checking<T> {
        self.found.push(Diagnostic::error(span, message).hint(hint));
        Err(Wrong)
    }

    fn advised<T>(&mut self, span: Span, message: impl Into<String>, hint: Option<String>) -> Checking<T> {
        self.found.push(Diagnostic { hint, ..Diagnostic::error(span, message) });
        Err(Wrong)
    }

    /// Notes a warning once: `unroll` repeats its body.
    fn warn(&mut self, span: Span, message: impl Into<String>) {
        let warning = Diagnostic::warning(span, message);
        if !self.found.contains(&warning) {
            self.found.push(warning);
        }
    }

    fn no_such<T>(&mut self, span: Span, name: Unknown, hint: Option<String>) -> Checking<T> {
        self.found.push(Diagnostic { hint, ..Diagnostic::unknown(span, name) });
        Err(Wrong)
    }

    fn script(&mut self, script: &'a Script) {
        self.macros = &script.macros;
        for setting in &script.config {
            let _ = self.setting(setting);
        }
        for (name, value) in &script.environment {
            // What is no setting here was said, or means nothing.
            let _ = self.out.config.set(name, value);
        }
        self.out.config.count_reads = script.count_reads;
        self.out.config.allow_unsafe = script.allow_unsafe;
        for map in &script.maps {
            let _ = self.declared_map(map, &script.maps);
        }
        self.tests_have_names(script);
        for block in &script.blocks {
            self.block(block);
        }
        for function in &script.functions {
            let _ = self.function(function);
        }
        for map in &script.maps {
            let _ = self.fits_declaration(map);
        }
    }

    /// Tests and benchmarks are told apart by their names.
    fn tests_have_names(&mut self, script: &Script) {
        let is_named = |point: &&ast::Point| matches!(point.provider, Provider::Test | Provider::Bench);
        let points: Vec<&ast::Point> = script.blocks.iter().flat_map(|block| &block.points).filter(is_named).collect();
        for (number, point) in points.iter().enumerate() {
            let is_same = |known: &&ast::Point| known.provider == point.provider && known.fields == point.fields;
            if points[..number].iter().any(is_same) {
                let (kind, name) = (point.provider.name().to_uppercase(), &point.fields[0].text);
                let message = format!("\"{name}\" was used as the name for more than one {kind} probe");
                self.found.push(Diagnostic::error(point.span, message));
            }
        }
    }

    fn setting(&mut self, setting: &ast::Setting) -> Checking<()> {
        if let Some(warning) = outdated(&setting.name) {
            self.warn(setting.span, warning);
        }
        match self.out.config.set(&setting.name, &setting.value) {
            Ok(()) => Ok(()),
            Err(NoSetting::Unknown) => self.unknown_setting(&setting.name, setting.span),
            Err(NoSetting::Environment) => {
                self.error(setting.span, format!("{}: can only be set as an environment variable", setting.name))
            }
            Err(NoSetting::Value(values)) => {
                let (name, value) = (&setting.name, &setting.value);
                if name.to_ascii_lowercase().trim_start_matches("bpftrace_") == "license" {
                    let message = format!("Invalid value for license. Found: {value}. Valid values: {values}");
                    return self.error(setting.span, message);
                }
                let message = format!("Invalid value for {name}: {value}");
                self.error_with(setting.span, message, format!("expected {values}"))
            }
        }
    }

    fn unknown_setting<T>(&mut self, name: &str, span: Span) -> Checking<T> {
        let names = SETTINGS.map(|setting| setting.name).join(", ");
        self.error_with(span, format!("{name}: not a known configuration option"), format!("there are {names}"))
    }

    fn block(&mut self, block: &'a ast::Block) {
        self.points = &block.points;
        self.vars = Vec::new();
        self.free = Vec::new();
        self.scopes = vec![HashMap::new()];
        self.typed.clear();
        self.inline_rounds = 0;
        let predicate = block.predicate.as_ref().map(|predicate| {
            let value = self.expr(predicate)?;
            self.condition(value, predicate.span, "predicate")
        });
        let predicate_vars = !self.vars.is_empty();
        let body = self.stmts(&block.body);
        let predicate = predicate.and_then(Result::ok);
        let vars = std::mem::take(&mut self.vars);
        self.found_vars.push(vars.iter().cloned().zip(std::mem::take(&mut self.free)).collect());
        let owners = std::mem::take(&mut self.owners);
        self.walks = 0;
        self.out.blocks.push(Block {
            points: block.points.clone(),
            predicate,
            predicate_vars,
            body,
            vars,
            uses_own: std::mem::take(&mut self.uses_own),
            sets_own: std::mem::take(&mut self.sets_own),
            result_in: self.result_in.take(),
            uses_latency: std::mem::take(&mut self.uses_latency),
            owners,
        });
    }

    /// A number that says yes or no.
    fn condition(&mut self, value: Value, span: Span, of: &str) -> Checking<Value> {
        match &value.ty {
            ty if ty.is_int() => Ok(value),
            Type::Text(_) => {
                let empty = Value { ty: Type::Text(0), kind: ValueKind::Text(Vec::new()) };
                let same = ValueKind::Same(Box::new(value), Box::new(empty), None);
                let same = Value { ty: Type::INT, kind: same };
                Ok(Value { ty: Type::INT, kind: ValueKind::Not(Box::new(same)) })
            }
            ty => {
                let message = match of {
                    "predicate" => format!("Invalid type for predicate: {}", ty.kind()),
                    of => format!("Invalid condition in {of}: {}", ty.kind()),
                };
                self.error(span, message)
            }
        }
    }

    fn action(&mut self, action: Action) -> usize {
        match self.out.actions.iter().position(|known| *known == action) {
            Some(index) => index,
            None => {
                self.out.actions.push(action);
                self.out.actions.len() - 1
            }
        }
    }

    fn stack(&mut self, stack: Stack) -> usize {
        match self.out.stacks.iter().position(|known| *known == stack) {
            Some(index) => index,
            None => {
                self.out.stacks.push(stack);
                self.out.stacks.len() - 1
            }
        }
    }

    /// Whether all of the block's points are of these kinds.
    fn only_at(&self, providers: &[Provider]) -> bool {
        self.points.iter().all(|point| providers.contains(&point.provider))
    }

    fn map(&mut self, name: &str) -> usize {
        match self.maps.iter().position(|map| map.name == name) {
            Some(index) => index,
            None => {
                self.maps.push(MapState {
                    name: name.to_owned(),
                    keys: None,
                    content: None,
                    free_keys: Vec::new(),
                    free: false,
                    read: false,
                    declared: None,
                });
                self.maps.len() - 1
            }
        }
    }

    /// A map or variable that a wrong statement would have assigned is undefined for that reason:
    /// only the reason is said.
    fn leave_out_consequences(&mut self) {
        let unassigned = &self.unassigned;
        let follows = |at: &Diagnostic| at.unknown.as_ref().is_some_and(|name| unassigned.contains(name));
        if self.found.iter().any(|at| at.severity == Severity::Error && !follows(at)) {
            self.found.retain(|at| !follows(at));
        }
    }

    fn finish(mut self) -> Result<(Checked, Vec<Diagnostic>), Vec<Diagnostic>> {
        self.leave_out_consequences();
        if self.found.iter().any(|found| found.severity == Severity::Error) {
            return Err(self.found);
        }
        self.out.own = self.own.into_iter().map(|(_, ty)| ty).collect();
        self.out.maps = self
            .maps
            .into_iter()
            .map(|map| Map {
                name: format!("@{}", map.name),
                keys: map.keys.unwrap_or_default(),
                content: match map.content {
                    // One number is enough for them.
                    Some(content @ (Content::Count | Content::Sum { .. })) if map.read => {
                        readable(&content).map_or(content, Content::Value)
                    }
                    content => content.unwrap_or(Content::Value(Type::INT)),
                },
                shared: map.read,
                declared: map.declared,
            })
            .collect();
        self.out.word = self.types.word();
        self.out.layouts = self.types.known();
        Ok((self.out, self.found))
    }
}

/// `no arguments`, `one argument`, `3 arguments`
fn count_of_arguments(n: usize) -> String {
    match n {
        0 => "no arguments".to_owned(),
        1 => "one argument".to_owned(),
        n => format!("{n} arguments"),
    }
}
