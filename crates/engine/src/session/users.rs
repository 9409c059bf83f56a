//! Processes of a session share memory that each of them can write, and the agent of one acts on
//! what another one may have written. So they are processes of one user with the same rights,
//! unless whoever starts the session says otherwise.

use sidestep_sys::Credentials;

use crate::error::SessionError;

/// Are these processes of one user? One that is gone is somebody else's business.
pub(crate) fn are_the_same(pids: &[i32]) -> Result<(), SessionError> {
    let mut known = pids.iter().filter_map(|pid| Some((*pid, Credentials::of(*pid).ok()?)));
    let Some((first, of_first)) = known.next() else { return Ok(()) };
    match known.find(|(_, credentials)| !credentials.is_same_user(&of_first)) {
        Some((other, credentials)) => {
            Err(SessionError::Users { first, other, users: (of_first.uid(), credentials.uid()) })
        }
        None => Ok(()),
    }
}

/// Has a process the rights that another one had? No, if that cannot be told.
pub(crate) fn is_same(pid: i32, as_of: &Credentials) -> bool {
    Credentials::of(pid).is_ok_and(|credentials| credentials.is_same_user(as_of))
}
