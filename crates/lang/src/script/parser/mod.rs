//! Words → syntax tree: blocks and statements.

mod advice;
mod branch;
mod cdef;
mod declarator;
mod directive;
mod expr;
mod external;
mod function;
mod header;
mod import;
mod macros;
mod option;
mod point;
mod stmt;

pub use header::is_known as is_known_header;
pub use import::{Import, imports};
pub use point::{KERNEL_KINDS, OWN_SIGNALS, period};

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::ast::{Block, Declared, DeclaredMap, ExprKind, Script, Setting};
use super::ctype::Definitions;
use super::diagnostic::{Diagnostic, Span};
use super::lexer::Lexer;
use super::token::{Token, TokenKind};

/// Nested expressions and statements at most.
const DEPTH: u32 = 100;

/// What a script is given.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Its arguments, which attach points may name.
    pub params: Vec<String>,
    /// Its options, without the dashes, and their values.
    pub options: Vec<(String, Option<String>)>,
    /// Settings that its `config` cannot change: names and values.
    pub environment: Vec<(String, String)>,
    /// Reads of numbers that fail are counted, as those of texts always are.
    pub count_reads: bool,
    /// Functions may be called that change the program.
    pub allow_unsafe: bool,
    /// Where in the source the files are that the script takes in, in the order in which they are
    /// read. They are behind its own text.
    pub parts: Vec<Range<usize>>,
    /// Which of these are headers of the system, made flat by [`super::c::Headers`].
    pub headers: Vec<Range<usize>>,
    /// The names of those that were included.
    pub included: Vec<String>,
    /// Nothing is run: probes of the kernel are attach points, too, and headers may be missing.
    pub only_read: bool,
    /// A process or a command is given: an attach point need not name its file.
    pub has_process: bool,
}

/// Parses a script. `params` are the arguments of its command line.
///
/// # Errors
/// The first mistake.
pub fn parse(source: &str, params: &[String]) -> Result<Script, Diagnostic> {
    parse_given(source, &Given { params: params.to_owned(), ..Given::default() })
}

/// The same with everything that it is given.
///
/// # Errors
/// The first mistake.
pub fn parse_given(source: &str, given: &Given) -> Result<Script, Diagnostic> {
    let mut script = Script {
        environment: given.environment.clone(),
        count_reads: given.count_reads,
        allow_unsafe: given.allow_unsafe,
        ..Script::default()
    };
    let own = given.parts.iter().map(|part| part.start).min().unwrap_or(source.len());
    let mut parser = Parser::new(&source[..own], given);
    for part in &given.parts {
        parser.source = &source[..part.end];
        parser.lexer = Lexer::new(parser.source);
        parser.lexer.seek(part.start);
        if given.headers.contains(part) {
            parser.header()?;
        } else {
            parser.script(&mut script, true)?;
        }
    }
    parser.source = &source[..own];
    parser.lexer = Lexer::new(parser.source);
    parser.script(&mut script, false)?;
    script.types = parser.types;
    script.options = parser.declared;
    Ok(script)
}

struct Parser<'s> {
    source: &'s str,
    lexer: Lexer<'s>,
    given: &'s Given,
    /// Options that it has asked for.
    declared: Vec<Declared>,
    ahead: VecDeque<Token>,
    /// The word that was taken last.
    last: Span,
    /// `#define NAME VALUE`: numbers and texts.
    defines: HashMap<String, ExprKind>,
    /// What was declared so far.
    types: Definitions,
    depth: u32,
    /// In a predicate, a slash is its end.
    no_slash: bool,
}

type Parsed<T> = Result<T, Diagnostic>;

impl<'s> Parser<'s> {
    fn new(source: &'s str, given: &'s Given) -> Parser<'s> {
        Parser {
            source,
            lexer: Lexer::new(source),
            given,
            declared: Vec::new(),
            ahead: VecDeque::new(),
            last: Span::default(),
            defines: HashMap::new(),
            types: Definitions::default(),
            depth: 0,
            no_slash: false,
        }
    }

    fn peek_at(&mut self, n: usize) -> Parsed<&Token> {
        while self.ahead.len() <= n {
            let token = self.lexer.token()?;
            self.ahead.push_back(token);
        }
        Ok(&self.ahead[n])
    }

    fn peek(&mut self) -> Parsed<&TokenKind> {
        Ok(&self.peek_at(0)?.kind)
    }

    fn next(&mut self) -> Parsed<Token> {
        self.peek_at(0)?;
        let end = Token { kind: TokenKind::End, span: self.last };
        let token = self.ahead.pop_front().unwrap_or(end);
        self.last = token.span;
        Ok(token)
    }

    fn is(&mut self, punct: &str) -> Parsed<bool> {
        Ok(matches!(self.peek()?, TokenKind::Punct(p) if *p == punct))
    }

    /// Takes the word if it is this.
    fn eat(&mut self, punct: &str) -> Parsed<bool> {
        let is = self.is(punct)?;
        if is {
            self.next()?;
        }
        Ok(is)
    }

    fn eat_word(&mut self, word: &str) -> Parsed<bool> {
        let is = matches!(self.peek()?, TokenKind::Ident(name) if name == word);
        if is {
            self.next()?;
        }
        Ok(is)
    }

    fn expect(&mut self, punct: &str) -> Parsed<()> {
        if self.eat(punct)? { Ok(()) } else { Err(self.unexpected(&format!(", expecting {punct}"))) }
    }

    fn unexpected(&mut self, expecting: &str) -> Diagnostic {
        match self.peek_at(0) {
            Ok(token) => {
                let message = format!("syntax error, unexpected {}{expecting}", token.kind.describe());
                let hint = advice::unexpected(&token.kind, expecting).map(str::to_owned);
                Diagnostic { hint, ..Diagnostic::error(token.span, message) }
            }
            Err(error) => error,
        }
    }

    /// Where the next word that was looked at begins: attach points are read from there.
    fn rewind(&mut self) {
        if let Some(first) = self.ahead.front() {
            self.lexer.seek(first.span.start);
        }
        self.ahead.clear();
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth >= DEPTH {
            return Err(Diagnostic::error(self.last, format!("more than {DEPTH} levels deep")));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    /// Reads a file to its end. `is_part`: the script has taken it in.
    fn script(&mut self, script: &mut Script, is_part: bool) -> Parsed<()> {
        self.ahead.clear();
        let blocks = script.blocks.len();
        loop {
            self.rewind();
            if self.directive()? {
                continue;
            }
            match self.peek()?.clone() {
                TokenKind::End if is_part => return Ok(()),
                TokenKind::End if script.blocks.is_empty() && script.functions.is_empty() => {
                    return Err(self
                        .unexpected("")
                        .hint("a script has a block: begin { … }, uprobe:PATH:FUNCTION { … }"));
                }
                TokenKind::End => return Ok(()),
                TokenKind::Ident(word) if word == "config" && is_part && self.is_config() => {
                    let error = Diagnostic::error(self.peek_at(0)?.span, "a file that is imported has no config block");
                    return Err(error.hint("the script itself has it"));
                }
                TokenKind::Ident(word) if word == "config" && script.blocks.len() == blocks => {
                    self.next()?;
                    self.expect("=")?;
                    self.config(&mut script.config)?;
                }
                TokenKind::Ident(word) if word == "config" && self.is_config() => {
                    let error = Diagnostic::error(self.peek_at(0)?.span, "syntax error, unexpected config");
                    return Err(error.hint("config = { … } stands before all blocks"));
                }
                TokenKind::Ident(word) if word == "macro" => {
                    let definition = self.macro_definition()?;
                    let twice = script.macros.iter().any(|known| {
                        known.name == definition.name
                            && known.params.len() == definition.params.len()
                            && known.params.iter().zip(&definition.params).all(|(a, b)| a.is_like(b))
                    });
                    if twice {
                        let message = format!("Redefinition of macro: {}", definition.name);
                        let error = Diagnostic::error(definition.span, message);
                        return Err(error.hint("macros of one name differ by the number or kinds of their parameters"));
                    }
                    script.macros.push(definition);
                }
                TokenKind::Ident(word) if matches!(&*word, "struct" | "union" | "enum" | "typedef") => {
                    self.definition()?;
                }
                TokenKind::Ident(word) if word == "fn" => {
                    let function = self.function()?;
                    if script.functions.iter().any(|known| known.name == function.name) {
                        let message = format!("Redefinition of function: {}", function.name);
                        return Err(Diagnostic::error(function.span, message));
                    }
                    script.functions.push(function);
                }
                TokenKind::Ident(word) if word == "import" => self.import()?,
                TokenKind::Ident(word) if word == "let" => {
                    let map = self.map_declaration()?;
                    script.maps.push(map);
                }
                _ => {
                    let name = self.probe_name()?;
                    let mut block = self.block()?;
                    block.points.iter_mut().for_each(|point| point.name.clone_from(&name));
                    script.blocks.push(block);
                }
            }
        }
    }

    /// Whether `= {` follows.
    fn is_config(&mut self) -> bool {
        matches!(self.peek_at(1), Ok(token) if token.kind == TokenKind::Punct("="))
            && matches!(self.peek_at(2), Ok(token) if token.kind == TokenKind::Punct("{"))
    }

    /// `let @name = kind(entries);`
    fn map_declaration(&mut self) -> Parsed<DeclaredMap> {
        let start = self.next()?.span;
        let TokenKind::Map(name) = self.peek()?.clone() else {
            let error = self.unexpected(", expecting map");
            return Err(match self.peek()? {
                TokenKind::Var(_) => error.hint("maps, as @name, are declared here; variables belong to a block"),
                _ => error,
            });
        };
        self.next()?;
        self.expect("=")?;
        let TokenKind::Ident(kind) = self.peek()?.clone() else {
            return Err(self.unexpected(", expecting a kind of map: hash, lruhash, percpuhash or percpulruhash"));
        };
        self.next()?;
        self.expect("(")?;
        let entries = match *self.peek()? {
            TokenKind::Int(entries) => entries,
            _ => return Err(self.unexpected(", expecting integer")),
        };
        self.next()?;
        self.expect(")")?;
        let span = start.to(self.last);
        self.eat(";")?;
        Ok(DeclaredMap { name, kind, entries, span })
    }

    /// `name =` before attach points.
    fn probe_name(&mut self) -> Parsed<Option<String>> {
        let TokenKind::Ident(name) = self.peek()?.clone() else { return Ok(None) };
        // An attach point may be followed by anything, so only `=` is looked for.
        let rest = self.ahead[0].span.end;
        if !self.source[rest..].trim_start().starts_with('=') {
            return Ok(None);
        }
        self.next()?;
        self.expect("=")?;
        Ok(Some(name))
    }

    fn config(&mut self, settings: &mut Vec<Setting>) -> Parsed<()> {
        self.expect("{")?;
        while !self.eat("}")? {
            let token = self.next()?;
            let TokenKind::Ident(name) = token.kind else {
                return Err(Diagnostic::error(token.span, "syntax error, expecting the name of a setting"));
            };
            self.expect("=")?;
            let value = self.next()?;
            let text = match value.kind {
                TokenKind::Int(value) => value.to_string(),
                TokenKind::Ident(value) => value,
                TokenKind::Str(value) => String::from_utf8_lossy(&value).into_owned(),
                _ => return Err(Diagnostic::error(value.span, "syntax error, expecting a value")),
            };
            settings.push(Setting { name, value: text, span: token.span.to(value.span) });
            if !self.eat(";")? && !self.is("}")? {
                return Err(self.unexpected(", expecting ; or }"));
            }
        }
        Ok(())
    }

    fn block(&mut self) -> Parsed<Block> {
        let mut points = vec![self.point()?];
        while self.eat(",")? {
            self.rewind();
            points.push(self.point()?);
        }
        let predicate = if self.eat("/")? {
            self.no_slash = true;
            let predicate = self.expr();
            self.no_slash = false;
            let predicate = predicate?;
            self.expect("/")?;
            Some(predicate)
        } else {
            None
        };
        if *self.peek()? == TokenKind::End && self.source[self.last.end..].trim_start().starts_with("//") {
            return Err(self.unexpected(", expecting {").hint("// begins a comment"));
        }
        let body = self.braces()?;
        Ok(Block { points, predicate, body })
    }
}
