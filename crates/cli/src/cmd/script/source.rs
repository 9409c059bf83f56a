//! The text of a script, with the files that it takes in, and what is said about it.

use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use clap::error::ErrorKind;
use sidestep_lang::script::c::{Headers, Wanted};
use sidestep_lang::script::checked::Failure;
use sidestep_lang::script::diagnostic::{Diagnostic, Span};
use sidestep_lang::script::parser::{Import, imports, is_known_header};

use super::system;
use crate::cmd::usage;
use crate::flags::script::Script;
use crate::input;
use crate::out::color::{self, When};
use crate::out::sink::say_lines;
use crate::out::{escape, json};

/// Files within files at most.
const NESTED: usize = 32;

/// The text of a script, and what it is called in messages.
#[derive(Clone)]
pub struct Source {
    /// The name of the script.
    pub name: String,
    /// Its text, and behind it that of the files that it takes in.
    pub text: String,
    /// The arguments of its command line.
    pub params: Vec<String>,
    /// Are there colours in what is said about it?
    color: bool,
    /// The script's own file.
    path: Option<PathBuf>,
    /// The files that it takes in, in the order in which they are read.
    files: Vec<File>,
    /// Headers of the system among them.
    headers: Headers,
}

/// A file that a script takes in.
#[derive(Clone)]
struct File {
    name: String,
    path: PathBuf,
    /// In the text.
    at: Range<usize>,
    /// How it was included, if it was.
    included: Option<String>,
    /// A header of the system, made flat.
    is_header: bool,
}

impl Source {
    /// A script that is no file.
    pub fn of(name: String, text: String) -> Source {
        let headers = Headers::new(size_of::<usize>() as u8);
        Source { name, text, params: Vec::new(), color: false, path: None, files: Vec::new(), headers }
    }

    /// The script that the command line names. An error that is the script's was said already:
    /// then there is none.
    pub fn read(flags: &Script) -> anyhow::Result<Option<Source>> {
        let mut words = flags.words.iter().cloned();
        let (mut folder, mut own) = (PathBuf::new(), None);
        let (name, text) = match &flags.program {
            Some(program) => ("stdin".to_owned(), program.clone()),
            None => match words.next() {
                None => usage(ErrorKind::MissingRequiredArgument, "give a script: -e PROGRAM, or a FILE"),
                Some(file) if file == "-" => {
                    let mut text = String::new();
                    let read = std::io::stdin().take(input::SCRIPT + 1).read_to_string(&mut text);
                    if read.context("cannot read stdin")? as u64 > input::SCRIPT {
                        return Err(anyhow!("stdin is longer than {} MiB: that is no script", input::SCRIPT >> 20));
                    }
                    ("stdin".to_owned(), text)
                }
                Some(file) => {
                    let path = Path::new(&file);
                    let bytes = match input::read(path, input::SCRIPT) {
                        Err(error) if is_missing(&error) && (file.ends_with(".bt") || file.contains('/')) => {
                            say_lines(&format!(
                                "ERROR: failed to open file '{}': No such file or directory",
                                escape::row(&file)
                            ));
                            return Ok(None);
                        }
                        Err(error) if is_missing(&error) => {
                            usage(ErrorKind::InvalidSubcommand, &super::no_command(&file, words.next().as_deref()))
                        }
                        read => read?,
                    };
                    folder = path.parent().unwrap_or(Path::new("")).to_owned();
                    own = path.canonicalize().ok();
                    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    (name, String::from_utf8(bytes).with_context(|| format!("{file} is no text"))?)
                }
            },
        };
        let color = When::now(flags.more.color);
        let mut source = Source { params: words.collect(), color, path: own, ..Source::of(name, text) };
        let wanted =
            flags.more.include.iter().map(|path| Import { path: path.clone(), span: Span::default(), system: false });
        let wanted: Vec<Import> = wanted.chain(imports(&source.text)).collect();
        let given = flags.more.include.len();
        for (number, import) in wanted.iter().enumerate() {
            if let Err(message) = source.take_in(import, &folder, &flags.more.include_dir, 0, number < given) {
                if number < given {
                    return Err(anyhow!(message));
                }
                source.say(&[Diagnostic::error(import.span, message)]);
                return Ok(None);
            }
        }
        Ok(Some(source))
    }

    /// Reads a file, and those that it takes in before it. `on_command_line`: no script names it.
    fn take_in(
        &mut self,
        import: &Import,
        folder: &Path,
        dirs: &[PathBuf],
        depth: usize,
        on_command_line: bool,
    ) -> Result<(), String> {
        if depth > NESTED {
            return Err(format!("more than {NESTED} files within files: {}", import.path));
        }
        let named = Path::new(&import.path);
        let own = (!import.system).then(|| if on_command_line { named.to_owned() } else { folder.join(named) });
        let mut places = own.into_iter().chain(dirs.iter().map(|dir| dir.join(named)));
        let first = places.next().unwrap_or_else(|| named.to_owned());
        let Some(path) = std::iter::once(first.clone()).chain(places).find(|path| path.exists()) else {
            // Of a header of the system, the parser says what to do.
            return match import.system {
                true => self.take_in_header(&import.path),
                // The library of bpftrace is a part of the language.
                false if import.path == "stdlib" => Ok(()),
                false if on_command_line && is_known_header(&import.path) => {
                    let start = self.text.len() + 1;
                    self.text.push_str(&format!("\n#include <{}>\n", import.path));
                    let (name, path, at) = (import.path.clone(), named.to_owned(), start..self.text.len());
                    self.files.push(File { name, path, at, included: None, is_header: false });
                    Ok(())
                }
                false => Err(format!("failed to open file '{}': No such file or directory", first.display())),
            };
        };
        if path.is_dir() {
            return self.take_in_folder(&path, dirs, depth);
        }
        let is_header = path.extension().is_some_and(|ext| ext == "h");
        if path.extension().is_some_and(|ext| ext == "c") {
            return Err(format!("{} is C: `sidestep bpf` runs what clang makes of it", path.display()));
        }
        let included = Some(import.path.clone()).filter(|_| is_header || import.system || on_command_line);
        let known = path.canonicalize().unwrap_or_else(|_| path.clone());
        if self.path.as_ref() == Some(&known) || self.files.iter().any(|file| file.path == known) {
            return Ok(());
        }
        if is_header {
            return self.take_in_own_header(&import.path, &known, dirs);
        }
        let bytes = input::read(&path, input::SCRIPT).map_err(|error| format!("{error:#}"))?;
        let text = String::from_utf8(bytes).map_err(|_| format!("{} is no text", path.display()))?;
        let below = path.parent().unwrap_or(Path::new("")).to_owned();
        let start = self.text.len() + 1;
        self.text.push('\n');
        self.text.push_str(&text);
        let name = path.display().to_string();
        let at = start..self.text.len();
        let file = File { name, path: known, at, included, is_header: false };
        // It is known before those in it are read, so that two may name each other.
        let at = self.files.len();
        self.files.push(file);
        for inner in imports(&text) {
            self.take_in(&inner, &below, dirs, depth + 1, false)?;
        }
        let file = self.files.remove(at);
        self.files.push(file);
        Ok(())
    }

    /// Reads a header of the system, and what it includes, if it is installed. Others may be known
    /// to the parser.
    fn take_in_header(&mut self, name: &str) -> Result<(), String> {
        if self.files.iter().any(|file| file.included.as_deref() == Some(name)) {
            return Ok(());
        }
        let read = self.headers.read(name, &mut system::find).map_err(|endless| endless.to_string())?;
        if let Some(flat) = read {
            self.add_header(name, PathBuf::from(name), &flat);
        }
        Ok(())
    }

    /// Reads a header that is none of the system, and what it includes.
    fn take_in_own_header(&mut self, name: &str, path: &Path, dirs: &[PathBuf]) -> Result<(), String> {
        let mut missing = None;
        let mut find = |wanted: &Wanted| {
            let found = system::find_in(dirs, wanted);
            if found.is_none() && wanted.beside.is_some() && !is_known_header(wanted.name) {
                missing.get_or_insert_with(|| wanted.name.to_owned());
            }
            found
        };
        let read = self.headers.read(&path.display().to_string(), &mut find).map_err(|endless| endless.to_string())?;
        if let Some(missing) = missing {
            return Err(format!("failed to open file '{missing}', which {} includes", path.display()));
        }
        let Some(flat) = read else {
            return input::read(path, input::SCRIPT).map(drop).map_err(|error| format!("{error:#}"));
        };
        self.add_header(name, path.to_owned(), &flat);
        Ok(())
    }

    fn add_header(&mut self, name: &str, path: PathBuf, flat: &str) {
        let start = self.text.len() + 1;
        self.text.push('\n');
        self.text.push_str(flat);
        let at = start..self.text.len();
        self.files.push(File { name: name.to_owned(), path, at, included: Some(name.to_owned()), is_header: true });
    }

    /// Reads the scripts of a folder.
    fn take_in_folder(&mut self, folder: &Path, dirs: &[PathBuf], depth: usize) -> Result<(), String> {
        use std::os::unix::fs::MetadataExt;
        let cannot = |error: std::io::Error| format!("cannot read {}: {error}", folder.display());
        if folder.metadata().map_err(cannot)?.mode() & 0o002 != 0 {
            return Err(format!(
                "cowardly refusing to import from a directory with global write permissions: \"{}\"",
                folder.display()
            ));
        }
        let entries = folder.read_dir().map_err(cannot)?.flatten().map(|entry| entry.path());
        let mut scripts: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|ext| ext == "bt")).collect();
        scripts.sort();
        for path in scripts {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let import = Import { path: name, span: Span::default(), system: false };
            self.take_in(&import, folder, dirs, depth + 1, false)?;
        }
        Ok(())
    }

    /// The text of the script without the files that it takes in.
    pub fn own(&self) -> &str {
        let end = self.files.iter().map(|file| file.at.start - 1).min().unwrap_or(self.text.len());
        &self.text[..end]
    }

    /// Where the files are that it takes in.
    pub fn parts(&self) -> Vec<Range<usize>> {
        self.files.iter().map(|file| file.at.clone()).collect()
    }

    /// Which of them are headers of the system.
    pub fn headers(&self) -> Vec<Range<usize>> {
        self.files.iter().filter(|file| file.is_header).map(|file| file.at.clone()).collect()
    }

    /// The names of those that were included.
    pub fn included(&self) -> Vec<String> {
        self.files.iter().filter_map(|file| file.included.clone()).collect()
    }

    /// Says what is wrong, on stderr.
    pub fn say(&self, found: &[Diagnostic]) {
        let row = |text: &str| escape::row(text).into_owned();
        for diagnostic in found {
            // A message may name what is in the target; its end of a line would be the script's.
            let (message, hint) = (row(&diagnostic.message), diagnostic.hint.as_deref().map(row));
            let said = Diagnostic { message, hint, ..diagnostic.clone() };
            let (name, at) = self.file_at(diagnostic.span.start);
            let span =
                Span { start: said.span.start.saturating_sub(at.start), end: said.span.end.saturating_sub(at.start) };
            let text = Diagnostic { span, ..said }.render(&row(name), &self.text[at]);
            let text = escape::block(text.trim_end().as_bytes());
            say_lines(&if self.color { color::diagnostic(&text) } else { text });
        }
    }

    /// bpftrace's object for a helper that failed.
    pub fn failure(&self, span: Span, failure: Failure) -> String {
        let (helper, code) = failure.helper();
        let details = [("helper", json::string(helper)), ("retcode", code.to_string())];
        self.said_at(span, "helper_error", failure.error(), &details)
    }

    /// bpftrace's object for what is said of a place in the script.
    pub fn said_at(&self, span: Span, kind: &str, message: &str, details: &[(&str, String)]) -> String {
        let (name, at) = self.file_at(span.start);
        let before = &self.text[at.start..span.start.clamp(at.start, at.end)];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let said = [("type", json::string(kind)), ("msg", json::string(message))];
        let place = [("filename", json::string(name)), ("line", line.to_string()), ("col", column.to_string())];
        json::object(said.into_iter().chain(details.iter().cloned()).chain(place))
    }

    /// The file that a place is in, and where that is in the text.
    fn file_at(&self, place: usize) -> (&str, Range<usize>) {
        match self.files.iter().find(|file| (file.at.start..=file.at.end).contains(&place)) {
            Some(file) => (&file.name, file.at.clone()),
            None => (&self.name, 0..self.own().len()),
        }
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    let io = error.downcast_ref::<std::io::Error>().or_else(|| error.root_cause().downcast_ref());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}
