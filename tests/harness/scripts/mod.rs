//! Random scripts that the checker must accept, and what they must print.
//!
//! A number makes a script. The model evaluates the same script in Rust by the rules of the
//! language: a program, the interpreter and the tool's own blocks are not only compared with each
//! other.

mod expression;
mod statement;
mod value;

use std::fmt::Write;

use crate::random::Rng;
use expression::Scope;
use statement::{Statement, Writer};
use value::{Int, State, Ty, Value};

/// Where a block runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// In the tool.
    Begin,
    /// In the target, at `named("alpha", 0)` of `tests/targets/script.c`.
    Probe,
}

/// The text and the number that the function gets.
const PASSED: (&str, u64) = ("alpha", 0);

/// What the blocks call.
const MACROS: &str = "macro larger(a, b) { a > b ? a : b }\nmacro bump($v, n) { $v += n; }\n";

/// A random script.
pub struct Script {
    inputs: Vec<(Int, u64)>,
    statements: Vec<Statement>,
}

impl Script {
    /// The same for the same number.
    pub fn new(seed: u64) -> Script {
        let mut rng = Rng::new(seed);
        let inputs = Int::ALL.map(|int| (int, interesting(&mut rng))).to_vec();
        let mut scope = Scope::new(&inputs);
        let statements = statement::body(&mut rng, &mut scope);
        Script { inputs, statements }
    }

    /// A block with the script's statements. Its maps have names that end as it says.
    fn block(&self, at: At) -> String {
        let (head, text, number, suffix) = match at {
            At::Begin => ("begin", format!("\"{}\"", PASSED.0), PASSED.1.to_string(), "_b"),
            At::Probe => ("u:TARGET:named", "str(arg0)".to_owned(), "arg1".to_owned(), "_p"),
        };
        let mut block = format!("{head} {{\n$text = {text}; $zero = (uint64){number};\n");
        for (int, bits) in &self.inputs {
            let (name, ty) = (int.variable(), int.name());
            let _ = writeln!(block, "let ${name} : {ty} = ({ty})($zero ^ {bits:#x});");
        }
        let mut writer = Writer { text: block, suffix };
        self.statements.iter().for_each(|statement| statement.write(&mut writer));
        writer.text + "}\n"
    }

    /// The source, with `TARGET` for the path of the program.
    pub fn source(&self) -> String {
        format!("{MACROS}{}{}", self.block(At::Begin), self.block(At::Probe))
    }

    /// What each of the two blocks prints.
    pub fn printed(&self) -> String {
        let mut state = State::default();
        state.set("text", Value::Text(PASSED.0.to_owned()));
        state.set("zero", Value::Int(Int::U64, PASSED.1));
        for (int, bits) in &self.inputs {
            state.set(int.variable(), int.value(PASSED.1 ^ bits));
        }
        for statement in &self.statements {
            statement.run(&mut state);
        }
        state.printed
    }
}

/// A number at which something may go wrong.
fn interesting(rng: &mut Rng) -> u64 {
    let near = |rng: &mut Rng| (rng.below(5) as u64).wrapping_sub(2);
    match rng.below(6) {
        0 => near(rng),
        1 => (1_u64 << rng.below(64)).wrapping_add(near(rng)),
        2 => rng.number() >> rng.below(64),
        3 => (rng.below(200) as u64).wrapping_sub(100),
        4 => rng.of(&[0x80, 0x8000, 0x8000_0000, 1 << 63, 0x7f7f_7f7f_7f7f_7f7f]),
        _ => rng.number(),
    }
}

impl Int {
    fn ty(self) -> Ty {
        Ty::Int(self)
    }
}
