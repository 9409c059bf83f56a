//! Where lines go: data to stdout or a file, headings with it or, where a file is written, to
//! stderr.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use anyhow::Context;

use crate::flags::{Format, Output};

/// Data, headings and notes of one command. Whole lines are written; nothing is held back after
/// [`Sink::flush`].
pub struct Sink {
    data: BufWriter<Box<dyn Write>>,
    /// Headings go to stderr: stdout belongs to the command alone.
    to_file: bool,
    format: Format,
    quiet: bool,
    /// Nothing is written before it must be.
    holds_back: bool,
    /// There is something that a blank line can separate the next results from.
    written: bool,
}

impl Sink {
    /// As the flags have it.
    pub fn of(output: &Output) -> anyhow::Result<Sink> {
        Sink::open(output.file.as_deref(), output.format, output.detail.quiet)
    }

    /// Opens the file, if one was given.
    pub fn open(file: Option<&Path>, format: Format, quiet: bool) -> anyhow::Result<Sink> {
        let data: Box<dyn Write> = match file {
            Some(path) => Box::new(File::create(path).with_context(|| format!("cannot write {}", path.display()))?),
            None => Box::new(io::stdout()),
        };
        Ok(Sink {
            data: BufWriter::new(data),
            to_file: file.is_some(),
            format,
            quiet,
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

    /// A line of data.
    pub fn line(&mut self, text: &str) -> io::Result<()> {
        self.written = true;
        writeln!(self.data, "{text}")
    }

    /// Data as it is, without the end of a line.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.written = true;
        self.data.write_all(text.as_bytes())
    }

    /// A blank line between two parts of text.
    pub fn gap(&mut self) -> io::Result<()> {
        if self.written && !self.json() { self.line("") } else { Ok(()) }
    }

    /// A line that is no data: none with `-q` and in JSON.
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

    /// A remark for the user on stderr: none with `-q`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(&format!("sidestep: {text}"));
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

/// A line on stderr. Nobody may be left to read it: that is no reason to panic with a target
/// attached.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}
