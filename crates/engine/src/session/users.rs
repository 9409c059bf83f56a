//! Processes of a session share memory that each of them can write, and the agent of one acts on
//! what another one may have written. So they are processes of one user with the same rights,
//! unless whoever starts the session says otherwise.

use sidestep_sys::Credentials;

use crate::error::SessionError;

/// Are these processes of one user? Processes that have ended do not count.
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

/// Has a process the same rights as the others that still run? No, if its rights cannot be read.
pub(crate) fn is_of(pid: i32, others: &[i32]) -> bool {
    let pids: Vec<i32> = [pid].iter().chain(others).copied().collect();
    Credentials::of(pid).is_ok() && are_the_same(&pids).is_ok()
}
