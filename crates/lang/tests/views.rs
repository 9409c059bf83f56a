//! Records of programs that have texts in them: what becomes of them, also if the debug
//! information lies.

use std::sync::Arc;

use sidestep_lang::script::ast::Point;
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::ctype::{CType, Enum, Field, Language, Layout, Record};
use sidestep_lang::script::parser::{Given, parse_given};
use sidestep_lang::script::program::{Convention, Parameter, Program, Signature, Symbol};

/// A program with one function, which takes the first of these records.
struct Records(Vec<(&'static str, Layout)>);

impl Records {
    fn record(&self, place: usize) -> CType {
        CType::Record(Record { name: self.0[place].0.into(), place: Some(place as u64) })
    }
}

impl Program for Records {
    fn signature(&mut self, _: &Point) -> Result<Signature, String> {
        let ty = CType::Pointer(Box::new(self.record(0)));
        let parameters = vec![Parameter::new("a".to_owned(), ty)];
        Ok(Signature {
            parameters,
            result: CType::Void,
            result_in_memory: false,
            convention: Convention::C,
            kept: vec![true],
        })
    }

    fn named(&mut self, _: &[Point], name: &str) -> Result<CType, String> {
        Err(format!("no {name}"))
    }

    fn layout(&mut self, place: u64) -> Result<Layout, String> {
        Ok(self.0[place as usize].1.clone())
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

fn record(name: &str, place: u64) -> CType {
    CType::Record(Record { name: name.into(), place: Some(place) })
}

const LONG: CType = CType::Int { bytes: 8, signed: false };

/// Members of a size of 8 bytes, one after the other.
fn layout(members: Vec<(&str, CType)>) -> Layout {
    let field = |(at, (name, ty)): (usize, (&str, CType))| Field {
        name: name.to_owned(),
        ty,
        bit: 64 * at as u64,
        width: None,
    };
    let size = 8 * members.len() as u64;
    Layout { size, align: 8, fields: members.into_iter().enumerate().map(field).collect(), ..Layout::default() }
}

/// A text of Rust.
fn text() -> Layout {
    let byte = CType::Int { bytes: 1, signed: false };
    let layout = layout(vec![("data_ptr", CType::Pointer(Box::new(byte))), ("length", LONG)]);
    Layout { language: Some(Language::Rust), ..layout }
}

/// The checked script, or what is wrong with it.
fn checked(records: Vec<(&'static str, Layout)>) -> Result<String, String> {
    let script = parse_given("uprobe:/bin/x:f { print(*args.a); }", &Given::default()).expect("it is a script");
    match check_with(&script, &[], &mut Records(records)) {
        Ok((checked, _)) => Ok(format!("{checked:?}")),
        Err(errors) => Err(errors.into_iter().map(|error| error.message).collect()),
    }
}

#[test]
fn records_within_themselves_are_refused() {
    let own = || record("struct A", 0);
    let members = vec![("a", own()), ("b", own()), ("c", own()), ("s", record("struct &str", 1))];
    let wrong = checked(vec![("struct A", layout(members)), ("struct &str", text())]);
    assert_eq!(wrong, Err("'struct A' contains itself".to_owned()));
}

#[test]
fn records_of_records_are_counted_once() {
    // Each twice in the one before: 2^40 paths.
    let names: Vec<&'static str> = (0..40).map(|n| &*format!("struct S{n}").leak()).collect();
    for last in ["struct &str", "struct none"] {
        let mut records = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let next = names.get(n + 1).unwrap_or(&last);
            let inner = || record(next, n as u64 + 1);
            records.push((*name, layout(vec![("", inner()), ("", inner())])));
        }
        records.push((last, text()));
        // Each record is counted once, however often the others have it.
        let wrong = "'struct S0' has more than 65536 members, with those of its members";
        assert_eq!(checked(records), Err(wrong.to_owned()), "{last}");
    }
}

#[test]
fn members_of_what_has_no_name_are_members() {
    let derived = layout(vec![
        ("", record("struct base", 1)),
        ("", record("union (anonymous)", 2)),
        ("name", record("struct &str", 3)),
    ]);
    let base = layout(vec![("id", LONG)]);
    let mut either = layout(vec![("number", LONG), ("other", LONG)]);
    either.size = 8;
    either.fields[1].bit = 0;
    let records = vec![
        ("struct derived", derived),
        ("struct base", base),
        ("union (anonymous)", either),
        ("struct &str", text()),
    ];
    let found = checked(records).unwrap();
    assert!(found.contains(r#"["id", "number", "other", "name"]"#), "{found}");
}

#[test]
fn texts_are_those_of_their_language() {
    let is_text = |name, language| {
        let of = layout(vec![("str", CType::Pointer(Box::new(CType::Char))), ("len", LONG)]);
        checked(vec![(name, Layout { language, ..of })]).unwrap().contains("CountedText")
    };
    for name in ["struct string", "struct main.name"] {
        assert!(is_text(name, Some(Language::Go)), "{name}");
        assert!(!is_text(name, Some(Language::Other)), "{name}");
        assert!(!is_text(name, Some(Language::Cpp)), "{name}");
    }
    // Nobody says what it was written in: it may be C.
    assert!(!is_text("struct string", None));
}
