//! What a plan has to fit in with: the other sites of an object, and the address space around it.

use std::ops::Range;

use sidestep_isa::Va;

use crate::fixed::Fixed;
use crate::reason::Reason;

/// Bytes of code that a stub takes: `jmp [rip + 0]` and an address, which reach everything.
pub const STUB: u64 = 14;

/// The surroundings of an object that is planned for. All addresses are link-time ones of the
/// object.
pub trait Room {
    /// Whether the probe at `site` may change, or rely on, the bytes of a range. If not, why.
    fn is_free(&self, site: Va, range: Range<Va>) -> Result<(), Reason>;

    /// From now on the range belongs to the probe at `site`.
    fn claim(&mut self, site: Va, range: Range<Va>);

    /// An address for [`STUB`] bytes of code to which a jump that ends at `end` can lead. `None` =
    /// there is none.
    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va>;
}
