//! Why something could not be done.

/// Why a session could not do something. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text of a place does not parse.
    #[error("{message}")]
    Place {
        /// What is wrong with it.
        message: String,
    },
    /// An address that is in no mapped file.
    #[error("there is no code of a file at {address:#x}")]
    NoCode {
        /// The address.
        address: usize,
    },
    /// What the engine said: why the target cannot be probed, or the place.
    #[error("{message}")]
    Engine {
        /// Its words.
        message: String,
    },
    /// The session has no registration of this number, or not any more.
    #[error("the session has no registration {id}")]
    NoRegistration {
        /// The number.
        id: u32,
    },
    /// A handler that is a function of this process cannot run in another one.
    #[error("a handler that is a function runs in its own process only: give an eBPF program instead")]
    NotOwn,
    /// This process was forked from the one that the session belongs to.
    #[error("the session belongs to the process that this one was forked from")]
    Forked,
    /// The controller of the session has died.
    #[error("the controller of the session has died; what it has put in goes on, and the next session removes it")]
    ControllerGone,
    /// This process could not do what is needed.
    #[error("cannot {what}: {source}")]
    Own {
        /// What it is.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}
