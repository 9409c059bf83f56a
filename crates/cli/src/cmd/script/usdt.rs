//! Arguments of USDT probes: their notes say how long they are, and whether they have a sign.

use std::collections::HashMap;
use std::path::PathBuf;

use sidestep_engine::{ArgumentKind, FuncPattern, Options, Pattern, StaticProbe, UsdtArgument, static_probes};
use sidestep_lang::script::ctype::CType;
use sidestep_lang::script::program::Parameter;

/// The arguments that the sites of a pattern have: `arg0` and so on. One that they do not agree on
/// is a plain number.
///
/// # Errors
/// There is no such probe, or its note is not understood.
pub fn parameters(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<Parameter>, String> {
    let sites = sites(pattern, pid, options)?;
    let mut types: Vec<CType> = Vec::new();
    for (number, site) in sites.iter().enumerate() {
        let arguments = site.probe.arguments.as_ref().map_err(ToString::to_string)?;
        let own: Vec<CType> = arguments.iter().map(ctype).collect();
        if number == 0 {
            types = own;
            continue;
        }
        let most = types.len().max(own.len());
        let plain = CType::Int { bytes: 8, signed: true };
        let both = |at: usize| types.get(at).filter(|ty| own.get(at) == Some(ty)).unwrap_or(&plain).clone();
        types = (0..most).map(both).collect();
    }
    let parameter = |(number, ty)| Parameter::new(format!("arg{number}"), ty);
    Ok(types.into_iter().enumerate().map(parameter).collect())
}

/// The same for `-lv`, by object and name: a line each.
pub fn lines(pattern: &Pattern, pid: Option<i32>, options: &Options) -> HashMap<(PathBuf, String), String> {
    let mut names: Vec<(PathBuf, String, String)> = Vec::new();
    for site in sites(pattern, pid, options).unwrap_or_default() {
        let name = (site.object, site.probe.provider.to_string(), site.probe.name.to_string());
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let text = |(object, provider, name): (PathBuf, String, String)| {
        let func = FuncPattern::Usdt(provider.clone(), name.clone());
        let one = Pattern { object: Some(object.display().to_string()), func, ..pattern.clone() };
        let parameters = parameters(&one, pid, options).unwrap_or_default();
        let line = |parameter: &Parameter| format!("\n    {} {}", parameter.ty.name(), parameter.name);
        ((object, format!("{provider}:{name}")), parameters.iter().map(line).collect())
    };
    names.into_iter().map(text).collect()
}

fn sites(pattern: &Pattern, pid: Option<i32>, options: &Options) -> Result<Vec<StaticProbe>, String> {
    let FuncPattern::Usdt(provider, name) = &pattern.func else { return Ok(Vec::new()) };
    let object = pattern.object.as_deref().filter(|object| *object != "*");
    static_probes(object, pid, (provider, name), options).map_err(|error| error.to_string())
}

fn ctype(argument: &UsdtArgument) -> CType {
    match (argument.kind, argument.size) {
        (ArgumentKind::Float, bytes @ (4 | 8)) => CType::Float { bytes: bytes as u8 },
        (kind, bytes @ (1 | 2 | 4 | 8)) => CType::Int { bytes: bytes as u8, signed: kind == ArgumentKind::Signed },
        _ => CType::Int { bytes: 8, signed: true },
    }
}
