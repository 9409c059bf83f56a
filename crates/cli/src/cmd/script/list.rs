//! `sidestep -l`: attach points, ready to be pasted back.

use std::process::ExitCode;

use anyhow::anyhow;
use sidestep_engine::pattern;
use sidestep_lang::script::ast::Provider;
use sidestep_lang::script::parser::parse;

use super::{attach, types};
use crate::flags::Format;
use crate::flags::script::Script;
use crate::out::sink::Sink;

/// Runs the command.
pub fn run(flags: &Script, pattern: &str) -> anyhow::Result<ExitCode> {
    let script = parse(&format!("{pattern} {{}}"), &[]).map_err(|error| anyhow!(error.message))?;
    let pid = flags.target.first();
    let mut sink = Sink::open(flags.output.file.as_deref(), Format::Text, false)?;
    let mut lines = Vec::new();
    for point in script.blocks.iter().flat_map(|block| &block.points) {
        if !point.provider.has_target() {
            return Err(anyhow!("{} probes are not listed: they are in no program", point.provider.name()));
        }
        let pattern = attach::pattern(point, false)?;
        if pattern.object.is_none() && pid.is_none() {
            return Err(anyhow!("{} does not say where to look: name an object, or add -p PID", point.text()));
        }
        let arguments = match point.provider {
            Provider::Uprobe | Provider::Uretprobe if flags.output.verbose => {
                types::arguments(&pattern, point.provider, pid, &flags.engine.options())?
            }
            _ => Default::default(),
        };
        for listed in sidestep_engine::list(&pattern, pid, &flags.engine.options())? {
            let provider = point.provider.name();
            let below = arguments.get(&(listed.object.clone(), listed.name.clone())).map_or("", String::as_str);
            let line = match &listed.demangled {
                None if point.provider == Provider::Usdt => {
                    format!("{provider}:{}:{}", listed.object.display(), listed.name)
                }
                Some(name) => format!("{provider}:{}:cpp:\"{name}\"", listed.object.display()),
                None => format!("{provider}:{}:{}", listed.object.display(), pattern::quote(&listed.name)),
            };
            lines.push(line + below);
        }
    }
    lines.sort();
    lines.dedup();
    for line in lines {
        sink.line(&line)?;
    }
    sink.flush()?;
    Ok(ExitCode::SUCCESS)
}
