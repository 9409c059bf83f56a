//! From an object file to verified programs and the places where they run.

use std::collections::HashMap;

use anyhow::{Context, bail, ensure};
use clap::error::ErrorKind;
use sidestep_bpf::object::{Attach, Object, ObjectProgram, ProbeTarget};
use sidestep_bpf::verify::{Rules, verify};
use sidestep_engine::{
    Action, Bundle, BundleMap, CONTEXT, Code, Cookie, FuncPattern, Pattern, Program, REGISTERS, Request, pattern,
};
use sidestep_isa::Va;

use super::set;
use crate::flags::Bpf;
use crate::input;

/// The map in which libbpf's `usdt.bpf.h` looks for arguments.
const USDT_ARGUMENTS: &str = "__bpf_usdt_specs";

/// An object that is ready to run.
pub struct Loaded {
    /// Name of the file.
    pub name: String,
    /// Its bytes.
    pub file: Vec<u8>,
    pub object: Object,
    pub bundle: Bundle,
    pub requests: Vec<Request>,
    /// For each request, which program of the object it is.
    pub chosen: Vec<usize>,
}

/// Reads, verifies, and finds out where.
pub fn load(flags: &Bpf) -> anyhow::Result<Loaded> {
    let path = &flags.object;
    let bytes = input::read(path, input::OBJECT)?;
    let mut object = Object::parse(&bytes).with_context(|| path.display().to_string())?;
    set::variables(&mut object, &bytes, &flags.set)?;
    let maps = object.map_shapes();
    let arguments = maps.iter().position(|map| map.name == USDT_ARGUMENTS);
    let mut places = places(&flags.attach);
    let shared = maps.iter().map(|map| BundleMap { map: map.clone(), per_probe: false }).collect();
    let mut bundle = Bundle { maps: shared, ..Bundle::default() };
    let (mut requests, mut chosen) = (Vec::new(), Vec::new());
    for (index, program) in object.programs.iter().enumerate() {
        let given = places.remove(&program.name);
        // As libbpf has it: such a program waits until somebody asks for it.
        if program.section.starts_with('?') && given.is_none() {
            continue;
        }
        let number = chosen.len();
        chosen.push(index);
        for (pattern, on) in places_of(program, given)? {
            let is_usdt = matches!(pattern.func, FuncPattern::Usdt(..));
            ensure!(
                !is_usdt || on == On::Entry,
                "program {} is for what comes later, returns for example; USDT probes do not have that",
                program.name
            );
            let cookie = match (&pattern.func, arguments) {
                (FuncPattern::Usdt(..), Some(map)) => Cookie::Arguments(map),
                _ => Cookie::default(),
            };
            requests.push(Request::new(pattern, on.action(number, cookie)));
        }
        // The kernel has a verifier of its own, and allows more.
        if !flags.kernel {
            let context_writable = if flags.allow_unsafe { REGISTERS } else { 0..0 };
            let rules = Rules {
                maps: &maps,
                allow_unsafe: flags.allow_unsafe,
                context_size: CONTEXT,
                context_writable,
                ..Rules::default()
            };
            let verified = verify(&program.program, &rules).map_err(|error| refused(program, &error))?;
            bundle.programs.push(Program { name: program.name.clone(), code: Code::Verified(verified) });
        }
    }
    if let Some(unknown) = places.keys().next() {
        let names: Vec<&str> = object.programs.iter().map(|p| p.name.as_str()).collect();
        bail!("there is no program '{unknown}' in {}; it has: {}", path.display(), names.join(", "));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok(Loaded { name, file: bytes, object, bundle, requests, chosen })
}

/// `--attach PROGRAM=PLACE`, by program.
fn places(texts: &[String]) -> HashMap<String, Vec<Pattern>> {
    let one = |text: &String| {
        let (program, place) =
            text.split_once('=').ok_or_else(|| format!("\"{text}\" is not PROGRAM=[OBJECT:]FUNC"))?;
        Ok((program.to_owned(), pattern::place(place, false)?))
    };
    let mut places: HashMap<String, Vec<Pattern>> = HashMap::new();
    for place in texts.iter().map(one) {
        let usage = |message: String| crate::cmd::usage(ErrorKind::ValueValidation, &message);
        let (program, pattern) = place.unwrap_or_else(usage);
        places.entry(program).or_default().push(pattern);
    }
    places
}

/// When a program runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum On {
    Entry,
    Return,
    Both,
    Post,
}

impl On {
    fn new(on_return: bool) -> On {
        if on_return { On::Return } else { On::Entry }
    }

    fn action(self, program: usize, cookie: Cookie) -> Action {
        let (entry, exit) = match self {
            On::Entry | On::Post => (Some(program), None),
            On::Return => (None, Some(program)),
            On::Both => (Some(program), Some(program)),
        };
        Action { entry, exit, post: self == On::Post, cookie, ..Action::default() }
    }
}

/// Where a program runs: what the user says comes before what its section says.
fn places_of(program: &ObjectProgram, given: Option<Vec<Pattern>>) -> anyhow::Result<Vec<(Pattern, On)>> {
    match given {
        None => Ok(vec![place(program, None)?]),
        Some(patterns) => patterns.into_iter().map(|pattern| place(program, Some(pattern))).collect(),
    }
}

fn place(program: &ObjectProgram, given: Option<Pattern>) -> anyhow::Result<(Pattern, On)> {
    let unsaid = || {
        format!(
            "the section {} of program {} does not say where to attach; add --attach {}=OBJECT:FUNC",
            program.section, program.name, program.name
        )
    };
    match &program.attach {
        Attach::Probe { on_return, target } => {
            let pattern = given.or_else(|| target.as_ref().map(of_target)).with_context(unsaid)?;
            Ok((pattern, On::new(*on_return)))
        }
        Attach::Post { target } => {
            Ok((given.or_else(|| target.as_ref().map(of_target)).with_context(unsaid)?, On::Post))
        }
        Attach::Multi { on_return, is_session, target } => {
            let glob = |(object, glob): &(String, String)| of_parts(object, FuncPattern::Name(glob.clone()));
            let pattern = given.or_else(|| target.as_ref().map(glob)).with_context(unsaid)?;
            Ok((pattern, if *is_session { On::Both } else { On::new(*on_return) }))
        }
        Attach::Usdt { target } => {
            let probe = |(object, provider, name): &(String, String, String)| pattern::usdt(object, provider, name);
            Ok((given.or_else(|| target.as_ref().map(probe)).with_context(unsaid)?, On::Entry))
        }
        // Their context is `struct pt_regs`, too, and users of libbpf attach them by hand.
        Attach::Kernel if program.section.starts_with("kprobe") => Ok((given.with_context(unsaid)?, On::Entry)),
        Attach::Kernel if program.section.starts_with("kretprobe") => Ok((given.with_context(unsaid)?, On::Return)),
        Attach::Kernel => bail!(
            "program {} is in section {}, which only the kernel can run; sections for processes are uprobe/…, \
             uretprobe/…, uprobe.multi/…, uretprobe.multi/…, uprobe.session/…, uprobe.post/… and usdt/…",
            program.name,
            program.section
        ),
    }
}

fn of_target(target: &ProbeTarget) -> Pattern {
    let func = match target.function.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
        Some(va) => FuncPattern::Addr(Va(va + target.offset)),
        None if target.offset != 0 => FuncPattern::Offset(target.function.clone(), target.offset),
        None => FuncPattern::Name(target.function.clone()),
    };
    of_parts(&target.object, func)
}

fn of_parts(object: &str, func: FuncPattern) -> Pattern {
    let name = match &func {
        FuncPattern::Name(name) | FuncPattern::Regex(name) => name.clone(),
        FuncPattern::Every(name) => format!("{name}+*"),
        FuncPattern::Offset(name, offset) => format!("{name}+{offset:#x}"),
        FuncPattern::Addr(va) => va.to_string(),
        FuncPattern::EveryAt(va) => format!("{va}+*"),
        FuncPattern::FileOffset(offset) => format!("{:#x}", offset.0),
        FuncPattern::Line(file, line, column) => pattern::line_text(file, *line, *column),
        FuncPattern::Usdt(provider, name) => format!("{provider}:{name}"),
    };
    Pattern { text: format!("{object}:{name}"), object: Some(object.to_owned()), func }
}

/// What the verifier says, with the line of the source.
fn refused(program: &ObjectProgram, error: &sidestep_bpf::verify::VerifyError) -> anyhow::Error {
    let line = program.line_of(error.insn).map(|line| {
        let file = line.file.rsplit('/').next().unwrap_or(&line.file);
        format!(" ({file}:{}: {})", line.line, line.text.trim())
    });
    anyhow::anyhow!("program {}: {error}{}", program.name, line.unwrap_or_default())
}
