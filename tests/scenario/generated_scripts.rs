//! Random scripts: what the checker accepts is compiled, verified and run, and prints what the
//! model of the language says: in the tool, compiled in the target, and interpreted there.

use std::collections::BTreeSet;

use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::scripts::Script;
use sidestep_tests::target;
use sidestep_tests::tool::sidestep;

/// Scripts of a usual run. `SIDESTEP_SCRIPTS=FROM..TO` takes others.
const SEEDS: std::ops::Range<u64> = 0..12;

fn seeds() -> std::ops::Range<u64> {
    let Ok(given) = std::env::var("SIDESTEP_SCRIPTS") else { return SEEDS };
    let parsed = given.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
    parsed.unwrap_or_else(|| panic!("SIDESTEP_SCRIPTS={given} is no FROM..TO"))
}

/// What is printed of maps whose names end like this: an entry with the rows behind it.
fn entries(maps: &str, suffix: &str) -> BTreeSet<String> {
    let all = format!("\n{}", maps.trim_end());
    let entries = all.split("\n@").skip(1).filter_map(|entry| {
        let (name, rest) = entry.split_once('[')?;
        Some(format!("{}[{}", name.strip_suffix(suffix)?, rest.trim_end()))
    });
    entries.collect()
}

#[test]
pub fn random_scripts_print_what_the_model_says() {
    let Some(program) = target("script") else { return };
    let path = program.to_string_lossy();
    let results = std::env::temp_dir().join(format!("sidestep-scripts-{}", std::process::id()));
    let (mut wrong, mut too_long) = (Vec::new(), 0);
    for seed in seeds() {
        let script = Script::new(seed);
        let source = script.source().replace("TARGET", &path);
        let expected = script.printed().repeat(2);
        for flag in ["--no-warnings", "--interpret"] {
            let file = results.to_string_lossy();
            let args = ["-q", flag, "-e", &source, "-o", &file, "--", &path, "names", "1"];
            let output = run(&mut sidestep(&args), LIMIT);
            // The verifier gives up on a few of them, and says so.
            if output.stderr.contains("is too long") {
                too_long += 1;
                break;
            }
            let all = std::fs::read_to_string(&results).unwrap_or_default();
            let (printed, maps) = all.split_once("\n\n\n").unwrap_or((&all, ""));
            let printed = format!("{printed}\n");
            if output.code() != 0 || printed != expected {
                let first = printed.lines().zip(expected.lines()).position(|(is, wanted)| is != wanted);
                let place = first.map(|n| {
                    let line = |text: &str| text.lines().nth(n).unwrap_or_default().to_owned();
                    format!("line {n} is\n{}\nnot\n{}", line(&printed), line(&expected))
                });
                let stderr: Vec<&str> = output.stderr.lines().filter(|line| line.contains("ERROR")).collect();
                wrong.push(format!("seed {seed} {flag}: status {}, {place:?}, {stderr:?}\n{source}", output.code()));
                break;
            }
            // The two blocks did the same with maps of their own.
            let [tool, program] = ["_b", "_p"].map(|suffix| entries(maps, suffix));
            if tool != program || tool.is_empty() {
                wrong.push(format!("seed {seed} {flag}: maps are {program:#?}, not {tool:#?}\n{source}"));
            }
        }
    }
    let _ = std::fs::remove_file(&results);
    let scripts = seeds().count();
    assert!(4 * too_long <= scripts, "{too_long} of {scripts} are too long");
    assert!(wrong.is_empty(), "{} scripts:\n{}", wrong.len(), wrong.join("\n\n"));
}
