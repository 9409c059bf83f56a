//! Arguments that the compiler has moved: those behind them are not guessed.

use std::sync::Arc;

use sidestep_lang::script::ast::Point;
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::ctype::{CType, Enum, Field, Layout, Record};
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::program::{Argument, Convention, Parameter, Passed, Program, Signature, Symbol};

const LONG: CType = CType::Int { bytes: 8, signed: true };

/// A program with the function `f(struct pair p, long n)`, and where `p` is.
struct Pair {
    passed: Passed,
    parts: Vec<(std::ops::Range<u64>, Option<Argument>)>,
}

impl Program for Pair {
    fn signature(&mut self, _: &Point) -> Result<Signature, String> {
        let record = CType::Record(Record { name: "struct pair".into(), place: Some(0) });
        let pair = Parameter {
            passed: self.passed.clone(),
            parts: self.parts.clone(),
            ..Parameter::new("p".to_owned(), record)
        };
        Ok(Signature {
            parameters: vec![pair, Parameter::new("n".to_owned(), LONG)],
            result: CType::Void,
            result_in_memory: false,
            convention: Convention::C,
            kept: vec![true, true],
        })
    }

    fn named(&mut self, _: &[Point], name: &str) -> Result<CType, String> {
        Err(format!("no {name}"))
    }

    fn layout(&mut self, _: u64) -> Result<Layout, String> {
        let field = |name: &str, bit| Field { name: name.to_owned(), ty: LONG, bit, width: None };
        Ok(Layout { size: 16, align: 8, fields: vec![field("a", 0), field("b", 64)], ..Layout::default() })
    }

    fn symbol(&mut self, _: &Point, name: &str) -> Result<Symbol, String> {
        Err(format!("no {name}"))
    }

    fn goroutines(&mut self, _: &Point) -> Result<(), String> {
        Ok(())
    }

    fn constant(&mut self, _: &[Point], _: &str) -> Option<(Arc<Enum>, u64)> {
        None
    }
}

/// What is wrong with a script that reads `n`.
fn wrong(passed: Passed, parts: Vec<(std::ops::Range<u64>, Option<Argument>)>) -> String {
    let script = parse_given("uprobe:/bin/x:f { print(args.n); }", &Given::default()).expect("it is a script");
    let errors = check_with(&script, &[], &mut Pair { passed, parts }).err().unwrap_or_default();
    errors.into_iter().map(|error| error.message).collect()
}

const MOVED: &str = "the compiler has left out the argument n, or moved it";

#[test]
fn a_half_in_the_register_of_the_other_half_was_at_its_place() {
    let pieces = |first, second| Passed::Pieces(vec![(Argument::Integer(first), 8), (Argument::Integer(second), 8)]);
    assert_eq!(wrong(pieces(0, 1), Vec::new()), "");
    assert_eq!(wrong(pieces(1, 0), Vec::new()), MOVED);
    assert_eq!(wrong(pieces(0, 2), Vec::new()), MOVED);
    // Of the second half alone, the place is known.
    let half = |at| vec![(8..16, Some(Argument::Integer(at)))];
    assert_eq!(wrong(Passed::Convention, half(1)), "");
    assert_eq!(wrong(Passed::Convention, half(0)), MOVED);
    // What is in the middle of a register is not at the beginning of it.
    assert_eq!(wrong(Passed::Convention, vec![(4..8, Some(Argument::Integer(0)))]), MOVED);
}
