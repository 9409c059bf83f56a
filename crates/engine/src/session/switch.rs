//! Probes of a session, switched while it goes on.

use super::Session;
use crate::api::Options;
use crate::error::SessionError;
use crate::patch::switch::{Switch, Switched};
use crate::patch::toggle;
use crate::results::status::{self, Installed};
use crate::session::installer::Numbers;

impl Session {
    /// Enables probes, given by their ids, that were disabled: here, or by somebody else. See
    /// [`Switched`].
    ///
    /// # Errors
    /// The target cannot be stopped, or the session is over.
    pub fn enable(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        self.switch(ids, Switch::On)
    }

    /// Disables probes, given by their ids: their sites get their original code. Where others are,
    /// too, these stay if the session is [`Options::extensible`]; if not, the site stays as it is.
    /// What was counted stays.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn disable(&mut self, ids: &[usize]) -> Result<Switched, SessionError> {
        self.switch(ids, Switch::Off)
    }

    /// Makes probes, given by their ids, jumps where that is possible, or traps.
    ///
    /// # Errors
    /// As [`Session::enable`].
    pub fn optimize(&mut self, ids: &[usize], on: bool) -> Result<Switched, SessionError> {
        self.switch(ids, if on { Switch::Jump } else { Switch::Trap })
    }

    /// What is in the target of each probe, by id; `None`: nothing. Whoever has put it there, or
    /// switched it.
    ///
    /// # Errors
    /// The target cannot be looked at, or the session is over.
    pub fn installed(&self, options: &Options) -> Result<Vec<Option<Installed>>, SessionError> {
        let found = status::of_session(&self.process, self.shared()?, options)?.probes;
        let of = |numbers: &Numbers| found.iter().find(|installed| Some(installed.number) == numbers.first()).cloned();
        Ok(self.installer.numbers.iter().map(of).collect())
    }

    fn switch(&mut self, ids: &[usize], to: Switch) -> Result<Switched, SessionError> {
        if !self.attached {
            return Err(SessionError::NotProbed { pid: self.pid() });
        }
        let numbers = ids.iter().filter_map(|id| self.installer.numbers.get(*id)).flat_map(Numbers::all).collect();
        if to == Switch::On {
            // Those of libraries that are away, when they come again.
            self.installer.forget_disabled(&numbers);
        }
        toggle::by_number(&self.process, self.shared()?, &numbers, to)
    }
}
