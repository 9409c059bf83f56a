//! Users, groups and capabilities of a process, as the kernel says. They decide which processes it
//! may trace (ptrace(2), "Ptrace access mode checking").

use std::fs;
use std::io;

use crate::procfs::status_field;

/// Number of the capability to trace any process (capabilities(7)).
const CAP_SYS_PTRACE: u32 = 19;

/// Users, groups and capabilities of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective, saved, and that of file systems.
    uids: Vec<u32>,
    /// The same of groups.
    gids: Vec<u32>,
    permitted: u64,
    effective: u64,
    /// Its user namespace; `None` if it is not shown to us.
    namespace: Option<std::path::PathBuf>,
}

impl Credentials {
    /// Those that a process has at the moment.
    ///
    /// # Errors
    /// It is gone, or its status is not understood.
    pub fn of(pid: i32) -> io::Result<Credentials> {
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let unknown = || io::Error::from(io::ErrorKind::InvalidData);
        let field = |name: &str| status_field(&status, name).ok_or_else(unknown);
        let ids = |name: &str| -> io::Result<Vec<u32>> {
            field(name)?.split_ascii_whitespace().map(|id| id.parse().map_err(|_| unknown())).collect()
        };
        let set = |name: &str| u64::from_str_radix(&field(name)?, 16).map_err(|_| unknown());
        Ok(Credentials {
            uids: ids("Uid")?,
            gids: ids("Gid")?,
            permitted: set("CapPrm")?,
            effective: set("CapEff")?,
            namespace: fs::read_link(format!("/proc/{pid}/ns/user")).ok(),
        })
    }

    /// The real user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uids.first().copied().unwrap_or(u32::MAX)
    }

    /// Has a process with these the same rights as one with those?
    #[must_use]
    pub fn is_same_user(&self, other: &Credentials) -> bool {
        (&self.uids, &self.gids, self.permitted) == (&other.uids, &other.gids, other.permitted)
            && self.namespace.is_some()
            && self.namespace == other.namespace
    }

    /// Would the kernel let a process with these trace one with those? What cannot be told is no.
    #[must_use]
    pub fn may_trace(&self, other: &Credentials) -> bool {
        if self.namespace.is_none() || self.namespace != other.namespace {
            return false;
        }
        let all = |ids: &[u32], own: Option<&u32>| own.is_some_and(|own| ids.iter().take(3).all(|id| id == own));
        let is_owner = all(&other.uids, self.uids.first()) && all(&other.gids, self.gids.first());
        self.effective >> CAP_SYS_PTRACE & 1 != 0 || is_owner && other.permitted & !self.permitted == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, permitted: u64) -> Credentials {
        let (uids, gids, namespace) = (vec![uid; 4], vec![uid; 4], Some("user:[1]".into()));
        Credentials { uids, gids, permitted, effective: permitted, namespace }
    }

    #[test]
    fn nobody_traces_more_than_himself() {
        let (root, one, two) = (user(0, u64::MAX), user(1, 0), user(2, 0));
        assert!(root.may_trace(&one) && one.may_trace(&one));
        assert!(!one.may_trace(&root) && !one.may_trace(&two));
        // With a capability of its own it is somebody else.
        assert!(!one.may_trace(&user(1, 1)) && !one.is_same_user(&user(1, 1)));
        let set_user = Credentials { uids: vec![1, 0, 0, 0], ..one.clone() };
        assert!(!one.may_trace(&set_user) && !one.is_same_user(&set_user));
        let elsewhere = Credentials { namespace: Some("user:[2]".into()), ..one.clone() };
        assert!(!root.may_trace(&elsewhere) && !one.is_same_user(&elsewhere));
        let unseen = Credentials { namespace: None, ..one.clone() };
        assert!(!unseen.is_same_user(&unseen) && !unseen.may_trace(&unseen));
    }

    #[test]
    fn ours_are_ours() {
        let own = Credentials::of(std::process::id() as i32).unwrap();
        assert!(own.is_same_user(&own) && own.may_trace(&own));
        assert!(Credentials::of(-1).is_err());
    }
}
