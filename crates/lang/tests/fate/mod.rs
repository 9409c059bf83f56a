//! What becomes of any text: it is refused, where it is wrong, or becomes programs that the
//! verifier accepts.

use sidestep_bpf::verify::{Problem, Rules, verify};
use sidestep_lang::script::ast::Point;
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::ctype::{CType, Enum, Field, Layout, Record};
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::{Clock, lower};
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::program::{Convention, Parameter, Signature, Symbol};

/// A program with a function of many arguments.
struct Program;

impl sidestep_lang::script::program::Program for Program {
    fn signature(&mut self, _: &Point) -> Result<Signature, String> {
        let record = |name: &str, place| CType::Record(Record { name: name.into(), place });
        let float = CType::Float { bytes: 8 };
        let parameters = [
            ("a", CType::Char),
            ("p", CType::Pointer(Box::new(record("struct S", None)))),
            ("x", float),
            ("pair", record("struct pair", Some(1))),
            ("large", record("struct large", Some(2))),
        ];
        let parameter = |(name, ty): (&str, CType)| Parameter::new(name.to_owned(), ty);
        let parameters = parameters.map(parameter).to_vec();
        let kept = vec![true; parameters.len()];
        Ok(Signature {
            parameters,
            result: record("struct pair", Some(1)),
            result_in_memory: false,
            convention: Convention::C,
            kept,
        })
    }

    fn named(&mut self, _: &[Point], name: &str) -> Result<CType, String> {
        Err(format!("no {name}"))
    }

    fn layout(&mut self, place: u64) -> Result<Layout, String> {
        let long = CType::Int { bytes: 8, signed: true };
        let field = |name: &str, ty, bit| Field { name: name.to_owned(), ty, bit, width: None };
        Ok(match place {
            1 => Layout {
                size: 16,
                align: 8,
                fields: vec![field("a", CType::Float { bytes: 4 }, 0), field("b", long, 64)],
                ..Layout::default()
            },
            _ => Layout {
                size: 40,
                align: 8,
                fields: vec![field("w", CType::Array(Box::new(long), 5), 0)],
                ..Layout::default()
            },
        })
    }

    fn symbol(&mut self, _: &Point, name: &str) -> Result<Symbol, String> {
        if name.is_empty() { Err("no symbol".to_owned()) } else { Ok(Symbol { size: name.len() as u64 }) }
    }

    fn goroutines(&mut self, _: &Point) -> Result<(), String> {
        Ok(())
    }

    fn constant(&mut self, _: &[Point], _: &str) -> Option<(std::sync::Arc<Enum>, u64)> {
        None
    }
}

/// What became of a script.
#[derive(PartialEq, Eq, Debug)]
pub enum Fate {
    Wrong(String),
    TooLarge,
    Accepted,
}

/// Everything that happens to a script before it runs.
pub fn compile(source: &str) -> Fate {
    let params = ["7".to_owned(), "text".to_owned()];
    let options = vec![("n".to_owned(), Some("5".to_owned())), ("flag".to_owned(), None)];
    let given = Given { params: params.to_vec(), options, ..Given::default() };
    let script = match parse_given(source, &given) {
        Ok(script) => script,
        Err(error) => return Fate::Wrong(rendered(&[error], source)),
    };
    let checked = match check_with(&script, &params, &mut Program) {
        Ok((checked, warnings)) => {
            rendered(&warnings, source);
            checked
        }
        Err(errors) => return Fate::Wrong(rendered(&errors, source)),
    };
    let Ok(compiled) = lower(&checked, Clock { start: 1, since_1970: 1 << 60, ..Clock::default() }) else {
        return Fate::TooLarge;
    };
    for program in &compiled.programs {
        // Loops of chance may have too many paths.
        let rules = Rules {
            maps: &compiled.maps,
            context_size: 240,
            context_writable: 168..176,
            max_steps: 30_000,
            allow_unsafe: true,
            ..Rules::default()
        };
        if let Err(error) = verify(program, &rules) {
            if matches!(error.problem, Problem::TooComplex(_) | Problem::TooManyPaths) {
                return Fate::TooLarge;
            }
            panic!("{source}\n{error}");
        }
    }
    Fate::Accepted
}

/// The messages; each is about a part of the text.
fn rendered(found: &[Diagnostic], source: &str) -> String {
    for diagnostic in found {
        let span = diagnostic.span;
        assert!(
            source.get(span.start..span.end).is_some(),
            "{span:?} of {} bytes: {source:?}\n{diagnostic:?}",
            source.len()
        );
        assert!(!diagnostic.message.is_empty(), "{source:?}");
    }
    found.iter().map(|diagnostic| diagnostic.render("fuzz", source)).collect()
}
