//! Where lines go: data to stdout or a file, headings of tables with it or, where a file is
//! written, to stderr; what the tool does at the moment to stderr. A line is one row: whatever a
//! name contains, it is escaped here (`out::escape`).

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use anyhow::Context;

use super::escape;
use super::outlet::{self, Outlet};
use crate::flags::{Format, Output};

/// Who reads what is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// Somebody at a terminal, which obeys what is written to it.
    Terminal,
    /// A program or a file, which gets bytes as they are.
    Program,
}

impl Reader {
    /// A string of the target.
    pub fn shown(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Reader::Terminal => escape::row_of(bytes).into_bytes(),
            Reader::Program => bytes.to_vec(),
        }
    }

    /// Lines that are not the user's.
    pub fn lines(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Reader::Terminal => escape::block(bytes).into_bytes(),
            Reader::Program => bytes.to_vec(),
        }
    }
}

/// Data, headings and notes of one command. Whole lines are written; nothing is held back after
/// [`Sink::flush`].
pub struct Sink {
    data: BufWriter<Outlet>,
    reader: Reader,
    /// Headings go to stderr: stdout belongs to the command alone.
    to_file: bool,
    format: Format,
    quiet: bool,
    verbose: bool,
    /// Nothing is written before it must be.
    holds_back: bool,
    /// There is something that a blank line can separate the next results from.
    written: bool,
}

impl Sink {
    /// As the flags have it.
    pub fn of(output: &Output) -> anyhow::Result<Sink> {
        let sink = Sink::open(output.file.as_deref(), output.format, output.detail.quiet)?;
        Ok(Sink { verbose: output.detail.verbose, ..sink })
    }

    /// Opens the file, if one was given.
    pub fn open(file: Option<&Path>, format: Format, quiet: bool) -> anyhow::Result<Sink> {
        let (data, is_terminal) = match file {
            Some(path) => {
                let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
                let is_terminal = file.is_terminal();
                (Outlet::file(file), is_terminal)
            }
            None => (Outlet::of(io::stdout())?, io::stdout().is_terminal()),
        };
        Ok(Sink {
            data: BufWriter::new(data),
            reader: if is_terminal { Reader::Terminal } else { Reader::Program },
            to_file: file.is_some(),
            format,
            quiet,
            verbose: false,
            holds_back: false,
            written: false,
        })
    }

    /// From now on, data is written when there is much of it, or at the end.
    pub fn hold_back(&mut self) {
        self.holds_back = true;
    }

    /// JSON is wanted.
    pub fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// Only results are wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Who reads the data.
    pub fn reader(&self) -> Reader {
        self.reader
    }

    /// A line of data, which is one row whatever is in it.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        outlet::is_wanted()?;
        self.written = true;
        writeln!(self.data, "{}", escape::row(text))
    }

    /// Data as it is, without the end of a line: what the user wrote, or what is escaped already.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// The same of bytes.
    pub fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        outlet::is_wanted()?;
        self.written = true;
        self.data.write_all(bytes)
    }

    /// A blank line between two parts of text.
    pub fn gap(&mut self) -> io::Result<()> {
        if self.written && !self.json() { self.line("") } else { Ok(()) }
    }

    /// The first line of a table: none with `-q` and in JSON.
    pub fn heading(&mut self, text: &str) -> io::Result<()> {
        if self.quiet || self.json() {
            return Ok(());
        }
        if self.to_file {
            say(text);
            return Ok(());
        }
        self.line(text)
    }

    /// What the tool does from now on, on stderr: none with `-q` and in JSON.
    pub fn progress(&self, text: &str) {
        if !self.quiet && !self.json() {
            say(text);
        }
    }

    /// A remark for the user on stderr: none with `-q`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(&format!("sidestep: {text}"));
        }
    }

    /// A remark for who wants to know more.
    pub fn detail(&self, text: &str) {
        if self.verbose {
            self.note(text);
        }
    }

    /// A loss: always said, on stderr.
    pub fn warn(&self, text: &str) {
        say(text);
    }

    /// Sends out what was written, unless it is held back.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.holds_back { Ok(()) } else { self.data.flush() }
    }

    /// Sends out the rest.
    pub fn end(&mut self) -> io::Result<()> {
        self.data.flush()
    }
}

/// A line on stderr, which is one row whatever is in it. Nobody may be left to read it: that is no
/// reason to panic with a target attached.
pub fn say(text: &str) {
    say_lines(&escape::row(text));
}

/// Lines on stderr, whose parts are escaped.
pub fn say_lines(text: &str) {
    if let Some(mut stderr) = Outlet::stderr() {
        let _ = stderr.write_all(format!("{text}\n").as_bytes());
    }
}
