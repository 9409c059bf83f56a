//! Golden plans: what `explain` prints for small pieces of assembly, as text files that a reviewer
//! reads (`tests/golden/*.plan`). `SIDESTEP_BLESS=1` writes the files anew.
//!
//! A file holds cases. A case is a title, the assembly of the function `f`, and the plan. The label
//! `at` is the address that is asked for, if there is one; else the entry is. The code lies at
//! 0x40001000, is not linked, and another function follows without padding.

mod elf;

use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;

use elf::{compile, compile_32};
use object::{Object, ObjectSection, ObjectSymbol};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::explain::{Returns, lines};
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::{Fixed, Index, Placement, Plan, Reason, Refusal, Room, exits, plan_exit, plan_in};

const TEXT: Va = Va(0x4000_1000);

/// An address space in which every address is free.
struct Empty;

impl Room for Empty {
    fn is_free(&self, _site: Va, _range: Range<Va>) -> Result<(), Reason> {
        Ok(())
    }

    fn claim(&mut self, _site: Va, _range: Range<Va>) {}

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let high = fixed.highs().next()?;
        let (low, ..) = fixed.low(high)?;
        Some(end.offset(i64::from(high) << 16 | i64::from(low)))
    }
}

#[test]
fn x86_64() {
    check("x86_64.plan", Isa::X64);
}

#[test]
fn x86_32() {
    check("x86_32.plan", Isa::X86);
}

/// Compares each case of a file, or writes the file.
fn check(name: &str, isa: Isa) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let file = fs::read_to_string(&path).expect("the golden plans");
    let (head, cases) = file.split_once("\n== ").expect("a case");
    let mut now = head.trim_end().to_owned() + "\n";
    for case in cases.split("\n== ") {
        let (title, rest) = case.split_once('\n').expect("a title");
        let source = rest.split_once("\n--").map_or(rest, |(source, _)| source).trim_end();
        let plan = explained(source, isa);
        write!(now, "\n== {title}\n{source}\n--\n{plan}\n").expect("text");
    }
    if std::env::var_os("SIDESTEP_BLESS").is_some() {
        fs::write(&path, &now).expect("the golden plans");
    }
    let same = now.trim_end() == file.trim_end() || std::env::var_os("SIDESTEP_BLESS").is_some();
    let differs = || now.lines().zip(file.lines()).find(|(now, was)| now != was);
    assert!(same, "{name}: {:?} differ; SIDESTEP_BLESS=1 writes the file anew", differs());
}

/// What `explain` prints for a function.
fn explained(source: &str, isa: Isa) -> String {
    let source = elf::function("f", source) + &elf::function("next", "mov $1,%eax\nret");
    let data = match isa {
        Isa::X86 => compile_32("a.s", &source, &["-c"]),
        _ => compile("a.s", &source, &["-c"]),
    };
    let file = object::File::parse(&*data).expect("an object file");
    let text = file.section_by_name(".text").and_then(|text| text.data().ok()).expect("code");
    let address = |name: &str| {
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name))?;
        Some((TEXT.plus(Len(symbol.address())), Len(symbol.size())))
    };
    let (f, len) = address("f").expect("f");
    let (next, next_len) = address("next").expect("next");
    let mut code = ObjectCode::new(isa);
    code.text = vec![Bytes { name: ".text", va: TEXT, data: text }];
    code.extents = vec![Extent { start: f, len }, Extent { start: next, len: next_len }];
    code.frames = vec![f];
    code.labels = vec![f, next];
    code.fixed = false;
    let index = Index::new(code);
    let asked = address("at").map_or(f, |(at, _)| at);
    match plan_in(&index, asked, &mut Empty, Placement::First) {
        Ok(plan) => lines(&plan, &returns(&index, &plan), true).join("\n"),
        Err(refusal) => format!("refused: {refusal}"),
    }
}

/// How the returns of a function are watched.
fn returns(index: &Index<'_>, plan: &Plan) -> Returns {
    let why = match exits(index, plan.asked) {
        Ok(found) => {
            let plans: Result<Vec<Plan>, Refusal> =
                found.all.into_iter().map(|exit| plan_exit(index, exit, false, Some(&mut Empty))).collect();
            match plans {
                Ok(exits) => return Returns::AtExits(exits),
                Err(refusal) => refusal.to_string(),
            }
        }
        Err(why) => why.to_string(),
    };
    match plan.returns {
        Ok(_) => Returns::ByAddress { why },
        Err(_) => Returns::Not { why },
    }
}
