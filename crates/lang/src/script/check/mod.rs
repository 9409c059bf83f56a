//! Names and types: syntax tree → [`Checked`].

mod aggregate;
mod call;
mod expr;
mod stmt;

use std::collections::HashMap;

use aggregate::readable;

use super::ast::{self, Provider, Script};
use super::checked::{Action, Block, Checked, Map, Stack, Value, ValueKind};
use super::config::NoSetting;
use super::diagnostic::{Diagnostic, Severity, Span};
use super::types::{Content, Type};

/// Rounds after which the types of maps must be known: those that are used before they are assigned need more than one.
const ROUNDS: usize = 10;

/// Checks a script. `params` are the arguments of its command line.
///
/// # Errors
/// All mistakes. What is returned beside a script are warnings.
pub fn check(script: &Script, params: &[String]) -> Result<(Checked, Vec<Diagnostic>), Vec<Diagnostic>> {
    let mut maps: Vec<MapState> = Vec::new();
    for _ in 0..ROUNDS {
        let mut checker = Checker::new(params, maps.clone(), false);
        checker.script(script);
        let settled = checker.maps == maps;
        maps = checker.maps;
        if settled {
            break;
        }
    }
    let mut checker = Checker::new(params, maps, true);
    checker.script(script);
    checker.finish()
}

/// What is known of a map so far.
#[derive(Clone, PartialEq, Debug)]
struct MapState {
    name: String,
    keys: Option<Vec<Type>>,
    content: Option<Content>,
    /// Programs read it: then what they count is kept in one place for all threads.
    read: bool,
}

struct Checker<'a> {
    params: &'a [String],
    out: Checked,
    maps: Vec<MapState>,
    found: Vec<Diagnostic>,
    /// Types are known: what is not is an error.
    last: bool,
    // Of the block:
    points: &'a [ast::Point],
    vars: Vec<Type>,
    scopes: Vec<HashMap<String, usize>>,
    /// Loops around the statement.
    loops: usize,
}

/// A mistake was found, and noted: what it is part of is left out.
struct Wrong;

type Checking<T> = Result<T, Wrong>;

impl<'a> Checker<'a> {
    fn new(params: &'a [String], maps: Vec<MapState>, last: bool) -> Checker<'a> {
        Checker {
            params,
            out: Checked::default(),
            maps,
            found: Vec::new(),
            last,
            points: &[],
            vars: Vec::new(),
            scopes: Vec::new(),
            loops: 0,
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

    fn unsupported<T>(&mut self, span: Span, what: &str) -> Checking<T> {
        self.error(span, format!("{what} is not supported yet"))
    }

    fn script(&mut self, script: &'a Script) {
        self.out.config = script.base;
        for setting in &script.config {
            let _ = self.setting(setting);
        }
        for block in &script.blocks {
            self.block(block);
        }
    }

    fn setting(&mut self, setting: &ast::Setting) -> Checking<()> {
        match self.out.config.set(&setting.name, &setting.value) {
            Ok(()) => Ok(()),
            Err(NoSetting::Unknown) => {
                self.error(setting.span, format!("Unrecognized config variable: {}", setting.name))
            }
            Err(NoSetting::Value(values)) => {
                let message = format!("Invalid value for {}: {}", setting.name, setting.value);
                self.error_with(setting.span, message, format!("expected {values}"))
            }
        }
    }

    fn block(&mut self, block: &'a ast::Block) {
        self.points = &block.points;
        self.vars = Vec::new();
        self.scopes = vec![HashMap::new()];
        let predicate = block.predicate.as_ref().map(|predicate| {
            let value = self.expr(predicate)?;
            self.condition(value, predicate.span, "predicate")
        });
        let body = self.stmts(&block.body);
        let predicate = predicate.and_then(Result::ok);
        let vars = std::mem::take(&mut self.vars);
        self.out.blocks.push(Block { points: block.points.clone(), predicate, body, vars });
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
                self.maps.push(MapState { name: name.to_owned(), keys: None, content: None, read: false });
                self.maps.len() - 1
            }
        }
    }

    fn finish(mut self) -> Result<(Checked, Vec<Diagnostic>), Vec<Diagnostic>> {
        if self.found.iter().any(|found| found.severity == Severity::Error) {
            return Err(self.found);
        }
        self.out.maps = self
            .maps
            .into_iter()
            .map(|map| Map {
                name: format!("@{}", map.name),
                keys: map.keys.unwrap_or_default(),
                content: match map.content {
                    Some(content) if map.read => readable(&content).map_or(content, Content::Value),
                    content => content.unwrap_or(Content::Value(Type::INT)),
                },
            })
            .collect();
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
