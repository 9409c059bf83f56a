//! Programs that are not safe: each is refused at the right instruction, with a message that says
//! what to do.

mod cases;

use cases::meetings::MEETINGS;
use cases::refused::REFUSED;
use cases::{lines, maps, rules};
use sidestep_bpf::assemble;
use sidestep_bpf::verify::verify;

#[test]
fn unsafe_programs_are_refused_with_the_reason() {
    let maps = maps();
    let mut wrong = Vec::new();
    for (name, text, message) in REFUSED.iter().chain(MEETINGS) {
        let program = assemble(&lines(text)).unwrap_or_else(|e| panic!("{name}: {e}\n{}", lines(text)));
        let found = match verify(&program, &rules(&maps)) {
            Ok(_) => "accepted".to_owned(),
            Err(e) => e.to_string(),
        };
        if found != *message {
            wrong.push(format!("{name}\n  expected: {message}\n  found:    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), REFUSED.len() + MEETINGS.len(), wrong.join("\n"));
}
