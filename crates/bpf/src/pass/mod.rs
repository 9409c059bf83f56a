//! Passes between verifying and compiling, from eBPF to eBPF: what the kernel does as fixups of a
//! verified program.
//!
//! [`Verified::link`] puts addresses in, turns lookups in arrays into arithmetic, and removes what
//! that makes constant or dead. [`arguments::complete`] puts in where a static probe has its
//! arguments. [`filter()`] takes the decision whether there is anything to do out of a program, and
//! [`additions()`] finds programs that count and do nothing else.

mod additions;
pub mod arguments;
pub(crate) mod body;
mod entry;
mod filter;
pub(crate) mod known;
pub(crate) mod live;
mod lookup;
mod peephole;
mod simplify;

pub use additions::{Addition, additions};
pub use entry::only_keeps;
pub use filter::filter;

use crate::insn::Imm64;
use crate::program::LinkError;
use crate::verify::Verified;
use body::Body;

/// Programs with more instructions are linked, but not improved: it would take too long.
const MAX_NODES: usize = 1 << 16;

/// Where a map is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// What helpers take as the map: [`Imm64::Map`] becomes this number.
    pub map: u64,
    /// The values, if the map is an array.
    pub values: Option<Values>,
}

/// The values of an array, one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values {
    /// The first: [`Imm64::Value`], or [`Imm64::Thread`] where each thread has its own.
    pub base: Imm64,
    /// Bytes from one to the next, [`crate::map::Map::stride`].
    pub stride: u32,
    /// How many there are.
    pub entries: u32,
}

impl Values {
    /// The address at an offset from the first.
    fn at(&self, offset: u64) -> Option<Imm64> {
        match self.base {
            Imm64::Value(base) => base.checked_add(offset).map(Imm64::Value),
            Imm64::Thread(base) => u32::try_from(u64::from(base).checked_add(offset)?).ok().map(Imm64::Thread),
            _ => None,
        }
    }
}

impl Verified {
    /// The program with the addresses of its maps, which `links` has by index, and without what
    /// they make unnecessary: lookups in arrays, checks for null, additions that can be one
    /// instruction.
    ///
    /// [`Verified::origin`] says where instructions come from, [`Verified::facts`] is about the new
    /// ones.
    ///
    /// # Errors
    /// If the program refers to something that `links` does not have.
    pub fn link(&self, links: &[Link]) -> Result<Verified, LinkError> {
        let improved = Body::new(&self.program, &self.facts, &self.origin).filter(|b| b.nodes.len() <= MAX_NODES);
        let improved = improved.and_then(|mut body| {
            lookup::inline(&mut body, links);
            resolve(&mut body, links);
            simplify::run(&mut body);
            body.finish(self)
        });
        let mut linked = improved.unwrap_or_else(|| self.clone());
        linked.program.link(|imm| address(imm, links))?;
        Ok(linked)
    }
}

/// What a reference becomes.
fn address(imm: Imm64, links: &[Link]) -> Option<Imm64> {
    let link = |map: u32| links.get(map as usize);
    match imm {
        Imm64::Map(map) => Some(Imm64::Value(link(map)?.map)),
        Imm64::MapValue { map, offset } => link(map)?.values?.at(offset.into()),
        _ => None,
    }
}

/// Puts addresses in where they are known.
fn resolve(body: &mut Body, links: &[Link]) {
    for node in &mut body.nodes {
        if let crate::Insn::LoadImm64 { imm, .. } = &mut node.insn {
            *imm = address(*imm, links).unwrap_or(*imm);
        }
    }
}
