//! How many sites get which technique, as a table and as JSON.

use sidestep_engine::Covered;
use sidestep_plan::Technique;
use sidestep_plan::coverage::{Coverage, Reason, Sites};

use super::json::{array, line, number, object, string};

/// The block of one binary.
pub fn lines(covered: &Covered, sites: Sites) -> Vec<String> {
    let mut lines = vec![covered.object.display().to_string()];
    numbers(&covered.coverage, sites, &mut lines);
    let reasons = || covered.coverage.reasons.iter().zip(&covered.examples);
    if covered.coverage.refused > 0 {
        lines.push("  why refused".to_owned());
    }
    lines.extend(
        reasons().filter(|(reason, _)| reason.rejected.is_none()).map(|(reason, example)| why(reason, example)),
    );
    if covered.coverage.of_technique(Technique::Trap) > 0 {
        lines.push("  why a trap".to_owned());
    }
    lines.extend(
        reasons().filter(|(reason, _)| reason.rejected.is_some()).map(|(reason, example)| why(reason, example)),
    );
    lines
}

fn why(reason: &Reason, example: &str) -> String {
    let no = reason.rejected.map_or(String::new(), |technique| format!("no {technique}: "));
    let va = reason.example.to_string();
    let place = if example == va { va } else { format!("{example} ({va})") };
    format!("  {:>27}  {no}{}; first at {place}", reason.sites, reason.text)
}

/// The block of all together.
pub fn total(coverage: &Coverage, sites: Sites) -> Vec<String> {
    let mut lines = vec!["all together".to_owned()];
    numbers(coverage, sites, &mut lines);
    lines
}

fn numbers(coverage: &Coverage, sites: Sites, lines: &mut Vec<String>) {
    let all = coverage.sites();
    lines.push(format!("  {:<17} {all:>9}", word(sites)));
    let mut row = |name: &str, sites: u64| lines.push(format!("  {name:<17} {sites:>9} {:>9}", share(sites, all)));
    for technique in Technique::all() {
        row(&technique.to_string(), coverage.of_technique(technique));
    }
    row("refused", coverage.refused);
    row("without a trap", coverage.without_trap());
    if sites == Sites::Returns {
        lines.push(format!(
            "  {:<17} {:>9}           functions, which are not among them",
            "never return", coverage.never_return
        ));
    }
    lines.push(format!(
        "  {:<17} {:>9}           instructions in functions, and {} bytes between functions",
        "data in text", coverage.data, coverage.between
    ));
}

fn word(sites: Sites) -> &'static str {
    match sites {
        Sites::Entries => "entries",
        Sites::Instructions => "instructions",
        Sites::Returns => "functions that return",
    }
}

/// Percent, rounded down: what is not everything is never shown as 100.
fn share(part: u64, all: u64) -> String {
    let thousandths = u128::from(part) * 100_000 / u128::from(all.max(1));
    format!("{}.{:03}%", thousandths / 1000, thousandths % 1000)
}

/// The line of one binary.
pub fn json(covered: &Covered, sites: Sites) -> String {
    let reasons = covered.coverage.reasons.iter().zip(&covered.examples).map(|(reason, example)| {
        let technique = if reason.rejected.is_some() { "trap" } else { "refused" };
        let mut members = vec![("technique", string(technique))];
        members.extend(reason.rejected.map(|technique| ("rejected", string(&key(technique)))));
        members.extend([
            ("reason", string(&reason.text)),
            ("sites", number(reason.sites)),
            ("example", string(example)),
            ("address", string(&reason.example.to_string())),
        ]);
        object(members)
    });
    let mut members = vec![("binary", string(&covered.object.display().to_string()))];
    members.extend(members_of(&covered.coverage, sites));
    members.push(("reasons", array(reasons)));
    line("coverage", object(members))
}

/// The line of all together.
pub fn json_total(coverage: &Coverage, sites: Sites) -> String {
    line("coverage_total", object(members_of(coverage, sites)))
}

fn members_of(coverage: &Coverage, sites: Sites) -> Vec<(&'static str, String)> {
    let techniques = Technique::all().map(|t| (key(t), number(coverage.of_technique(t))));
    vec![
        ("kind", string(word(sites))),
        ("sites", number(coverage.sites())),
        ("techniques", object(techniques)),
        ("refused", number(coverage.refused)),
        ("never_return", number(coverage.never_return)),
        ("without_trap", number(coverage.without_trap())),
        (
            "data_in_text",
            object([("instructions", number(coverage.data)), ("bytes_between_functions", number(coverage.between))]),
        ),
    ]
}

/// A technique's name in JSON: `jump_over_several`.
fn key(technique: Technique) -> String {
    technique.to_string().replace(' ', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_isa::Va;
    use sidestep_plan::coverage::Reason;

    fn covered() -> Covered {
        let reason =
            |rejected, text: &str, sites, va| Reason { rejected, text: text.to_owned(), sites, example: Va(va) };
        let coverage = Coverage {
            techniques: [(Technique::Jump, 99_998), (Technique::Trap, 1)].into(),
            refused: 1,
            data: 2,
            never_return: 0,
            between: 32,
            reasons: vec![
                reason(Some(Technique::JumpOverSeveral), "a call at X goes to X", 1, 0x1010),
                reason(None, "there is a breakpoint already", 1, 0x2000),
            ],
        };
        Covered { object: "/bin/a".into(), coverage, examples: vec!["f+0x10".to_owned(), "\"g\"".to_owned()] }
    }

    #[test]
    fn table_is_readable() {
        let lines = lines(&covered(), Sites::Instructions);
        for expected in [
            "  instructions         100000",
            "  jump                  99998   99.998%",
            "  jump over several         0    0.000%",
            "  trap                      1    0.001%",
            "  refused                   1    0.001%",
            "  without a trap        99998   99.998%",
            "  data in text              2           instructions in functions, and 32 bytes between functions",
        ] {
            assert!(lines.iter().any(|line| line == expected), "no {expected:?} in {lines:#?}");
        }
        let reasons = [
            "  why refused",
            "                            1  there is a breakpoint already; first at \"g\" (0x2000)",
            "  why a trap",
            "                            1  no jump over several: a call at X goes to X; first at f+0x10 (0x1010)",
        ];
        assert_eq!(lines[0], "/bin/a");
        assert_eq!(lines[lines.len() - 4..], reasons);
        assert_eq!(total(&Coverage::default(), Sites::Entries)[..2], ["all together", "  entries                   0"]);
    }

    #[test]
    fn shares_are_never_rounded_up() {
        for (part, all, want) in [(0, 0, "0.000%"), (999_999, 1_000_000, "99.999%"), (7, 7, "100.000%")] {
            assert_eq!(share(part, all), want);
        }
    }

    #[test]
    fn names_in_json_are_stable() {
        let json = json(&covered(), Sites::Entries);
        let head =
            r#"{"type": "coverage", "data": {"binary": "/bin/a", "kind": "entries", "sites": 100000, "techniques": {"#;
        assert!(
            json.starts_with(&format!(r#"{head}"nop_site": 0, "jump": 99998, "jump_over_several": 0, "#)),
            "{json}"
        );
        let tail = [
            r#""trap": 1}, "refused": 1, "never_return": 0, "without_trap": 99998, "#,
            r#""data_in_text": {"instructions": 2, "bytes_between_functions": 32}, "reasons": ["#,
            r#"{"technique": "trap", "rejected": "jump_over_several", "reason": "a call at X goes to X", "sites": 1, "#,
            r#""example": "f+0x10", "address": "0x1010"}, "#,
            r#"{"technique": "refused", "reason": "there is a breakpoint already", "sites": 1, "#,
            r#""example": "\"g\"", "address": "0x2000"}]}}"#,
        ];
        assert!(json.ends_with(&tail.concat()), "{json}");
        let total = json_total(&covered().coverage, Sites::Instructions);
        assert!(
            total.starts_with(r#"{"type": "coverage_total", "data": {"kind": "instructions", "sites": "#),
            "{total}"
        );
    }
}
