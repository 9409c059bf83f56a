//! What is written at a site of arm64: one instruction.

use sidestep_isa::a64::patch::jump;
use sidestep_isa::patch::OutOfReach;
use sidestep_isa::{Isa, Va};

use crate::policy::plan::{Patch, Plan};

/// See [`crate::codegen::detour::patch`].
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<Vec<u8>, OutOfReach> {
    match plan.patch {
        Patch::Trap => Ok(Isa::A64.limits().breakpoint.to_vec()),
        Patch::Jump { .. } | Patch::Short { .. } => jump(plan.site.offset(bias), at).map(|bytes| bytes.to_vec()),
    }
}
