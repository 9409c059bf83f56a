//! From patterns to sites: which functions of which objects are meant.

pub(crate) mod analyses;
pub(crate) mod compiled;
pub(crate) mod kernel;
pub(crate) mod label;
pub(crate) mod names;
pub(crate) mod objects;
pub mod pattern;
pub(crate) mod static_probes;
pub(crate) mod typed;
pub(crate) mod unnamed;
pub(crate) mod usdt;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sidestep_isa::object::Extent;
use sidestep_isa::{Isa, Len, Va, sweep};
use sidestep_symbols::usdt::{Probe as Usdt, UsdtError};
use sidestep_symbols::{
    Function, FunctionKind, Kind, MappedObject, Matcher, Object, Source, SymbolError, address_of_unnamed, by_address,
    find_object, matching_objects, resolve_object, zip,
};
use sidestep_sys::Process;

use crate::api::{FuncPattern, Pattern};
use crate::error::{NoMatch, SessionError};
use crate::resolve::analyses::Analyses;
use crate::resolve::label::absolute;
use crate::resolve::objects::{Loaded, Objects, image};

/// A function that a pattern means.
#[derive(Clone)]
pub(crate) struct Match {
    pub object: Rc<Object>,
    /// Where the object is in the process; `None` without a process.
    pub loaded: Option<Loaded>,
    /// Name for the user.
    pub name: String,
    /// Raw symbol name; empty for an address.
    pub raw: String,
    /// Other functions' names at this address that the pattern means, too: raw, demangled.
    pub aliases: Vec<(String, String)>,
    /// Link-time address of the code; for an indirect function, of the implementation in use.
    pub va: Result<Va, &'static str>,
    /// Link-time address of the symbol.
    pub symbol_va: Va,
    /// Size of the function, 0 = unknown.
    pub size: u64,
    /// The USDT probe that it is a site of.
    pub usdt: Option<Rc<Usdt>>,
}

impl Match {
    /// Run-time minus link-time address; of an object that no process has mapped, what it could be.
    pub fn bias(&self) -> i64 {
        match &self.loaded {
            Some(loaded) => loaded.bias,
            None => assumed_bias(&self.object),
        }
    }

    /// Run-time range of the object.
    pub fn image(&self) -> Range<u64> {
        match &self.loaded {
            Some(loaded) => loaded.range.clone(),
            None => assumed_image(&self.object),
        }
    }

    /// A site of our own.
    pub fn own(loaded: &Loaded, name: &str, va: Va) -> Match {
        Match {
            object: Rc::clone(&loaded.object),
            loaded: Some(loaded.clone()),
            name: name.to_owned(),
            raw: String::new(),
            aliases: Vec::new(),
            va: Ok(va),
            symbol_va: va,
            size: 0,
            usdt: None,
        }
    }
}

/// Where an object is assumed to be that no process has mapped.
fn bias_of(isa: Isa) -> i64 {
    if isa.bits() == 32 { 0xf7c0_0000 } else { 0x7f00_0000_0000 }
}

/// Where an object is taken to be that no process has mapped: run-time minus link-time address.
pub(crate) fn assumed_bias(object: &Object) -> i64 {
    if object.is_pie() || object.kind() == Kind::Library { bias_of(object.isa()) } else { 0 }
}

/// The run-time range of such an object.
pub(crate) fn assumed_image(object: &Object) -> Range<u64> {
    image(object, assumed_bias(object))
}

const COPIED: &str = "the process has mapped this code a second time, and executes it there";
const IFUNC_UNKNOWN: &str =
    "an indirect function: the processor decides at run time which code is used; give -p PID of a process that uses it";
const IFUNC_UNBOUND: &str = "an indirect function that the process has not resolved yet";

/// A place in an object that a pattern means.
struct Found {
    /// Name for the user.
    name: String,
    /// Raw symbol name; empty for an address.
    raw: String,
    aliases: Vec<(String, String)>,
    va: Va,
    size: u64,
    kind: FunctionKind,
    usdt: Option<Rc<Usdt>>,
}

impl Found {
    fn function(object: &Object, f: &Function) -> Found {
        Found {
            name: object.shown_name(f).into_owned(),
            raw: f.name.to_string(),
            aliases: Vec::new(),
            va: f.va,
            size: f.size.0,
            kind: f.kind,
            usdt: None,
        }
    }

    fn usdt(probe: Usdt) -> Found {
        Found {
            name: format!("{}:{}", probe.provider, probe.name),
            raw: String::new(),
            aliases: Vec::new(),
            va: probe.va,
            size: 0,
            kind: FunctionKind::Func,
            usdt: Some(Rc::new(probe)),
        }
    }

    /// The names of one address, the preferred one first.
    fn group(object: &Object, names: &[&Function]) -> Option<Found> {
        let (first, others) = names.split_first()?;
        let name = |f: &&Function| (f.name.to_string(), f.short_name().into_owned());
        Some(Found { aliases: others.iter().map(name).collect(), ..Found::function(object, first) })
    }
}

/// Places in one object that a pattern means. Empty: none.
fn in_object(object: &Rc<Object>, func: &FuncPattern, analyses: &mut Analyses) -> Result<Vec<Found>, SessionError> {
    let named = |found: Vec<&Function>| by_address(&found).iter().filter_map(|g| Found::group(object, g)).collect();
    Ok(match func {
        FuncPattern::Name(text) => match unnamed_address(object, text) {
            Some(va) => vec![at_address(object, va, analyses)?],
            None => named(functions(object, &Matcher::glob(text), analyses)?),
        },
        FuncPattern::Regex(text) => named(functions(object, &Matcher::regex(text)?, analyses)?),
        FuncPattern::Offset(symbol, offset) if unnamed_address(object, symbol).is_some() => {
            let va = unnamed_address(object, symbol).map(|va| va.plus(Len(*offset)));
            va.map(|va| at_address(object, va, analyses)).into_iter().collect::<Result<_, _>>()?
        }
        FuncPattern::Offset(symbol, offset) => match object.find_offset(symbol, *offset) {
            Ok(found) => found
                .into_iter()
                .map(|(va, f)| Found {
                    name: format!("{}+{offset:#x}", object.shown_name(f)),
                    va,
                    kind: FunctionKind::Func,
                    ..Found::function(object, f)
                })
                .collect(),
            Err(SymbolError::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(e.into()),
        },
        FuncPattern::Every(text) => match unnamed_address(object, text) {
            Some(va) => every_instruction_around(object, va, analyses)?,
            None => every_instruction(object, &functions(object, &Matcher::glob(text), analyses)?, analyses)?,
        },
        FuncPattern::Addr(va) => vec![at_address(object, *va, analyses)?],
        FuncPattern::EveryAt(va) => every_instruction_around(object, *va, analyses)?,
        FuncPattern::FileOffset(offset) => match object.va_of(*offset) {
            Some(va) => vec![at_address(object, va, analyses)?],
            None => Vec::new(),
        },
        FuncPattern::Line(file, line, column) => {
            let lines = object.line(file, *line, *column)?.into_iter();
            lines.map(|va| at_address(object, va, analyses)).collect::<Result<_, _>>()?
        }
        FuncPattern::Usdt(provider, name) => match object.find_usdt(provider, name) {
            Ok(found) => found.into_iter().map(Found::usdt).collect(),
            Err(UsdtError::NotFound { .. }) => Vec::new(),
            Err(e) => return Err(e.into()),
        },
    })
}

/// The functions that a matcher means, with symbols or without.
fn functions<'o>(
    object: &'o Rc<Object>,
    matcher: &Matcher,
    analyses: &mut Analyses,
) -> Result<Vec<&'o Function>, SessionError> {
    let mut found = object.find(matcher);
    found.extend(unnamed::find(object, matcher, analyses)?);
    Ok(found)
}

/// The address in the name of a function without a symbol.
fn unnamed_address(object: &Object, name: &str) -> Option<Va> {
    let va = address_of_unnamed(name)?;
    (object.check_code(va).is_ok() && object.find(&Matcher::name(name)).is_empty()).then_some(va)
}

/// The instructions of functions, in order, as far as those decode.
fn every_instruction(
    object: &Rc<Object>,
    functions: &[&Function],
    analyses: &mut Analyses,
) -> Result<Vec<Found>, SessionError> {
    let code = object.code()?;
    let mut found = BTreeMap::new();
    for f in functions.iter().filter(|f| f.kind == FunctionKind::Func) {
        if f.source == Source::Code {
            found.extend(every_instruction_around(object, f.va, analyses)?.into_iter().map(|place| (place.va, place)));
            continue;
        }
        let text = code.text_at(f.va, f.va.plus(f.size)).unwrap_or_default();
        for insn in sweep(code.isa, text, f.va).map_while(Result::ok) {
            let name = match insn.va().since(f.va) {
                0 => object.shown_name(f).into_owned(),
                offset => format!("{}+{offset:#x}", object.shown_name(f)),
            };
            let va = insn.va();
            found.entry(va).or_insert_with(|| Found { name, raw: String::new(), va, ..Found::function(object, f) });
        }
    }
    Ok(found.into_values().collect())
}

/// The instructions of the function that holds an address, as symbols and unwind information have
/// it, or as it was found.
fn every_instruction_around(object: &Rc<Object>, va: Va, analyses: &mut Analyses) -> Result<Vec<Found>, SessionError> {
    object.check_code(va)?;
    let code = object.code()?;
    let holds = |extent: &&Extent| extent.start <= va && va.0 - extent.start.0 < extent.len.0;
    // They may be nested: entry points within routines in assembler.
    let insns: Vec<Va> = match code.extents.iter().filter(holds).max_by_key(|extent| extent.start) {
        Some(function) => {
            let text = code.text_at(function.start, function.start.plus(function.len)).unwrap_or_default();
            sweep(code.isa, text, function.start).map_while(Result::ok).map(|insn| insn.va()).collect()
        }
        None => analyses.index_to_keep(object)?.found_around(va),
    };
    insns.into_iter().map(|va| at_address(object, va, analyses)).collect()
}

fn at_address(object: &Rc<Object>, va: Va, analyses: &mut Analyses) -> Result<Found, SessionError> {
    object.check_code(va)?;
    let name = unnamed::name_at(object, va, analyses);
    Ok(Found { name, raw: String::new(), aliases: Vec::new(), va, size: 0, kind: FunctionKind::Func, usdt: None })
}

/// What to say when nothing matches in an object.
fn not_found(object: &Object, func: &FuncPattern) -> SessionError {
    let text = match func {
        FuncPattern::Name(text)
        | FuncPattern::Regex(text)
        | FuncPattern::Offset(text, _)
        | FuncPattern::Every(text) => text.clone(),
        FuncPattern::Addr(va) | FuncPattern::EveryAt(va) => va.to_string(),
        FuncPattern::FileOffset(offset) => format!("offset {:#x}", offset.0),
        FuncPattern::Line(file, line, column) => pattern::line_text(file, *line, *column),
        FuncPattern::Usdt(provider, name) => match object.find_usdt(provider, name) {
            Err(e) => return e.into(),
            Ok(_) => format!("{provider}:{name}"),
        },
    };
    object.not_found(&text).into()
}

/// The file that an object's name means without a process.
pub(crate) fn file(name: &str) -> Result<PathBuf, SessionError> {
    let missing = name.contains('/') && zip::canonicalize(Path::new(name)).is_err();
    let place = match name {
        "*" => "without a process (-p PID), of which it means all",
        _ if missing => "(no such file)",
        _ => "in the file system",
    };
    find_object(name).ok_or_else(|| SessionError::NoObject { name: name.to_owned(), place: place.to_owned() })
}

/// Matches in the files that a pattern names, without a process. Without an object part there is
/// nothing to look in.
pub(crate) fn in_files(pattern: &Pattern, objects: &mut Objects) -> Result<Vec<Match>, SessionError> {
    let missing = |reason| NoMatch::of(&pattern.text, reason, false);
    let object = pattern.object.as_deref().unwrap_or_default();
    let object = objects.open_file(&file(object).map_err(missing)?)?;
    let found = in_object(&object, &pattern.func, &mut objects.analyses.borrow_mut()).map_err(missing)?;
    if found.is_empty() {
        return Err(missing(not_found(&object, &pattern.func)));
    }
    let matches = found
        .into_iter()
        .map(|f| Match {
            object: Rc::clone(&object),
            loaded: None,
            va: if f.kind == FunctionKind::Ifunc { Err(IFUNC_UNKNOWN) } else { Ok(f.va) },
            name: f.name,
            raw: f.raw,
            aliases: f.aliases,
            symbol_va: f.va,
            size: f.size,
            usdt: f.usdt,
        })
        .collect();
    kept(matches, objects.filter.as_deref()).map_err(missing)
}

/// Matches in a process.
pub(crate) fn in_process(
    pattern: &Pattern,
    process: &Process,
    objects: &mut Objects,
) -> Result<Vec<Match>, SessionError> {
    let mapped = Objects::mapped(process)?;
    let (candidates, which) = candidates(pattern.object.as_deref(), &mapped);
    if candidates.is_empty() {
        let name = pattern.object.as_deref().unwrap_or_default();
        let reason = lacking(name, &pattern.func, process, objects).unwrap_or_else(|| no_object(name, process.pid()));
        return Err(NoMatch::of(&pattern.text, reason, false));
    }
    let found = in_objects(&pattern.func, process, objects, &mapped, &candidates, which);
    let kept = found.and_then(|found| kept(found, objects.filter.as_deref()));
    kept.map_err(|reason| NoMatch::of(&pattern.text, reason, which != Which::One))
}

/// Those that the filter lets through.
fn kept(mut matches: Vec<Match>, filter: Option<&str>) -> Result<Vec<Match>, SessionError> {
    let Some(filter) = filter else { return Ok(matches) };
    let regex = Matcher::regex(filter)?;
    matches.retain(|m| regex.finds(&format!("{}:{}", m.object.path().display(), m.name)));
    match matches.is_empty() {
        true => Err(SessionError::Filtered { filter: filter.to_owned() }),
        false => Ok(matches),
    }
}

/// Which objects an object part means.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    /// This one.
    One,
    /// Each of them.
    Each,
    /// The first of them that has it: the main program, or a library.
    First,
}

fn candidates<'m>(name: Option<&str>, mapped: &'m [MappedObject]) -> (Vec<&'m MappedObject>, Which) {
    let Some(name) = name else { return (mapped.iter().collect(), Which::First) };
    let found = resolve_object(name, mapped);
    let program = found.iter().position(|object| object.base_name() == name);
    match program {
        None if found.is_empty() && name.contains(['*', '?', '[']) => {
            (matching_objects(&absolute(name), mapped), Which::Each)
        }
        // A library, or else a program of this name.
        Some(at @ 1..) => (vec![found[0], found[at]], Which::First),
        // The same name twice (dlmopen, or two libraries of one short name): the best is meant.
        _ => (found.into_iter().take(1).collect(), Which::One),
    }
}

fn in_objects(
    func: &FuncPattern,
    process: &Process,
    objects: &mut Objects,
    mapped: &[MappedObject],
    candidates: &[&MappedObject],
    which: Which,
) -> Result<Vec<Match>, SessionError> {
    let mut matches = Vec::new();
    let mut searched = Vec::new();
    let mut first_error = None;
    for (i, candidate) in candidates.iter().enumerate() {
        let loaded = match objects.load(process, candidate) {
            Ok(loaded) => loaded,
            Err(e) if which == Which::One || which == Which::First && i == 0 => return Err(e),
            Err(_) => continue,
        };
        let found = match in_object(&loaded.object, func, &mut objects.analyses.borrow_mut()) {
            Ok(found) => found,
            Err(e) => {
                first_error.get_or_insert(e);
                continue;
            }
        };
        if found.is_empty() {
            searched.push(Rc::clone(&loaded.object));
            continue;
        }
        for f in found {
            let va = match f.kind {
                FunctionKind::Ifunc => implementation(process, objects, mapped, &loaded, &f.raw, f.va),
                _ if loaded.is_copied(f.va) => Err(COPIED),
                _ => Ok(f.va),
            };
            matches.push(Match {
                object: Rc::clone(&loaded.object),
                loaded: Some(loaded.clone()),
                name: f.name,
                raw: f.raw,
                aliases: f.aliases,
                va,
                symbol_va: f.va,
                size: f.size,
                usdt: f.usdt,
            });
        }
        // A name, or a pattern that fits the main program, means one object.
        if which == Which::First && (!func.is_many() || i == 0) {
            break;
        }
    }
    if !matches.is_empty() {
        return Ok(matches);
    }
    match (first_error, searched.as_slice()) {
        (Some(e), _) => Err(e),
        (None, [one]) => Err(not_found(one, func)),
        (None, many) => Err(nowhere(many, func)),
    }
}

/// Why a file that the process has not mapped will not do when it has: the file is there, and has
/// nothing like that.
fn lacking(name: &str, func: &FuncPattern, process: &Process, objects: &mut Objects) -> Option<SessionError> {
    let object = objects.open_in(process, Path::new(name)).ok()?;
    let found = in_object(&object, func, &mut objects.analyses.borrow_mut());
    match found {
        Ok(found) => found.is_empty().then(|| not_found(&object, func)),
        Err(error) => Some(error),
    }
}

pub(crate) fn no_object(name: &str, pid: i32) -> SessionError {
    // The paths of a process are those of its own root.
    let in_process = format!("/proc/{pid}/root/{name}");
    let missing =
        name.contains('/') && ![name, &in_process].iter().any(|path| zip::canonicalize(Path::new(path)).is_ok());
    let place = if missing { "(no such file)".to_owned() } else { format!("among the mappings of process {pid}") };
    SessionError::NoObject { name: name.to_owned(), place }
}

fn nowhere(objects: &[Rc<Object>], func: &FuncPattern) -> SessionError {
    let mut near: Vec<String> = Vec::new();
    let mut what = String::new();
    for object in objects {
        if let SessionError::Symbol(SymbolError::NotFound { name, nearest, .. }) = not_found(object, func) {
            what = format!("function `{name}`");
            near.extend(nearest);
        }
    }
    if let FuncPattern::Usdt(provider, name) = func {
        what = format!("USDT probe `{provider}:{name}`");
    }
    near.truncate(3);
    let list: Vec<String> = near.iter().map(|n| format!("`{n}`")).collect();
    let nearest = if list.is_empty() { String::new() } else { format!("; did you mean {}?", list.join(" or ")) };
    let main = objects.first().map(|o| o.path().display().to_string()).unwrap_or_default();
    let searched = match objects.len() {
        0 | 1 => main,
        n => format!("{main} and {} libraries", n - 1),
    };
    SessionError::NowhereFound { what, searched, nearest }
}

/// The code behind an indirect function: what the dynamic linker stored when it asked the resolver.
fn implementation(
    process: &Process,
    objects: &mut Objects,
    mapped: &[MappedObject],
    loaded: &Loaded,
    raw: &str,
    resolver: Va,
) -> Result<Va, &'static str> {
    let stored = |slot: Va, bias: i64| -> Option<Va> {
        let value = process.read_word(slot.offset(bias)).ok()?;
        let va = loaded.object.pointed_to(Va(value).offset(-loaded.bias))?;
        (loaded.range.contains(&value) && va != resolver).then_some(va)
    };
    let own = loaded.object.irelative_slots(resolver);
    if let Some(va) = own.into_iter().find_map(|slot| stored(slot, loaded.bias)) {
        return Ok(va);
    }
    for other in mapped {
        let Ok(other) = objects.load(process, other) else { continue };
        let slots = other.object.import_slots(raw);
        // A slot that is not bound yet points into the importing object itself.
        if let Some(va) = slots.into_iter().find_map(|slot| stored(slot, other.bias)) {
            return Ok(va);
        }
    }
    Err(IFUNC_UNBOUND)
}
