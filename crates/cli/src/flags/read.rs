//! From the words that were typed to flags, and what is said of those that are wrong.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};

use super::{Cli, help, order};

/// What was typed. Ends the program if that is wrong, or asks for help.
pub fn parse(words: Vec<OsString>) -> Cli {
    let words = order::ordered(words);
    let is_command = |word: &OsString| Cli::command().get_subcommands().any(|command| command.get_name() == word);
    let is_script = !words.get(1).is_some_and(is_command);
    let matches = help::command().try_get_matches_from(words).unwrap_or_else(|error| {
        match refused(&error).filter(|_| is_script) {
            Some(text) => {
                crate::out::sink::say_lines(&format!("ERROR: {text}"));
                std::process::exit(1)
            }
            None => error.exit(),
        }
    });
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// What bpftrace says of a value that an option of it does not take.
fn refused(error: &clap::Error) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let option = context(ContextKind::InvalidArg)?;
    if option.starts_with("--pid ") {
        return std::error::Error::source(error).map(ToString::to_string);
    }
    let value = context(ContextKind::InvalidValue)?;
    let is_format = option.starts_with("--format ") && !value.is_empty();
    is_format.then(|| format!("Invalid output format \"{value}\"\nValid formats: 'text', 'json'"))
}
