//! The words of a command line in the order that the parser wants: a command before its options,
//! `--` before a command that is run, and a format where `-f` is also a flag.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, CommandFactory};

use super::Cli;
use super::script::Stage;

/// `sidestep help [COMMAND]` as `--help`; a command that follows options before them; `--` before
/// the first word of a command that is run.
pub fn ordered(mut words: Vec<OsString>) -> Vec<OsString> {
    let cli = Cli::command();
    let command_of = |word: &OsString| {
        let word = word.to_str()?;
        cli.get_subcommands().find(|command| command.get_name() == word)
    };
    staged(&cli, &mut words);
    let is_asked = |words: &[OsString]| words.is_empty() || words.len() == 1 && command_of(&words[0]).is_some();
    if words.get(1).is_some_and(|word| word == "help") && is_asked(&words[2..]) {
        words.remove(1);
        words.push("--help".into());
        return words;
    }
    let is_led_to = |at: &usize| {
        command_of(&words[*at]).is_some_and(|command| behind_options(&[command, &cli], &words) == Some(*at))
    };
    if let Some(at) = (2..words.len()).find(is_led_to) {
        let command = words.remove(at);
        words.insert(1, command);
    }
    if let Some(command) = words.get(1).and_then(command_of) {
        formatted(command, &mut words);
        dashed(command, &mut words);
    }
    words
}

/// The place of the first word that is neither an option of one of these commands nor its value.
/// `None`: there is an unknown option, or one of a script, to which all that follows belongs.
fn behind_options(commands: &[&Command], words: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if !word.starts_with('-') || word == "-" {
            return Some(at);
        }
        let read = commands.iter().find_map(|command| option(command, word));
        let read = read.filter(|read| word != "--" && !read.names(&["program", "list"]))?;
        at += 1 + usize::from(read.value_follows);
    }
    None
}

/// `-d ast` of a script as `--debug=ast`: a word behind `-d` belongs to it only if it is a stage.
fn staged(cli: &Command, words: &mut Vec<OsString>) {
    let mut at = 1;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if word == "--" || cli.get_subcommands().any(|command| command.get_name() == word) {
            return;
        }
        let next = words.get(at + 1).and_then(|next| next.to_str());
        let stage = next.filter(|next| Stage::NAMES.contains(next) || Stage::OTHERS.contains(next));
        if let (true, Some(stage)) = (word == "-d" || word == "--debug", stage) {
            words[at] = format!("--debug={stage}").into();
            words.remove(at + 1);
        }
        let follows = words[at].to_str().and_then(|word| option(cli, word)).is_some_and(|read| read.value_follows);
        at += 1 + usize::from(follows);
    }
}

/// An option as the parser would read it.
struct Read<'a> {
    args: Vec<&'a Arg>,
    /// Its value is the next word.
    value_follows: bool,
}

impl Read<'_> {
    fn names(&self, ids: &[&str]) -> bool {
        self.args.iter().any(|arg| ids.contains(&arg.get_id().as_str()))
    }
}

/// What an option of a command is; none if it is not known, or takes any number of values.
fn option<'a>(command: &'a Command, word: &str) -> Option<Read<'a>> {
    let has_value =
        |arg: &Arg| matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) && !arg.is_require_equals_set();
    let is_open =
        |arg: &Arg| !arg.is_require_equals_set() && arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    if let Some(long) = word.strip_prefix("--") {
        let (name, given) = long.split_once('=').map_or((long, false), |(name, _)| (name, true));
        let is_it = |arg: &&Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|others| others.contains(&name))
        };
        let arg = command.get_arguments().find(is_it).filter(|arg| !is_open(arg))?;
        return Some(Read { args: vec![arg], value_follows: !given && has_value(arg) });
    }
    let mut args = Vec::new();
    let mut letters = word.strip_prefix('-')?.chars();
    while let Some(letter) = letters.next() {
        let is_it = |arg: &&Arg| {
            let others = arg.get_all_short_aliases();
            arg.get_short() == Some(letter) || others.is_some_and(|others| others.contains(&letter))
        };
        let arg = command.get_arguments().find(is_it).filter(|arg| !is_open(arg))?;
        args.push(arg);
        if has_value(arg) {
            return Some(Read { args, value_follows: letters.as_str().is_empty() });
        }
    }
    Some(Read { args, value_follows: false })
}

/// `-f` prints folded stacks, as in bcc, but `-f json` is the format that it is for other commands.
fn formatted(command: &Command, words: &mut Vec<OsString>) {
    if !command.get_arguments().any(|arg| arg.get_id() == "folded") {
        return;
    }
    let mut at = 2;
    while let Some(word) = words.get(at).and_then(|word| word.to_str()).map(str::to_owned) {
        if word == "--" {
            return;
        }
        if !word.starts_with('-') || word == "-" {
            at += 1;
            continue;
        }
        let Some(read) = option(command, &word) else { return };
        let format = words.get(at + 1).and_then(|next| next.to_str()).filter(|next| ["json", "text"].contains(next));
        match format {
            Some(format) if !word.starts_with("--") && word.ends_with('f') && !read.value_follows => {
                words[at + 1] = format!("--format={format}").into();
                match word.strip_suffix('f') {
                    None | Some("-") => drop(words.remove(at)),
                    Some(others) => words[at] = others.into(),
                }
                at += 1;
            }
            _ => at += 1 + usize::from(read.value_follows),
        }
    }
}

/// `funccount libc:malloc ls -l` runs `ls -l`: the first word that the command cannot take itself
/// is the first of what it runs.
fn dashed(command: &Command, words: &mut Vec<OsString>) {
    if !command.get_positionals().any(Arg::is_last_set) {
        return;
    }
    let mut own = command.get_positionals().filter(|arg| !arg.is_last_set()).peekable();
    let (mut at, mut has_specs) = (2, false);
    while let Some(word) = words.get(at).and_then(|word| word.to_str()) {
        if word == "--" {
            return;
        }
        if word.starts_with('-') && word != "-" {
            at += 1;
            match option(command, word) {
                // What is probed is given.
                Some(read) if read.names(&["pid", "cmd"]) => return,
                Some(read) => at += usize::from(read.value_follows),
                None if takes_specs(command, word) => {
                    let is_spec = |word: &&OsString| word.to_str().is_some_and(|word| word.contains(':'));
                    at += words[at..].iter().take_while(is_spec).count();
                }
                None => return,
            }
            continue;
        }
        let is_own = match own.peek() {
            None => false,
            // Patterns of functions. Another one than the first may be the name of a program, too.
            Some(arg) if matches!(arg.get_action(), ArgAction::Append) => {
                !std::mem::replace(&mut has_specs, true) || !is_program(word)
            }
            Some(arg) if NUMBERS.contains(&arg.get_id().as_str()) => {
                own.next();
                word.parse::<f64>().is_ok()
            }
            Some(_) => own.next().is_some(),
        };
        if !is_own {
            words.insert(at, "--".into());
            return;
        }
        at += 1;
    }
}

/// Words of commands that are numbers.
const NUMBERS: [&str; 2] = ["every", "count"];

/// Whether it is the option of `argdist` that specifications follow. Each of them has a colon.
fn takes_specs(command: &Command, word: &str) -> bool {
    let is_it = |arg: &Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => word.strip_prefix('-').is_some_and(|letter| arg.get_short().is_some_and(|c| letter == c.to_string())),
    };
    command.get_arguments().any(|arg| is_it(arg) && ["count", "histogram"].contains(&arg.get_id().as_str()))
        && command.get_name() == "argdist"
}

/// Whether it is the path of a program, and so no function.
fn is_program(word: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let is_executable = |data: std::fs::Metadata| data.is_file() && data.permissions().mode() & 0o111 != 0;
    word.contains('/') && !word.contains(':') && std::fs::metadata(word).is_ok_and(is_executable)
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
        assert_eq!(of("s -i 1 -T funccount x"), "s funccount -i 1 -T x");
        assert_eq!(of("s -d 1 -m 2 funcslower x"), "s funcslower -d 1 -m 2 x");
        assert_eq!(of("s -o list funccount x"), "s funccount -o list x");
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

    #[test]
    fn a_command_that_is_run_needs_no_dashes() {
        assert_eq!(of("s funccount libc:malloc ls -l"), "s funccount libc:malloc -- ls -l");
        assert_eq!(of("s funccount libc:malloc -d 1 -Ti2 ls -p 1"), "s funccount libc:malloc -d 1 -Ti2 -- ls -p 1");
        assert_eq!(of("s -q funclatency read cat f"), "s funclatency -q read -- cat f");
        assert_eq!(of("s sslsniff -x --comm c curl -f u"), "s sslsniff -x --comm c -- curl -f u");
        assert_eq!(of("s stackcount -D 2 -fP json ls"), "s stackcount -D 2 -fP json -- ls");
        assert_eq!(of("s trace malloc free /bin/sh -p 1"), "s trace malloc free -- /bin/sh -p 1");
        assert_eq!(of("s funcslower -m 1 read /bin/sh"), "s funcslower -m 1 read -- /bin/sh");
        assert_eq!(of("s memleak -o 9 ls -l"), "s memleak -o 9 -- ls -l");
        assert_eq!(of("s memleak 1 2 ls -l"), "s memleak 1 2 -- ls -l");
        assert_eq!(of("s memleak 1 ls"), "s memleak 1 -- ls");
        assert_eq!(of("s argdist -C p:c:f() ls -C"), "s argdist -C p:c:f() -- ls -C");
        assert_eq!(of("s argdist -i 2 -H r:c:f() p:c:g() -T 3 ls"), "s argdist -i 2 -H r:c:f() p:c:g() -T 3 -- ls");
        for line in [
            "s funccount libc:malloc",
            "s trace /bin/sh",
            "s trace malloc /bin/sh:main",
            "s trace malloc /no/such/program",
            "s memleak -p 1 2",
            "s argdist -p 1 -C p:c:f()",
            "s funccount libc:malloc -- ls a",
            "s funccount -p 1 malloc free",
            "s funccount --nonsense malloc free",
            "s trace malloc free",
            "s funcslower malloc free",
            "s explain malloc free",
        ] {
            assert_eq!(of(line), line);
        }
    }

    #[test]
    fn a_format_may_follow_the_letter_of_folded_stacks() {
        assert_eq!(of("s stackcount -f json malloc ls"), "s stackcount --format=json malloc -- ls");
        assert_eq!(of("s stackcount -Pf json -p 1 malloc"), "s stackcount -P --format=json -p 1 malloc");
        assert_eq!(of("s funcslower -f text -p 1 a b"), "s funcslower --format=text -p 1 a b");
        for line in [
            "s stackcount -f -p 1 malloc",
            "s stackcount -o f json -f",
            "s trace -f json a",
            "s stackcount a -- -f json",
        ] {
            assert_eq!(of(line), line);
        }
    }
}
