//! What a probe hit costs: tables of `docs/bench.md`.

mod attach;
mod doc;
mod handlers;
mod hits;
mod program;
mod readme;
mod redis;
mod scripts;
mod techniques;
mod trigger;
mod usdt;
mod width;

use anyhow::{Result, bail, ensure};

use crate::machine;

/// A part of the benchmark: a section of the document.
struct Part {
    /// As an argument of the command.
    name: &'static str,
    title: &'static str,
    measure: fn() -> Result<String>,
}

static PARTS: [Part; 8] = [
    Part { name: "hits", title: "By the first instruction", measure: hits::hits },
    Part { name: "handlers", title: "By the handler", measure: handlers::handlers },
    Part { name: "scripts", title: "By the script", measure: scripts::scripts },
    Part { name: "usdt", title: "Static probes", measure: usdt::usdt },
    Part { name: "trigger", title: "Hits per second", measure: trigger::trigger },
    Part { name: "techniques", title: "By the technique", measure: techniques::techniques },
    Part { name: "redis", title: "A server with all its functions probed", measure: redis::redis },
    Part { name: "attach", title: "Attaching to many functions", measure: attach::attach },
];

const DOC: &str = "docs/bench.md";
const README: &str = "README.md";

/// Measures and prints all parts, or those named; `write`: also into `docs/bench.md`, where the
/// others stay, and into `README.md`. `None` if a name is of none.
pub fn bench(names: &[&str], write: bool) -> Option<Result<()>> {
    let is_part = |name: &&str| PARTS.iter().any(|part| part.name == *name);
    names.iter().all(is_part).then(|| parts(names, write))
}

/// A part that fails or panics does not stop those behind it.
fn parts(names: &[&str], write: bool) -> Result<()> {
    println!("measuring {}", sidestep_tests::tool::path().display());
    let mut failed = Vec::new();
    // Before anything is measured: writing a section changes the checkout.
    let made_by = |part: &'static Part| (part, machine::made_by(&format!("bench {}", part.name)));
    let chosen = PARTS.iter().filter(|part| names.is_empty() || names.contains(&part.name));
    for (part, made_by) in chosen.map(made_by).collect::<Vec<_>>() {
        let result = std::panic::catch_unwind(part.measure).unwrap_or_else(|_| bail!("panicked"));
        match result {
            Ok(table) => {
                let body = format!("{made_by}\n\n{table}");
                println!("## {}\n\n{body}", part.title);
                if write {
                    put(part.title, &body)?;
                }
            }
            Err(error) => {
                eprintln!("{}: {error:#}", part.name);
                failed.push(part.name);
            }
        }
    }
    ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}

/// Writes a section of the document, and the short form of all into the README.
fn put(title: &str, body: &str) -> Result<()> {
    let doc = doc::with_section(&machine::read_doc(DOC), title, body);
    machine::write_doc(DOC, &doc)?;
    machine::write_doc(README, &readme::with_figures(&machine::read_doc(README), &doc)?)
}
