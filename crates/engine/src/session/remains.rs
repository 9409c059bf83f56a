//! What earlier sessions have left in a process.

use sidestep_sys::{Ending, Process};

use crate::api::Stops;
use crate::error::SessionError;
use crate::patch::detach;
use crate::patch::left::settled;
use crate::patch::switch::{take_last_turn, take_turn};
use crate::target::discovery::Found;

/// Removes what earlier controllers left. Sessions of controllers that still run stay. What only
/// looks like the remains of a session stays, too: then this returns a clause for the user.
///
/// # Errors
/// This controller has a session in the process already, or the process cannot be stopped or read.
pub(crate) fn clean_up(process: &Process) -> Result<Option<String>, SessionError> {
    let (all, maps) = settled(process)?;
    // One whose detach was given up is at work no more.
    let is_left =
        |found: &Found| found.is_left_over(process) || found.is_mine() && found.detaching || found.is_unneeded(&all);
    if let Some(mine) = all.iter().find(|found| !is_left(found) && found.is_mine()) {
        return Err(SessionError::Busy { pid: process.pid(), controller: mine.controller_pid });
    }
    if all.is_empty() {
        return detach::close_descriptors(process).map(|()| None);
    }
    let note = |controller: i32, why: &str| {
        format!("what looks like a session of process {controller} is damaged or made up ({why}), and stays as it is")
    };
    let made_up = |found: &Found| is_left(found).then(|| found.made_up(process, &maps)).flatten();
    let noted = all.iter().find_map(|found| Some(note(found.controller_pid, made_up(found)?)));
    match detach::remove(process, take_turn, |found| is_left(found) && made_up(found).is_none()) {
        // What stays of it has no site of a user: it is another session, from which nothing comes
        // any more.
        Ok(_) | Err(SessionError::StillInside { .. }) => Ok(noted),
        // A process that is gone, that is none of ours to stop, or that another controller is
        // changing, is no matter of what it carries.
        Err(error @ (SessionError::Stop(_) | SessionError::Open(_) | SessionError::Occupied { .. })) => Err(error),
        Err(_) if !process.is_alive() || process.is_replaced() => Ok(noted),
        Err(error) => {
            let controller = all.iter().find(|found| is_left(found)).map_or(0, |found| found.controller_pid);
            Ok(Some(note(controller, &error.to_string())))
        }
    }
}

/// Removes what this controller has in a process.
pub(crate) fn remove(process: &Process) -> Result<Stops, SessionError> {
    let _ending = Ending::begin();
    detach::remove(process, take_last_turn, Found::is_mine)
}
