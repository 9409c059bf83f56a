//! The words of a command line in the order that the parser wants: a command before its options.

use std::ffi::OsString;

use clap::{ArgAction, CommandFactory};

use super::Cli;

/// `sidestep help [COMMAND]` as `--help`, and a command that follows options before them.
pub fn ordered(mut words: Vec<OsString>) -> Vec<OsString> {
    let cli = Cli::command();
    let is_command = |word: &OsString| {
        word.to_str().is_some_and(|word| cli.get_subcommands().any(|command| command.get_name() == word))
    };
    if words.get(1).is_some_and(|word| word == "help") && words.len() <= 3 {
        words.remove(1);
        words.push("--help".into());
        return words;
    }
    // Whether the value of an option is the next word. Of a script, all that follows is its own.
    let takes = |word: &str| -> Option<bool> {
        let has_value = |action: &ArgAction| matches!(action, ArgAction::Set | ArgAction::Append);
        if let Some(long) = word.strip_prefix("--") {
            let (name, given) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
            let arg = cli.get_arguments().find(|arg| arg.get_long() == Some(name))?;
            let is_script = matches!(name, "list");
            return (!is_script).then(|| !given && has_value(arg.get_action()));
        }
        let mut letters = word.strip_prefix('-')?.chars();
        while let Some(letter) = letters.next() {
            let arg = cli.get_arguments().find(|arg| arg.get_short() == Some(letter))?;
            if matches!(letter, 'e' | 'l' | 'h' | 'V') {
                return None;
            }
            if has_value(arg.get_action()) {
                return Some(letters.as_str().is_empty());
            }
        }
        Some(false)
    };
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if !word.starts_with('-') || word == "-" {
            break;
        }
        match takes(word) {
            _ if word == "--" => return words,
            None => return words,
            Some(value) => at += 1 + usize::from(value),
        }
    }
    if at > 1 && words.get(at).is_some_and(is_command) {
        let command = words.remove(at);
        words.insert(1, command);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        ordered(words).iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_command_may_follow_options() {
        assert_eq!(of("s -p 1 funccount x"), "s funccount -p 1 x");
        assert_eq!(of("s -qp1 -o f trace x"), "s trace -qp1 -o f x");
        assert_eq!(of("s --pid=1 -v list x"), "s list --pid=1 -v x");
        assert_eq!(of("s funccount -p 1 x"), "s funccount -p 1 x");
        assert_eq!(of("s help list"), "s list --help");
        assert_eq!(of("s help"), "s --help");
    }

    #[test]
    fn words_of_a_script_stay_where_they_are() {
        for line in
            ["s -l list", "s -p 1 -e list trace", "s -p 1 x.bt list", "s -c list", "s -- list", "s -p 1 -- list"]
        {
            assert_eq!(of(line), line);
        }
    }
}
