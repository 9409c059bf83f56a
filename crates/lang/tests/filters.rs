//! Filters: what they take, what is wrong with those that are refused, and when they are decided.

mod machine;
mod tables;

use machine::{Target, compiled, printed, run};
use proptest::prelude::*;
use sidestep_bpf::{Insn, Reg};
use sidestep_lang::uprobe_events::{ErrorKind, Event, Filter};
use tables::{FILTERS, LINE, REFUSED_FILTERS};

fn target() -> Target {
    Target::new()
        .set("di", 0x1_0000_0040)
        .set("si", -3i64 as u64)
        .set("dx", 0x1f0)
        .set("r8", 0x7000)
        .set("r9", 0x8000)
        .set("r10", 0x7010)
        .write(0x7000, &[0xfe, 0xff])
        .words(0x7010, &[0x8000, 1])
        .write(0x8000, b"libc.so\0\x04\x03\x02\x01")
}

#[test]
fn filters_take_what_they_say() {
    for (filter, taken) in FILTERS {
        assert_eq!(printed(LINE, filter, &target()).is_some(), *taken, "{filter}");
    }
}

#[test]
fn errors_point_to_where_the_kernel_points() {
    let event = Event::parse(LINE).unwrap();
    for (marked, kind) in REFUSED_FILTERS {
        let position = marked.find('^').unwrap();
        let text = marked.replacen('^', "", 1);
        let error = Filter::parse(&text, &event).expect_err(&text);
        assert_eq!((error.position, error.kind), (position, *kind), "{}", error.render(&text));
    }
}

#[test]
fn an_error_may_be_behind_the_end() {
    let text = "CPU & CPUS{0-1";
    let error = Filter::parse(text, &Event::parse(LINE).unwrap()).unwrap_err();
    assert_eq!((error.position, error.kind), (text.len() + 1, ErrorKind::MissingBraceClose));
    let caret = " ".repeat(11 + text.len() + 1);
    assert_eq!(error.render(text), format!("error: Missing '}}'\n  Command: {text}\n{caret}^\n"));
}

#[test]
fn strings_and_patterns_have_limits() {
    let event = Event::parse(LINE).unwrap();
    let parse = |text: String| Filter::parse(&text, &event).map_err(|e| e.kind);
    assert!(parse(format!("name == \"{}\"", "x".repeat(255))).is_ok());
    assert_eq!(parse(format!("name == \"{}\"", "x".repeat(256))), Err(ErrorKind::OperandTooLong));
    assert!(parse(format!("name ~ \"*{}*\"", "x".repeat(63))).is_ok());
    assert_eq!(parse(format!("name ~ \"*{}\"", "x".repeat(64))), Err(ErrorKind::PatternTooLong));
    let nested = |n: usize| format!("{}size == 1{}", "(".repeat(n), ")".repeat(n));
    assert!(parse(nested(64)).is_ok());
    assert_eq!(parse(nested(65)), Err(ErrorKind::TooDeep));
    assert_eq!(parse(nested(100_000)), Err(ErrorKind::TooDeep));
}

#[test]
fn sets_of_cpus_are_sets() {
    let cases = [
        ("CPU & CPUS{0-3}", true),
        ("CPU & CPUS{0-2,4-7}", false),
        ("CPU & CPUS{0,2-3,8191}", true),
        ("CPU == CPUS{3}", true),
        ("CPU == CPUS{3,3}", true),
        ("CPU != CPUS{3}", false),
        ("CPU == CPUS{2-3}", false),
        ("CPU != CPUS{2-3}", true),
        ("bits & CPUS{4-5} && c & CPUS{240}", true),
        ("n & CPUS{0-8191}", false),
        ("c & CPUS{0-5,200-400,1000}", true),
        ("c & CPUS{0-5,256-400}", false),
    ];
    for (filter, taken) in cases {
        assert_eq!(printed(LINE, filter, &target()).is_some(), taken, "{filter}");
    }
}

#[test]
fn a_filter_on_a_register_decides_before_anything_else() {
    // The filter, and how many instructions it may take to refuse.
    let cases = [
        ("size > 0x1000000000", 5),
        ("size <= 64", 4),
        ("c == 1", 4),
        ("n >= 0", 4),
        ("size <= 64 && name ~ \"*x*\"", 4),
        ("mem == 1 && n >= 0", 4),
        ("(name == \"x\" || mem == 1) && (n >= 0 || c == 1)", 6),
        ("t == \"no\"", 2),
        ("sixty == 0", 2),
    ];
    for (filter, most) in cases {
        let compiled = compiled(LINE, filter);
        let outcome = run(&compiled, &target());
        assert_eq!((outcome.record, outcome.calls, outcome.stores), (None, vec![], 0), "{filter}");
        assert!(outcome.budget <= most, "{filter}: {} instructions", outcome.budget);
    }
    // Nothing but loads of the context, compares and jumps, until r6 is set.
    let program = compiled(LINE, "size <= 64 && (c == 1 || bits & 3)").program;
    let early =
        program.iter().map(|insn| insn.unwrap().1).take_while(|insn| !matches!(insn, Insn::Alu { dst: Reg::R6, .. }));
    for insn in early {
        assert!(
            match insn {
                Insn::Load { base, .. } => base == Reg::R1,
                Insn::Alu { dst, .. } => dst == Reg::R0 || dst == Reg::R2,
                Insn::Branch { .. } | Insn::Goto { .. } | Insn::Exit => true,
                _ => false,
            },
            "{insn}"
        );
    }
}

#[test]
fn what_memory_decides_is_discarded() {
    let outcome = run(&compiled(LINE, "mem == 5 && size > 1"), &target());
    assert_eq!((outcome.record, outcome.calls.last()), (None, Some(&133)));
}

#[test]
fn a_string_in_unmapped_memory_is_empty_to_filters() {
    let target = target().set("r9", 0x66_0000);
    for (filter, taken) in [("name == ''", true), ("name ~ '*'", true), ("name ~ '?*'", false), ("name != 'x'", true)] {
        assert_eq!(printed(LINE, filter, &target).is_some(), taken, "{filter}");
    }
}

/// A filter as a tree, to be written down and to be computed without the compiler.
#[derive(Clone, Debug)]
enum Tree {
    Number { field: usize, op: &'static str, value: i64 },
    Text { op: &'static str, text: String },
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
    Not(Box<Tree>),
}

/// Fields by type: in registers, then in memory.
const TYPES: [&str; 8] = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"];
const OPS: [&str; 7] = ["==", "!=", "<", "<=", ">", ">=", "&"];

fn field_name(field: usize) -> String {
    format!("{}{}", if field < 8 { "r" } else { "m" }, TYPES[field % 8])
}

/// The value of a field whose word is this, and whether it is signed.
fn value_of(field: usize, word: u64) -> i128 {
    match TYPES[field % 8] {
        "u8" => i128::from(word as u8),
        "s8" => i128::from(word as i8),
        "u16" => i128::from(word as u16),
        "s16" => i128::from(word as i16),
        "u32" => i128::from(word as u32),
        "s32" => i128::from(word as i32),
        "u64" => i128::from(word),
        _ => i128::from(word as i64),
    }
}

/// `*` and `?`, by trying everything.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], text) => text.is_empty(),
        ([b'*', rest @ ..], text) => (0..=text.len()).any(|n| glob(rest, &text[n..])),
        ([b'?', rest @ ..], [_, text @ ..]) => glob(rest, text),
        ([p, rest @ ..], [t, text @ ..]) => p == t && glob(rest, text),
        (_, []) => false,
    }
}

impl Tree {
    fn text(&self) -> String {
        match self {
            Tree::Number { field, op, value } => {
                let value = if field % 2 == 0 { (*value as u64).to_string() } else { value.to_string() };
                format!("{} {op} {value}", field_name(*field))
            }
            Tree::Text { op, text } => format!("name {op} \"{text}\""),
            Tree::And(a, b) => format!("({} && {})", a.text(), b.text()),
            Tree::Or(a, b) => format!("({} || {})", a.text(), b.text()),
            Tree::Not(a) => format!("!({})", a.text()),
        }
    }

    fn holds(&self, words: &[u64; 2], name: &str) -> bool {
        match self {
            Tree::Number { field, op, value } => {
                let a = value_of(*field, words[field / 8]);
                let b = value_of(*field, *value as u64);
                match *op {
                    "==" => a == b,
                    "!=" => a != b,
                    "<" => a < b,
                    "<=" => a <= b,
                    ">" => a > b,
                    ">=" => a >= b,
                    _ => a & b != 0,
                }
            }
            Tree::Text { op: "==", text } => name == text,
            Tree::Text { op: "!=", text } => name != text,
            Tree::Text { text, .. } => match text.strip_prefix('!') {
                Some(text) => !glob(text.as_bytes(), name.as_bytes()),
                None => glob(text.as_bytes(), name.as_bytes()),
            },
            Tree::And(a, b) => a.holds(words, name) && b.holds(words, name),
            Tree::Or(a, b) => a.holds(words, name) || b.holds(words, name),
            Tree::Not(a) => !a.holds(words, name),
        }
    }
}

/// Numbers that meet each other and the ends of types.
fn number() -> impl Strategy<Value = i64> {
    prop_oneof![
        prop::sample::select(vec![0, 1, -1, 127, 128, -128, 255, 256, 32767, 65535, -32768, i64::MAX, i64::MIN]),
        prop::sample::select(vec![i64::from(i32::MAX), i64::from(i32::MIN), 1 << 31, 1 << 32, u32::MAX.into()]),
        -3i64..4,
        any::<i64>(),
    ]
}

fn tree() -> impl Strategy<Value = Tree> {
    let number = (0usize..16, prop::sample::select(OPS.to_vec()), number())
        .prop_map(|(field, op, value)| Tree::Number { field, op, value });
    let text = ("[ab]{0,3}", prop::sample::select(vec!["==", "!="])).prop_map(|(text, op)| Tree::Text { op, text });
    let glob = "!?[ab*?]{0,6}".prop_map(|text| Tree::Text { op: "~", text });
    prop_oneof![4 => number, 1 => text, 1 => glob].prop_recursive(4, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::And(a.into(), b.into())),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| Tree::Or(a.into(), b.into())),
            inner.prop_map(|a| Tree::Not(a.into())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn filters_are_what_a_naive_evaluator_says(
        tree in tree(),
        words in prop::collection::vec((number(), number(), "[ab]{0,5}"), 1..6),
    ) {
        let registers: String = TYPES.iter().map(|ty| format!(" r{ty}=%di:{ty}")).collect();
        let memory: String = TYPES.iter().map(|ty| format!(" m{ty}=+0(%si):{ty}")).collect();
        let compiled = compiled(&format!("p:ev /x/y:1{registers}{memory} name=+8(%si):string"), &tree.text());
        for (register, memory, name) in words {
            let words = [register as u64, memory as u64];
            let target = Target::new().set("di", words[0]).set("si", 0x7000).words(0x7000, &words[1..]);
            let target = target.write(0x7008, name.as_bytes()).write(0x7008 + name.len() as u64, b"\0");
            let taken = run(&compiled, &target).record.is_some();
            prop_assert_eq!(taken, tree.holds(&words, &name), "{} of {:x?} {:?}", tree.text(), words, name);
        }
    }
}
