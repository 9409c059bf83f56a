//! `sidestep list`: what can be probed?

use std::collections::HashMap;
use std::process::ExitCode;

use sidestep_engine::{Listed, Options, Pattern, pattern};

use super::paths::{self, few_of_many};
use crate::flags::List;
use crate::out::sink::Sink;
use crate::out::{escape, json};

/// Runs the command.
pub fn run(flags: &List) -> anyhow::Result<ExitCode> {
    let look = &flags.look;
    let pattern = super::parse_place(&flags.pattern, look.regexp, look.pid);
    let options = look.engine.options();
    let functions = paths::in_each(&pattern, look.pid, |pattern| sidestep_engine::list(pattern, look.pid, &options))?;
    let mut sink = Sink::open(look.file.as_deref(), look.format.format(), false)?;
    let techniques = if look.verbose { techniques(&pattern, look.pid, &options)? } else { HashMap::new() };
    let technique = |function: &Listed| {
        let technique = techniques.get(&(function.object.clone(), function.va));
        technique.map_or("not examined", String::as_str)
    };
    if sink.json() {
        for function in &functions {
            let technique = look.verbose.then(|| technique(function));
            sink.line(&json::line(if function.is_usdt { "usdt" } else { "function" }, object(function, technique)))?;
        }
    } else if look.verbose {
        for function in &functions {
            sink.line(&place(function))?;
            let technique = technique(function);
            sink.line(&format!("    address {}, size {}, {technique}", function.va, function.size))?;
            if function.demangled.is_some() {
                sink.line(&format!("    symbol {}", function.name))?;
            }
        }
    } else {
        print(functions.iter().map(place).collect(), &mut sink)?;
    }
    sink.flush()?;
    let few = functions.iter().filter(|function| function.is_few).map(|function| &*function.object);
    few_of_many(few).iter().for_each(|note| sink.note(note));
    Ok(ExitCode::SUCCESS)
}

/// Prints places in order, each once: several symbols may have one demangled name, for example the
/// variants of a constructor. Their names are escaped; what is said of one may have lines of its
/// own.
pub fn print(mut lines: Vec<String>, sink: &mut Sink) -> std::io::Result<()> {
    lines.sort();
    lines.dedup();
    lines.iter().try_for_each(|line| sink.text(&format!("{line}\n")))?;
    sink.flush()
}

/// Ready to paste back.
fn place(function: &Listed) -> String {
    let name = function.demangled.as_ref().unwrap_or(&function.name);
    let place = match function.is_usdt {
        true => format!("usdt:{}:{}", function.object.display(), function.name),
        false => format!("{}:{}", function.object.display(), pattern::quote(name)),
    };
    escape::row(&place).into_owned()
}

/// The same in JSON.
fn object(function: &Listed, technique: Option<&str>) -> String {
    let name = ("name", json::string(function.demangled.as_ref().unwrap_or(&function.name)));
    let symbol = function.demangled.as_ref().map(|_| ("symbol", json::string(&function.name)));
    let object = ("object", json::string(&function.object.display().to_string()));
    let place = [("address", json::string(&function.va.to_string())), ("size", json::number(function.size))];
    let technique = technique.map(|technique| ("technique", json::string(technique)));
    json::object([object, name].into_iter().chain(symbol).chain(place).chain(technique))
}

type Site = (std::path::PathBuf, sidestep_isa::Va);

fn techniques(pattern: &Pattern, pid: Option<i32>, options: &Options) -> anyhow::Result<HashMap<Site, String>> {
    let explained = paths::in_each(pattern, pid, |pattern| sidestep_engine::explain(pattern, pid, options))?;
    Ok(explained
        .into_iter()
        .map(|site| match site.plan {
            Ok(plan) => ((site.object, plan.asked), plan.for_now().technique.to_string()),
            Err(refusal) => ((site.object, refusal.asked), format!("cannot be probed: {}", refusal.reason)),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_isa::Va;

    #[test]
    fn lines_can_be_pasted_back() {
        let mut function = Listed {
            object: "/lib/a.so".into(),
            name: "_Z1fPc".to_owned(),
            demangled: None,
            va: Va(16),
            size: 3,
            is_usdt: false,
            is_few: false,
        };
        assert_eq!(place(&function), "/lib/a.so:_Z1fPc");
        function.demangled = Some("f(char*)".to_owned());
        assert_eq!(place(&function), "/lib/a.so:\"f(char*)\"");
    }
}
