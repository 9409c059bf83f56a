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
    },
}
