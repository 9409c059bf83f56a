//! Detours of the instruction set of the tests: a `hit` for each handler, the copies of the
//! displaced instructions, and a jump back.

use sidestep_isa::patch::OutOfReach;
use sidestep_isa::toy::{WORD, jump, op, word_24};
use sidestep_isa::{Isa, Len, Va, relocate};

use crate::codegen::detour::{Detour, DetourError};
use crate::codegen::handler::Handler;
use crate::policy::plan::{Patch, Plan};

/// See [`crate::detour::build`].
pub(crate) fn build(plan: &Plan, handlers: &[Handler], at: Va, bias: i64) -> Result<Detour, DetourError> {
    let (mut bytes, mut copies) = (Vec::new(), Vec::new());
    let site = plan.site.offset(bias);
    let here = |bytes: &Vec<u8>| at.plus(Len(bytes.len() as u64));
    for handler in handlers {
        let hit = word_24(op::HIT, handler.probe().into()).ok_or(DetourError::TooLong { site })?;
        bytes.extend(hit);
    }
    for insn in &plan.displaced {
        copies.push((insn.va.since(plan.site) as u16, bytes.len() as u16));
        let (va, to) = (insn.va.offset(bias), here(&bytes));
        relocate(Isa::Toy, insn.bytes(), va, to, &mut bytes).map_err(|source| DetourError::Relocate { va, source })?;
    }
    if let Some(resume) = plan.resume {
        copies.push((resume.since(plan.site) as u16, bytes.len() as u16));
        bytes.extend(jump(here(&bytes), resume.offset(bias))?);
    }
    let traps = if plan.patch == Patch::Trap { vec![(0, 0)] } else { Vec::new() };
    Ok(Detour {
        at,
        bytes,
        recorded: false,
        isa: Isa::Toy,
        leads: true,
        site,
        patch: patch(plan, bias, at)?,
        relies_on: Vec::new(),
        stub: None,
        island: None,
        traps,
        copies,
        guards: Vec::new(),
        gate: None,
        switches: Vec::new(),
    })
}

/// See [`crate::codegen::detour::patch`].
pub(crate) fn patch(plan: &Plan, bias: i64, at: Va) -> Result<Vec<u8>, OutOfReach> {
    let bytes = match plan.patch {
        Patch::Trap => Isa::Toy.limits().breakpoint.to_vec(),
        Patch::Jump { .. } | Patch::Short { .. } => jump(plan.site.offset(bias), at)?,
    };
    debug_assert_eq!(bytes.len(), WORD);
    Ok(bytes)
}
