//! Attach points that mean nothing in the target, said where they stand in the script.

use std::process::ExitCode;

use sidestep_engine::{FuncPattern, NoMatch, SessionError};
use sidestep_isa::Va;
use sidestep_lang::script::ast::Point;
use sidestep_lang::script::diagnostic::Diagnostic;
use sidestep_lang::script::lower::Compiled;

use super::{Source, attach};
use crate::cmd::watch::MayCome;

/// What is needed to find them.
pub struct Nowhere<'a> {
    pub compiled: &'a Compiled,
    /// Functions in attach points are regular expressions.
    pub regexp: bool,
    /// The script; `None`: it is a tool's, which nobody has written.
    pub source: Option<Source>,
}

impl Nowhere<'_> {
    /// Says it, with the exit status; or leaves it an error, if it is about something else.
    pub fn said(&self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        let may_come = error.downcast_ref::<MayCome>();
        let found = may_come.map(|later| &later.0).or(error.downcast_ref::<SessionError>());
        let Some(SessionError::NoMatch(missing)) = found else { return Err(error) };
        let Some(point) = self.point(&missing.pattern) else { return Err(error) };
        let what = match address(point, self.regexp) {
            Some(va) => format!("Could not resolve address: {}:{va}", point.object()),
            None => format!("No matches for {}", point.text().replacen(':', " ", 1)),
        };
        let Some(source) = &self.source else { return Err(error.context(what)) };
        let diagnostic = Diagnostic::error(point.span, format!("{what}: {}", missing.reason));
        source.say(&[match may_come {
            Some(_) => diagnostic.hint(MayCome::HINT),
            None => diagnostic,
        }]);
        Ok(ExitCode::FAILURE)
    }

    /// Says that the script does without an attach point.
    pub fn skipped(&self, missing: &NoMatch) {
        let (Some(point), Some(source)) = (self.point(&missing.pattern), &self.source) else { return };
        let what = format!("No matches for {}. Skipping.", point.text().replacen(':', " ", 1));
        source.say(&[Diagnostic::warning(point.span, what).hint(missing.reason.to_string())]);
    }

    /// The attach point of the script that a pattern stands for.
    fn point(&self, pattern: &str) -> Option<&Point> {
        let is_it = |point: &&Point| attach::pattern(point, self.regexp).is_ok_and(|found| found.text == pattern);
        let points = self.compiled.probes.iter().map(|probe| &probe.point);
        points.filter(|point| point.provider.has_target()).find(is_it)
    }
}

/// The address that an attach point names.
fn address(point: &Point, regexp: bool) -> Option<Va> {
    match attach::pattern(point, regexp).ok()?.func {
        FuncPattern::Addr(va) if !point.object().is_empty() => Some(va),
        _ => None,
    }
}
