//! Which part of a probe a site is.

/// The part that a site has in a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// The entry of a function whose exits are probed, too.
    Enter,
    /// An exit.
    Exit {
        /// How many displaced instructions run before the handler.
        before: usize,
        /// Only hits of calls that were seen to begin are returns.
        paired: bool,
        /// Which calls end there.
        ends: Ends,
    },
}

/// Which calls of its function end at an exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ends {
    /// Those that come there. Others do not.
    Own,
    /// Calls of other functions come there, too.
    Shared,
    /// Those that have left the function by a jump that was seen ([`Ends::Not`]).
    Jumped,
    /// None: a jump to another function, where they go on.
    Not,
}
