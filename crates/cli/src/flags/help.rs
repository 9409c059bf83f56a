//! The texts of `--help` and of the manual pages in 80 columns.

use clap::{Command, CommandFactory};

use super::Cli;

/// Columns of a line.
const WIDTH: usize = 80;

/// The table of flags, whose texts fit.
pub fn command() -> Command {
    // Not what the file is called that was started.
    fitted(Cli::command()).infer_long_args(true).bin_name("sidestep")
}

fn fitted(command: Command) -> Command {
    let command = match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(fit(&text)),
        None => command,
    };
    command.max_term_width(WIDTH).mut_subcommands(fitted)
}

/// Lines that are too long, as several. The comment of an example goes above it.
fn fit(text: &str) -> String {
    let mut out = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match line.split_once(" # ") {
            _ if line.chars().count() <= WIDTH => out.push(line.to_owned()),
            Some((example, comment)) if indent > 0 => {
                wrap(&format!("{}# {comment}", " ".repeat(indent)), &format!("{}# ", " ".repeat(indent)), &mut out);
                out.push(example.trim_end().to_owned());
            }
            _ => wrap(line, &" ".repeat(indent + text_of(line.trim_start())), &mut out),
        }
    }
    out.join("\n")
}

/// Where the text of `NAME  text` begins; 2 in a line without a name.
fn text_of(line: &str) -> usize {
    let name = line.find("  ").filter(|name| !line[..*name].contains(' '));
    name.map_or(2, |name| line[name..].find(|c| c != ' ').map_or(2, |blanks| name + blanks))
}

/// Breaks a line between words, with `before` in front of all lines but the first.
fn wrap(line: &str, before: &str, out: &mut Vec<String>) {
    let start = line.len() - line.trim_start().len();
    let mut row = line[..start].to_owned();
    let mut is_begun = false;
    // Blanks that align the text stay.
    for word in line[start..].split(' ') {
        if is_begun && row.chars().count() + 1 + word.chars().count() > WIDTH {
            out.push(std::mem::replace(&mut row, before.to_owned()).trim_end().to_owned());
            is_begun = false;
        }
        if is_begun {
            row.push(' ');
        }
        row.push_str(word);
        is_begun = true;
    }
    out.push(row);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let long = "  STATE  [OPTIMIZED] a jump, [DISABLED] the original code, [GONE] neither that nor ours; a trap";
        let expected =
            "  STATE  [OPTIMIZED] a jump, [DISABLED] the original code, [GONE] neither that\n         nor ours; a trap";
        assert_eq!(fit(long), expected);
        let example = "  sidestep -p 1234 -e 'u:libc:malloc { @[ustack(5)] = sum(arg0) }'   # a script of the language";
        let expected =
            "  # a script of the language\n  sidestep -p 1234 -e 'u:libc:malloc { @[ustack(5)] = sum(arg0) }'";
        assert_eq!(fit(example), expected);
        assert_eq!(fit("a  b\n\nc"), "a  b\n\nc");
    }

    #[test]
    fn help_was_wider_than_80_columns() {
        fn look(command: &mut Command) {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                assert!(line.chars().count() <= WIDTH, "{}: {line}", command.get_name());
            }
            command.get_subcommands_mut().for_each(look);
        }
        let mut command = command();
        command.build();
        look(&mut command);
    }
}
