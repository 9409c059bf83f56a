//! Attach points as requests of a session.

use anyhow::anyhow;
use sidestep_bpf::map::Map;
use sidestep_bpf::verify::VerifyError;
use sidestep_engine::{About, Action, Bundle, BundleMap, Cookie, Facts, FuncPattern, Label, Pattern, Request, pattern};
use sidestep_lang::script::ast::{Point, Provider};
use sidestep_lang::script::checked::Fact;
use sidestep_lang::script::lower::{Compiled, Probe};

/// The pattern of an attach point that needs a target. `regexp`: its function is a regular
/// expression.
pub fn pattern(point: &Point, regexp: bool) -> anyhow::Result<Pattern> {
    let fields: Vec<&str> = point.fields.iter().map(|field| &*field.text).collect();
    let quoted = point.fields.last().is_some_and(|field| field.quoted);
    if point.provider == Provider::Usdt {
        let parsed = match *fields {
            // Without an object, all those of the process are searched.
            [name] | ["", name] | ["", "", name] => pattern::usdt("*", "*", name),
            ["", provider, name] => pattern::usdt("*", provider, name),
            [object, name] | [object, "", name] => pattern::usdt(object, "*", name),
            [object, provider, name] => pattern::usdt(object, provider, name),
            _ => return Err(anyhow!("{} is no attach point", point.text())),
        };
        return Ok(parsed);
    }
    // Without an object, the program itself is searched, then its libraries.
    let (object, function) = match *fields {
        [function] => ("", function.to_owned()),
        [object, function] | [object, "cpp" | "rust", function] => (object, function.to_owned()),
        [object, line, column] if object.contains('@') && is_number(line) && is_number(column) => {
            (object, format!("{line}:{column}"))
        }
        [_, language, _] => return Err(anyhow!("the language '{language}' of {} is not known", point.text())),
        _ => return Err(anyhow!("{} is no attach point", point.text())),
    };
    // A number is an address, or a line of a source file.
    let is_name = quoted || regexp || object.contains('@');
    let address: Option<u64> = if is_name { None } else { function.parse().ok() };
    let text = match address {
        Some(address) => format!("{object}:{address:#x}"),
        None if quoted && !regexp => format!("{object}:\"{function}\""),
        None => format!("{object}:{function}"),
    };
    let mut parsed = pattern::parse(&text, regexp).map_err(|message| anyhow!(message))?;
    if let (FuncPattern::Name(name), true) = (&mut parsed.func, quoted) {
        *name = function;
    }
    Ok(parsed)
}

/// The object of an attach point as it is written, without the source file and line behind it.
pub fn object(point: &Point) -> &str {
    let is_line = point.provider != Provider::Usdt && point.fields.last().is_some_and(|field| is_number(&field.text));
    match point.object().rsplit_once('@') {
        Some((object, _)) if is_line => object,
        _ => point.object(),
    }
}

fn is_number(text: &str) -> bool {
    text.parse::<u64>().is_ok()
}

/// Why the verifier does not take the program of a probe.
pub fn not_accepted(point: &Point, error: &VerifyError) -> anyhow::Error {
    match error.is_too_long() {
        true => anyhow!("the block of {} is too long: {error}", point.text()),
        false => anyhow!("a bug of sidestep: the program of {} is not accepted: {error}", point.text()),
    }
}

/// What a session runs: the programs of attach points that need a target. Also, which of the
/// script's probes each request is.
pub fn bundle(compiled: &Compiled, regexp: bool) -> anyhow::Result<(Bundle, Vec<Request>, Vec<usize>)> {
    let mut bundle = maps(compiled);
    let (mut requests, mut probes) = (Vec::new(), Vec::new());
    let mut known: Vec<(usize, usize)> = Vec::new();
    // What is entered last returns first: so that returns are seen in the order of the script.
    let is_return = |(_, probe): &(usize, &Probe)| probe.point.provider == Provider::Uretprobe;
    let entries = compiled.probes.iter().enumerate().filter(|probe| !is_return(probe));
    let returns = compiled.probes.iter().enumerate().filter(is_return).rev();
    for (number, probe) in entries.chain(returns) {
        if !probe.point.provider.has_target() {
            continue;
        }
        let mut add = |program: usize| match known.iter().find(|(known, _)| *known == program) {
            Some((_, index)) => Ok(*index),
            None => {
                let index = bundle.add(&probe.point.text(), &compiled.programs[program]);
                let index = index.map_err(|error| not_accepted(&probe.point, &error))?;
                known.push((program, index));
                anyhow::Ok(index)
            }
        };
        let program = add(probe.program)?;
        let stamp = probe.entry.map(&mut add).transpose()?;
        // A number for each probe is only given to programs that ask for it.
        let asks = compiled.programs[probe.program]
            .iter()
            .any(|insn| matches!(insn, Ok((_, sidestep_bpf::Insn::CallHelper(174)))));
        let cookie = match probe.point.provider {
            _ if asks => Cookie::Named,
            _ => Cookie::default(),
        };
        let (entry, exit) = match probe.point.provider {
            Provider::Uretprobe => (stamp, Some(program)),
            _ => (Some(program), None),
        };
        requests.push(Request {
            pattern: pattern(&probe.point, regexp)?,
            action: Action { entry, exit, cookie, ..Action::default() },
            label: Some(label(&probe.point)),
            group: Some(probe.block),
        });
        probes.push(number);
    }
    Ok((bundle, requests, probes))
}

/// What the probes of an attach point are called.
pub fn label(point: &Point) -> Label {
    let (kind, object) = (point.provider.name().to_owned(), object(point).to_owned());
    Label { kind, object, name: point.name.clone() }
}

fn about(fact: &Fact) -> About {
    match fact {
        Fact::Symbol(name) => About::Symbol(name.clone()),
        Fact::Goid => About::Goid,
    }
}

/// The maps of a script, without programs.
pub fn maps(compiled: &Compiled) -> Bundle {
    let by_probe = [compiled.names, compiled.places, compiled.facts];
    let shape =
        |(index, map): (usize, &Map)| BundleMap { map: map.clone(), per_probe: by_probe.contains(&Some(index)) };
    let maps = compiled.maps.iter().enumerate().map(shape).collect();
    let facts =
        Facts { places: compiled.places, words: compiled.facts, of: compiled.asked.iter().map(about).collect() };
    Bundle { maps, names: compiled.names, facts, ..Bundle::default() }
}
