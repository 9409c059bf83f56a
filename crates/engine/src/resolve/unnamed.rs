//! Names of all code, also where no symbol is.

use std::rc::Rc;

use sidestep_isa::Va;
use sidestep_symbols::{Function, Matcher, Object, asks_for_unnamed, unnamed};

use crate::api::FuncPattern;
use crate::error::SessionError;
use crate::resolve::analyses::Analyses;

/// The functions that no symbol names, by address.
///
/// # Errors
/// The object is corrupt; the user has asked for the end.
pub(crate) fn functions<'o>(object: &'o Rc<Object>, analyses: &mut Analyses) -> Result<&'o [Function], SessionError> {
    if let Some(known) = object.unnamed() {
        return Ok(known);
    }
    let index = analyses.index_to_keep(object)?;
    Ok(object.keep_unnamed(|| index.unnamed()))
}

/// Those that a pattern means, if it asks for them: by what their names begin with, or because
/// there are no others.
///
/// # Errors
/// The object is corrupt; the user has asked for the end.
pub(crate) fn find<'o>(
    object: &'o Rc<Object>,
    matcher: &Matcher,
    analyses: &mut Analyses,
) -> Result<Vec<&'o Function>, SessionError> {
    let asked = asks_for_unnamed(matcher.text()) || object.functions().is_empty() && !matcher.is_name();
    if !asked || object.is_go() {
        return Ok(Vec::new());
    }
    if object.unnamed().is_none() {
        analyses.look_ahead(object)?;
    }
    Ok(functions(object, analyses)?.iter().filter(|function| matcher.finds(&function.name)).collect())
}

/// Whether a pattern for many functions means, of an object whose functions mostly have no
/// symbols, only those that have.
pub(crate) fn finds_only_few(pattern: &FuncPattern, object: &Object) -> bool {
    let is_for_many = |text: &str| !Matcher::glob(text).is_name() && !asks_for_unnamed(text);
    matches!(pattern, FuncPattern::Name(text) if is_for_many(text))
        && !object.functions().is_empty()
        && object.is_mostly_nameless()
}

/// The function around a link-time address, and the offset in it.
pub(crate) fn function_at(object: &Rc<Object>, va: Va, analyses: &mut Analyses) -> Option<(String, u64)> {
    if let Some((function, offset)) = object.function_at(va) {
        return Some((object.shown_name(function).into_owned(), offset));
    }
    if object.check_code(va).is_err() || object.is_go() {
        return None;
    }
    let start = match object.unnamed_around(va).ok()? {
        Some(start) => start,
        None => {
            functions(object, analyses).ok()?;
            object.unnamed_around(va).ok()??
        }
    };
    Some((unnamed(start), va.since(start) as u64))
}

/// `function+0xOFF` of a link-time address, or the address itself.
pub(crate) fn name_at(object: &Rc<Object>, va: Va, analyses: &mut Analyses) -> String {
    match function_at(object, va, analyses) {
        Some((name, 0)) => name,
        Some((name, offset)) => format!("{name}+{offset:#x}"),
        None => va.to_string(),
    }
}
