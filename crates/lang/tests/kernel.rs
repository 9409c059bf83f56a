//! The kernel as the oracle, where it can be written to: it takes and refuses the same lines and
//! filters, and its errors point to the same places.

mod tables;

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sidestep_lang::uprobe_events::{ErrorKind, Event, Filter};
use tables::{ARGS, FILTERS, LINE, REFUSED, REFUSED_FILTERS};

/// The kernel keeps its last eight errors: those of one test at a time.
static TURN: Mutex<()> = Mutex::new(());

/// A group of events of this process; they are deleted in the end.
struct Group {
    _turn: MutexGuard<'static, ()>,
    tracing: PathBuf,
    name: String,
    events: Vec<String>,
}

impl Group {
    /// `None`, and says so, if the kernel's events cannot be written.
    fn new(purpose: &str) -> Option<Group> {
        let tracing = [Path::new("/sys/kernel/tracing"), Path::new("/sys/kernel/debug/tracing")]
            .into_iter()
            .find(|dir| OpenOptions::new().append(true).open(dir.join("uprobe_events")).is_ok());
        let Some(tracing) = tracing else {
            eprintln!("SKIPPED: uprobe_events cannot be written here, so {purpose} are not compared with the kernel");
            return None;
        };
        let name = format!("sidestep_{}_{purpose}", std::process::id());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Group { _turn: turn, tracing: tracing.to_owned(), name, events: Vec::new() })
    }

    /// Never truncates: that would delete the events of others.
    fn append(&self, file: &str, text: &str) -> std::io::Result<()> {
        OpenOptions::new().append(true).open(self.tracing.join(file))?.write_all(text.as_bytes())
    }

    /// Defines the event of a line, which must be of this group. Whether the kernel takes it.
    fn define(&mut self, event: &str, line: &str) -> bool {
        let taken = self.append("uprobe_events", &format!("{line}\n")).is_ok();
        if taken {
            self.events.push(event.to_owned());
        }
        taken
    }

    /// The last error of a command: its text and the column of its caret.
    fn error(&self, command: &str) -> Option<(String, usize)> {
        let log = fs::read_to_string(self.tracing.join("error_log")).unwrap();
        let lines: Vec<_> = log.lines().collect();
        let shown = format!("  Command: {command}");
        let at = lines.iter().rposition(|line| *line == shown)?;
        let (_, text) = lines[at - 1].rsplit_once("error: ")?;
        Some((text.trim_end().to_owned(), lines[at + 1].find('^')? - "  Command: ".len()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for event in &self.events {
            if let Err(error) = self.append("uprobe_events", &format!("-:{}/{event}\n", self.name)) {
                eprintln!("event {}/{event} was not deleted: {error}", self.name);
            }
        }
    }
}

/// Whether the line has what only this side takes, or only the kernel.
fn differs(line: &str, kind: ErrorKind) -> bool {
    line.contains("$arg") || kind == ErrorKind::StringsAtImmediate
}

#[test]
fn the_kernel_takes_the_same_arguments() {
    let Some(mut group) = Group::new("arguments") else { return };
    for (n, (text, _)) in ARGS.iter().enumerate().filter(|(_, (text, _))| !text.contains("$arg")) {
        let (event, line) = (format!("e{n}"), format!("p:{}/e{n} /bin/sh:0x1000 {text}", group.name));
        assert!(group.define(&event, &line), "{line}: {:?}", group.error(&line));
        let format = group.tracing.join("events").join(&group.name).join(&event).join("format");
        let format = fs::read_to_string(format).unwrap();
        let id = format.lines().find_map(|line| line.strip_prefix("ID: ")).unwrap().parse().unwrap();
        assert_eq!(Event::parse(&line).unwrap().format_file(id), format, "{line}");
    }
}

#[test]
fn the_kernel_refuses_the_same_lines_at_the_same_place() {
    let Some(mut group) = Group::new("lines") else { return };
    let mut compared = 0;
    for (n, (marked, kind)) in REFUSED.iter().enumerate() {
        let Some(rest) = marked.strip_prefix("p /bin/sh:").filter(|_| !differs(marked, *kind)) else { continue };
        let marked = format!("p:{}/e{n} /bin/sh:{rest}", group.name);
        let line = marked.replacen('^', "", 1);
        assert!(!group.define(&format!("e{n}"), &line), "{line}");
        let ours = Event::parse(&line).unwrap_err();
        let (text, column) = group.error(&line).unwrap_or_else(|| panic!("no error for {line}"));
        assert_eq!((column, ours.position), (ours.position, marked.find('^').unwrap()), "{line}: {text}");
        assert!(ours.kind.to_string().starts_with(&text), "{line}: {text}");
        compared += 1;
    }
    assert!(compared > 50);
}

#[test]
fn the_kernel_takes_and_refuses_the_same_filters() {
    let Some(mut group) = Group::new("filters") else { return };
    let line = LINE.replacen("p:ev /bin/app:0x1136", &format!("p:{}/ev /bin/sh:0x1000", group.name), 1);
    assert!(group.define("ev", &line), "{:?}", group.error(&line));
    let event = Event::parse(&line).unwrap();
    let file = format!("events/{}/ev/filter", group.name);
    for (filter, _) in FILTERS {
        assert!(Filter::parse(filter, &event).is_ok());
        let taken = group.append(&file, filter);
        assert!(taken.is_ok(), "{filter}: {:?}", group.error(filter));
    }
    // Where the kernel takes what means nothing, says nothing, or has more fields.
    let more = [ErrorKind::NoFilter, ErrorKind::InvalidFilter, ErrorKind::KernelField];
    for (marked, kind) in REFUSED_FILTERS.iter().filter(|(_, kind)| !more.contains(kind)) {
        let text = marked.replacen('^', "", 1);
        let taken = group.append(&file, &text).is_ok();
        let is_array = text.starts_with("ws ");
        assert_eq!(taken, is_array, "{text}");
        if taken || *kind == ErrorKind::NoFunction {
            continue;
        }
        let ours = Filter::parse(&text, &event).unwrap_err();
        let expected = Some((ours.kind.to_string(), ours.position));
        assert_eq!(group.error(text.trim()), expected, "{}", ours.render(&text));
    }
}
