//! `--fmt`: a script with its lines laid out anew.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use sidestep_lang::script::fmt::format;
use sidestep_lang::script::parser::{Given, parse_given};

use super::Source;
use crate::flags::script::Script;

/// Arguments of a script that was not given any: numbers are right wherever one may stand.
const ARGUMENTS: usize = 32;

/// Prints the script, or writes it to the file of `-o`, which may be its own. What is no script is
/// said, and nothing is written.
pub fn run(flags: &Script, source: &Source) -> anyhow::Result<ExitCode> {
    let params = match source.params.is_empty() {
        true => vec!["1".to_owned(); ARGUMENTS],
        false => source.params.clone(),
    };
    let options = flags.more.options.clone();
    let (parts, headers, included) = (source.parts(), source.headers(), source.included());
    let given = Given { params, options, parts, headers, included, only_read: true, ..Given::default() };
    let parsed = parse_given(&source.text, &given).and_then(|_| format(source.own()));
    let text = match parsed {
        Ok(text) => text,
        Err(error) => {
            source.say(&[error]);
            return Ok(ExitCode::FAILURE);
        }
    };
    match &flags.output.file {
        Some(file) => write(file, &text).with_context(|| format!("cannot write {}", file.display()))?,
        None => io::stdout().write_all(text.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a file. One that is there keeps its text until the new one is complete: it may be the
/// script itself.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let Some(there) = fs::metadata(file).ok().filter(fs::Metadata::is_file) else { return fs::write(file, text) };
    let real = file.canonicalize()?;
    let mut beside = real.clone().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let done = fs::write(&beside, text)
        .and_then(|()| fs::set_permissions(&beside, there.permissions()))
        .and_then(|()| fs::rename(&beside, &real));
    if done.is_err() {
        let _ = fs::remove_file(&beside);
    }
    done
}
