//! A script of the bpftrace language: read, checked, run.

mod attach;
mod list;
mod run;
mod types;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::error::ErrorKind;
use sidestep_lang::script::ast;
use sidestep_lang::script::check::check_with;
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::lower;
use sidestep_lang::script::parser::parse;

use crate::flags::script::Script;
use crate::out::script::Layout;
use crate::out::sink::say;
use crate::out::time;

/// The text of a script, and what it is called in messages.
pub struct Source {
    name: String,
    text: String,
    /// The arguments of its command line.
    params: Vec<String>,
}

impl Source {
    fn read(flags: &Script) -> anyhow::Result<Source> {
        let mut words = flags.words.iter().cloned();
        let (name, text) = match &flags.program {
            Some(program) => ("stdin".to_owned(), program.clone()),
            None => match words.next() {
                None => super::usage(ErrorKind::MissingRequiredArgument, "give a script: -e PROGRAM, or a FILE"),
                Some(file) if file == "-" => {
                    let mut text = String::new();
                    std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
                    ("stdin".to_owned(), text)
                }
                Some(file) => {
                    let bytes = match std::fs::read(&file) {
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => super::usage(
                            ErrorKind::InvalidSubcommand,
                            &format!("\"{file}\" is neither a command nor the file of a script"),
                        ),
                        read => read.with_context(|| format!("cannot read {file}"))?,
                    };
                    let name = Path::new(&file).file_name().unwrap_or_default().to_string_lossy().into_owned();
                    (name, String::from_utf8(bytes).with_context(|| format!("{file} is no text"))?)
                }
            },
        };
        Ok(Source { name, text, params: words.collect() })
    }

    /// Says what is wrong, on stderr.
    fn say(&self, found: &[Diagnostic]) {
        for diagnostic in found {
            say(diagnostic.render(&self.name, &self.text).trim_end());
        }
    }
}

/// Runs the command. A script that is wrong ends with status 1.
pub fn run(flags: &Script) -> anyhow::Result<ExitCode> {
    if let Some(pattern) = &flags.list {
        return list::run(flags, pattern);
    }
    start(flags, Source::read(flags)?, None)
}

/// A tool that is a script.
pub struct Tool {
    /// Its name.
    pub name: &'static str,
    /// How it shows what it has found.
    pub layout: Box<dyn Layout>,
    /// Functions in its attach points are regular expressions.
    pub regexp: bool,
}

/// Runs the script of a tool.
pub fn run_tool(flags: &Script, tool: Tool) -> anyhow::Result<ExitCode> {
    let (name, text) = (tool.name.to_owned(), flags.program.clone().unwrap_or_default());
    start(flags, Source { name, text, params: Vec::new() }, Some(tool))
}

fn start(flags: &Script, source: Source, tool: Option<Tool>) -> anyhow::Result<ExitCode> {
    let script = match parse(&source.text, &source.params) {
        Ok(script) => script,
        Err(error) => {
            source.say(&[error]);
            return Ok(ExitCode::FAILURE);
        }
    };
    if flags.debug {
        print_tree(&script);
        return Ok(ExitCode::SUCCESS);
    }
    let points = script.blocks.iter().flat_map(|block| block.points.clone()).collect();
    let mut programs = types::Programs::new(points, flags.target.first(), &flags.engine.options());
    let checked = match check_with(&script, &source.params, &mut programs) {
        Ok((checked, warnings)) => {
            source.say(&warnings);
            checked
        }
        Err(errors) => {
            source.say(&errors);
            return Ok(ExitCode::FAILURE);
        }
    };
    let compiled = lower(&checked, time::monotonic())?;
    run::run(flags, source, checked, compiled, tool)
}

fn print_tree(script: &ast::Script) {
    println!("{script:#?}");
}
