//! Manual pages: one per command from the table of flags, and the language from the guide.

mod markdown;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use sidestep_lang::script::config::SETTINGS;

use crate::flags::help;

const EXIT_STATUS: &str = "\
0 after a session that was ended, by Ctrl-C for example; N after exit(N) of a script; the status of the command that was \
started (128 + N if signal N killed it); 1 after an error of a script, of an attach, or of anything else; 2 after a mistake \
on the command line.";

/// The chapters of the guide that `sidestep-language(7)` has.
const LANGUAGE: &[&str] = &[
    include_str!("../../../../../docs/guide/language/index.md"),
    include_str!("../../../../../docs/guide/language/probes.md"),
    include_str!("../../../../../docs/guide/language/statements.md"),
    include_str!("../../../../../docs/guide/language/builtins.md"),
    include_str!("../../../../../docs/guide/language/functions.md"),
    include_str!("../../../../../docs/guide/language/config.md"),
    include_str!("../../../../../docs/guide/language/newer.md"),
    include_str!("../../../../../docs/guide/language/refused.md"),
];

/// A page, in roff.
pub struct Page {
    /// Its name, as `man NAME` takes it.
    pub name: String,
    /// The section of the manual: 1 for commands, 7 for the language.
    pub section: u8,
    /// The text, which is ASCII.
    pub text: String,
}

/// All pages: `sidestep(1)`, one per command, and the language.
pub fn pages() -> Vec<Page> {
    let mut command = help::command();
    command.build();
    let mut pages = vec![main_page(&command)];
    pages.extend(command.get_subcommands().map(command_page));
    pages.push(language());
    pages
}

/// `sidestep(1)`.
fn main_page(command: &Command) -> Page {
    let man = man(command.clone());
    let mut roff = Roff::default();
    roff.control("SH", ["ENVIRONMENT"]);
    for setting in SETTINGS {
        roff.control("TP", []);
        roff.text([bold(format!("BPFTRACE_{}", setting.name.to_ascii_uppercase()))]);
        roff.text([roman(format!("{}: {}. Default: {}.", setting.help, setting.values, setting.default))]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(EXIT_STATUS)]);
    roff.control("SH", ["NOTES"]);
    verbatim(&mut roff, &after(command));
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("sidestep-language(7), bpftrace(8), perf-probe(1), gdb(1)")]);
    let parts = [
        drawn(|out| man.render_title(out)),
        FILL.to_owned(),
        drawn(|out| man.render_name_section(out)),
        drawn(|out| man.render_synopsis_section(out)),
        drawn(|out| man.render_description_section(out)),
        drawn(|out| man.render_options_section(out)),
        drawn(|out| man.render_subcommands_section(out)),
        drawn(|out| roff.to_writer(out)),
    ];
    Page { name: "sidestep".to_owned(), section: 1, text: ascii(&parts.concat()) }
}

/// The page of a subcommand.
fn command_page(command: &Command) -> Page {
    let name = format!("sidestep-{}", command.get_name());
    let man = man(command.clone()).title(&name);
    let mut roff = Roff::default();
    if !after(command).is_empty() {
        roff.control("SH", ["NOTES"]);
        verbatim(&mut roff, &after(command));
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("sidestep(1), sidestep-language(7)")]);
    let parts = [
        drawn(|out| man.render_title(out)),
        FILL.to_owned(),
        drawn(|out| man.render_name_section(out)),
        drawn(|out| man.render_synopsis_section(out)),
        drawn(|out| man.render_description_section(out)),
        drawn(|out| man.render_options_section(out)),
        drawn(|out| roff.to_writer(out)),
    ];
    Page { name, section: 1, text: ascii(&parts.concat()) }
}

/// `sidestep-language(7)`: the language reference of the guide.
fn language() -> Page {
    let mut roff = Roff::default();
    let version = concat!("sidestep ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", ["sidestep-language", "7", "", version, "Miscellaneous Information Manual"]);
    let mut text = drawn(|out| roff.to_writer(out)) + FILL;
    let mut roff = Roff::default();
    roff.control("SH", ["NAME"]);
    roff.text([roman("sidestep-language - the language of sidestep's scripts")]);
    for chapter in LANGUAGE {
        markdown::render(&mut roff, chapter);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("sidestep(1), bpftrace(8)")]);
    text += &drawn(|out| roff.to_writer(out));
    Page { name: "sidestep-language".to_owned(), section: 7, text: ascii(&text) }
}

/// No hyphenation, and a ragged right margin: names of flags and functions stay whole.
const FILL: &str = ".nh\n.ad l\n";

fn man(command: Command) -> Man {
    Man::new(command).source(concat!("sidestep ", env!("CARGO_PKG_VERSION"))).manual("User Commands")
}

/// What is written into memory, which cannot fail.
fn drawn(draw: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> String {
    let mut out = Vec::new();
    let written = draw(&mut out);
    debug_assert!(written.is_ok(), "memory takes what is written");
    String::from_utf8_lossy(&out).into_owned()
}

/// The text behind the options: examples, grammars.
fn after(command: &Command) -> String {
    command.get_after_help().map(ToString::to_string).unwrap_or_default()
}

/// Lines as they are.
fn verbatim(roff: &mut Roff, text: &str) {
    roff.control("PP", []).control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

/// The page with what not each output device of roff has as escapes: groff_char(7).
fn ascii(page: &str) -> String {
    let mut out = String::with_capacity(page.len());
    for c in page.chars() {
        match c {
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            // At the start of a line, dots would be a request.
            '…' => out.push_str("\\&..."),
            '→' => out.push_str("\\->"),
            '–' => out.push_str("\\(en"),
            c if c.is_ascii() => out.push(c),
            c => out.push_str(&format!("\\[u{:04X}]", u32::from(c))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn every_flag_of_every_command_is_there() {
        let mut command = help::command();
        command.build();
        let pages = pages();
        for sub in command.get_subcommands() {
            let name = format!("sidestep-{}", sub.get_name());
            let page = pages.iter().find(|page| page.name == name).unwrap();
            for long in sub.get_arguments().filter(|arg| !arg.is_hide_set()).filter_map(Arg::get_long) {
                assert!(page.text.contains(&long.replace('-', "\\-")), "{name} {long}");
            }
            assert!(pages[0].text.contains(&name.replace('-', "\\-")), "sidestep(1) does not name {name}");
        }
        for page in &pages {
            assert!(page.text.is_ascii(), "{:?}", page.text.chars().find(|c| !c.is_ascii()));
        }
    }
}
