//! The table of flags as a manual page: man(7).

use std::fmt::Write;

use clap::{Arg, Command};
use sidestep_lang::script::config::SETTINGS;

const EXIT_STATUS: &str = "\
0 after a session that was ended, by Ctrl-C for example; N after exit(N) of a script; the status of the command that was \
started (128 + N if signal N killed it); 1 after an error of a script, of an attach, or of anything else; 2 after a mistake \
on the command line.";

/// The page, in roff.
pub fn page(mut command: Command) -> String {
    command.build();
    let version = command.get_version().unwrap_or_default();
    let mut page = format!(".TH SIDESTEP 1 \"\" \"sidestep {version}\" \"User Commands\"\n.nh\n.ad l\n");
    section(&mut page, "NAME");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    text(&mut page, &format!("sidestep - {}", about.trim_end_matches('.')));
    section(&mut page, "SYNOPSIS");
    verbatim(&mut page, &usage(&command));
    section(&mut page, "OPTIONS");
    options(&mut page, &command);
    section(&mut page, "COMMANDS");
    for sub in command.get_subcommands() {
        let _ = writeln!(page, ".SS \"sidestep {}\"", sub.get_name());
        text(&mut page, &sub.get_about().map(ToString::to_string).unwrap_or_default());
        verbatim(&mut page, &usage(sub));
        options(&mut page, sub);
        after(&mut page, sub);
    }
    section(&mut page, "ENVIRONMENT");
    for setting in SETTINGS {
        let _ = writeln!(page, ".TP\n\\fBBPFTRACE_{}\\fR", setting.name.to_ascii_uppercase());
        text(&mut page, &format!("{}: {}. Default: {}.", setting.help, setting.values, setting.default));
    }
    section(&mut page, "EXIT STATUS");
    text(&mut page, EXIT_STATUS);
    section(&mut page, "NOTES");
    after(&mut page, &command);
    section(&mut page, "SEE ALSO");
    page += "\\fBbpftrace\\fR(8), \\fBperf\\-probe\\fR(1), \\fBgdb\\fR(1)\n";
    page
}

fn section(page: &mut String, name: &str) {
    let _ = writeln!(page, ".SH {name}");
}

fn usage(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let lines = usage.trim_start_matches("Usage:").lines().map(str::trim);
    lines.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn options(page: &mut String, command: &Command) {
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set()) {
        let _ = writeln!(page, ".TP\n{}", head(arg));
        let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        help.push('.');
        if arg.get_action().takes_values() {
            let values: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
            if !values.is_empty() {
                let _ = write!(help, " Possible values: {}.", values.join(", "));
            }
            if let [default] = arg.get_default_values() {
                let _ = write!(help, " Default: {}.", default.to_string_lossy());
            }
        }
        text(page, &help);
    }
}

/// `-p, --pid PID`
fn head(arg: &Arg) -> String {
    let names = [arg.get_short().map(|short| format!("-{short}")), arg.get_long().map(|long| format!("--{long}"))];
    let mut parts: Vec<String> =
        names.into_iter().flatten().map(|name| format!("\\fB{}\\fR", escaped(&name))).collect();
    let mut value = String::new();
    if arg.get_action().takes_values() {
        let names = arg.get_value_names().unwrap_or_default().iter().map(|name| format!("\\fI{}\\fR", escaped(name)));
        value = names.collect::<Vec<_>>().join(" ");
    }
    if arg.is_last_set() {
        value = format!("\\fB\\-\\-\\fR {value}");
    }
    if parts.is_empty() {
        parts.push(value);
        return parts.concat();
    }
    let separator = if value.is_empty() { "" } else { " " };
    format!("{}{separator}{value}", parts.join(", "))
}

/// What stands behind the options: examples, grammars.
fn after(page: &mut String, command: &Command) {
    if let Some(help) = command.get_after_help() {
        verbatim(page, &help.to_string());
    }
}

/// A paragraph.
fn text(page: &mut String, text: &str) {
    for line in text.lines() {
        let _ = writeln!(page, "{}", escaped(line));
    }
}

/// Lines as they are.
fn verbatim(page: &mut String, text: &str) {
    page.push_str(".PP\n.nf\n");
    for line in text.lines() {
        let _ = writeln!(page, "{}", escaped(line));
    }
    page.push_str(".fi\n");
}

/// groff_char(7): what has a meaning for roff, and what not each output device has.
fn escaped(line: &str) -> String {
    let mut out = String::new();
    if line.starts_with(['.', '\'']) {
        out.push_str("\\&");
    }
    for c in line.chars() {
        match c {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str("\\-"),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            '…' => out.push_str("..."),
            '→' => out.push_str("\\->"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn text_is_no_request() {
        assert_eq!(escaped(".fi \\n -x 'a'"), "\\&.fi \\en \\-x \\(aqa\\(aq");
    }

    #[test]
    fn every_flag_of_every_command_is_there() {
        let page = page(crate::flags::Cli::command());
        let mut command = crate::flags::Cli::command();
        command.build();
        for sub in command.get_subcommands() {
            let from = page.find(&format!(".SS \"sidestep {}\"\n", sub.get_name())).unwrap();
            for long in sub.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long) {
                assert!(page[from..].contains(&format!("\\fB{}\\fR", escaped(&format!("--{long}")))), "{long}");
            }
        }
        assert!(page.is_ascii(), "{:?}", page.chars().find(|c| !c.is_ascii()));
    }
}
