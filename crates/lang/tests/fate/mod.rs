//! What becomes of any text: it is refused, where it is wrong, or becomes programs that the verifier accepts.

use sidestep_bpf::verify::{Problem, Rules, verify};
use sidestep_lang::script::check::check;
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::lower;
use sidestep_lang::script::parser::{Given, parse_given};

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
    let checked = match check(&script, &params) {
        Ok((checked, warnings)) => {
            rendered(&warnings, source);
            checked
        }
        Err(errors) => return Fate::Wrong(rendered(&errors, source)),
    };
    let Ok(compiled) = lower(&checked, 1) else { return Fate::TooLarge };
    for program in &compiled.programs {
        // Loops of chance may have too many paths.
        let rules = Rules { maps: &compiled.maps, context_writable: 168..176, max_steps: 30_000, ..Rules::default() };
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
