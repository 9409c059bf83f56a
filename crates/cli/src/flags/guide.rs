//! The tables of flags in the guide are those of the command line. `SIDESTEP_BLESS=1 cargo test -p
//! sidestep-cli guide` writes them.

use std::fmt::Write;
use std::path::PathBuf;

use clap::{Arg, Args, Command, CommandFactory};

use super::{Cli, EngineFlags, TargetFlags};

const BEGIN: &str = "<!-- flags: generated from the table of flags; see CONTRIBUTING.md -->\n";
const END: &str = "<!-- end of flags -->\n";

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/tools"))
}

/// The flags that all commands with a target have.
fn common() -> Command {
    let mut command = EngineFlags::augment_args(TargetFlags::augment_args(Command::new("common")));
    command.build();
    command
}

/// A table of the flags of a command that are for users, but for some.
fn table(command: &Command, but: &[&Arg]) -> String {
    let is_left_out = |arg: &Arg| arg.is_hide_set() || ["help", "version"].contains(&arg.get_id().as_str());
    let is_common = |arg: &Arg| but.iter().any(|other| same(other, arg));
    let mut rows = String::new();
    for arg in command.get_arguments().filter(|arg| !is_left_out(arg) && !is_common(arg)) {
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        if arg.get_action().takes_values() {
            let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            if !values.is_empty() && values.len() < 10 {
                let _ = write!(help, " ({})", values.join(", "));
            }
            if let ([default], false) = (arg.get_default_values(), arg.is_hide_default_value_set()) {
                let _ = write!(help, "; default: {}", default.to_string_lossy());
            }
        }
        let _ = writeln!(rows, "| `{}` | {} |", head(arg), help.replace('|', "\\|").replace('<', "\\<"));
    }
    if rows.is_empty() { String::new() } else { format!("| flag | meaning |\n|---|---|\n{rows}") }
}

fn same(one: &Arg, other: &Arg) -> bool {
    (one.get_short(), one.get_long(), one.get_id()) == (other.get_short(), other.get_long(), other.get_id())
        && one.get_help().map(ToString::to_string) == other.get_help().map(ToString::to_string)
}

/// `-p, --pid PID`
fn head(arg: &Arg) -> String {
    let names = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let mut text = names.into_iter().flatten().collect::<Vec<_>>().join(", ");
    if arg.is_last_set() {
        text.push_str("--");
    }
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default().join(" ");
        text = format!("{text} {names}").trim().to_owned();
    }
    text.replace('|', "\\|")
}

/// What stands between the marks in the page of a command.
fn flags(command: &Command) -> String {
    let common = common();
    let of_target: Vec<&Arg> = common.get_arguments().collect();
    let has_target = command.get_arguments().any(|arg| arg.get_id() == "max_overhead");
    let mut text = table(command, if has_target { &of_target } else { &[] });
    if text.is_empty() {
        text.push_str("None.\n");
    }
    if has_target {
        text.push_str("\nAnd the [common flags](common.md).\n");
    }
    text
}

/// The page with these flags.
fn with_flags(page: &str, flags: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{flags}\n{END}{after}"))
}

#[test]
fn the_guide_has_the_flags_of_all_commands() {
    let mut cli = Cli::command();
    cli.build();
    let mut pages = vec![("common".to_owned(), table(&common(), &[])), ("script".to_owned(), flags(&cli))];
    pages.extend(cli.get_subcommands().map(|command| (command.get_name().to_owned(), flags(command))));
    let mut wrong = Vec::new();
    for (name, flags) in pages {
        let path = folder().join(format!("{name}.md"));
        let page = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let right = with_flags(&page, &flags).unwrap_or_else(|| panic!("{name}.md has no place for flags"));
        if page == right {
            continue;
        }
        if std::env::var_os("SIDESTEP_BLESS").is_some() {
            std::fs::write(&path, right).unwrap();
        } else {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "the flags in docs/guide/tools of {wrong:?} are not these: SIDESTEP_BLESS=1 writes them");
}
