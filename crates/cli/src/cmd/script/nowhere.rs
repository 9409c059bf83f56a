//! Attach points that mean nothing in the target, said where they stand in the script.

use std::process::ExitCode;

use sidestep_engine::SessionError;
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
        let is_it =
            |point: &&Point| attach::pattern(point, self.regexp).is_ok_and(|pattern| pattern.text == missing.pattern);
        let mut points = self.compiled.probes.iter().map(|probe| &probe.point);
        let Some(point) = points.by_ref().filter(|point| point.provider.has_target()).find(is_it) else {
            return Err(error);
        };
        let what = format!("No matches for {}", point.text().replacen(':', " ", 1));
        let Some(source) = &self.source else { return Err(error.context(what)) };
        let diagnostic = Diagnostic::error(point.span, format!("{what}: {}", missing.reason));
        source.say(&[match may_come {
            Some(_) => diagnostic.hint(MayCome::HINT),
            None => diagnostic,
        }]);
        Ok(ExitCode::FAILURE)
    }
}
