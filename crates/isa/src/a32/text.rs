//! Instructions as text, in the syntax of the GNU assembler.
//!
//! What functions begin and end with and what goes elsewhere is written out. All others are their
//! word and their class: an assembler reads `.inst` as well.

use core::fmt;

use super::class::{Class, Op};
use super::decode::Insn;
use super::{PC, SP};
use crate::Va;

const CONDITIONS: [&str; 16] =
    ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "", "nv"];

fn name(register: u8) -> &'static str {
    const NAMES: [&str; 16] =
        ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "fp", "ip", "sp", "lr", "pc"];
    NAMES[usize::from(register & 15)]
}

/// The registers of a set, in ascending order.
fn list(registers: u16) -> String {
    let names = (0..16_u8).filter(|register| registers >> register & 1 == 1).map(name);
    names.collect::<Vec<_>>().join(", ")
}

impl Op {
    fn write(&self, f: &mut fmt::Formatter<'_>, va: Va) -> fmt::Result {
        let condition = CONDITIONS[usize::from(self.condition & 15)];
        let wide = if self.thumb && self.len == 4 { ".w" } else { "" };
        let target = self.target(va).or_else(|| self.operand(va)).unwrap_or_default();
        let first = |registers: u16| name(registers.trailing_zeros() as u8);
        let on_stack = self.base == Some(SP) && self.write_back;
        match self.class {
            Class::Branch => write!(f, "b{condition}{wide} {target}"),
            Class::BranchLink => write!(f, "bl{condition} {target}"),
            Class::BranchExchange => write!(f, "blx{condition} {target}"),
            Class::BranchRegister if !self.is_jazelle() => write!(f, "bx{condition} {}", first(self.reads)),
            Class::BranchLinkRegister => write!(f, "blx{condition} {}", first(self.reads)),
            Class::CompareZero => {
                let not = if self.bit(11) { "n" } else { "" };
                write!(f, "cb{not}z {}, {target}", first(self.reads))
            }
            Class::StoreMultiple if on_stack && self.before => {
                let data = self.reads & !if self.stores_stack_pointer() { 0 } else { 1 << SP };
                write!(f, "push{condition}{wide} {{{}}}", list(data))
            }
            Class::LoadMultiple if on_stack && !self.before => {
                write!(f, "pop{condition}{wide} {{{}}}", list(self.writes & !(1 << SP)))
            }
            Class::Compute if self.copied().is_some() => {
                let (from, to) = self.copied().unwrap_or_default();
                write!(f, "mov{condition}{wide} {}, {}", name(to), name(from))
            }
            Class::SupervisorCall => {
                write!(f, "svc{condition} #{}", self.word & if self.thumb { 255 } else { 0xff_ffff })
            }
            Class::Hint if self.hint() == 0 => write!(f, "nop{condition}{wide}"),
            Class::Load if self.base == Some(PC) && self.offset().is_some() && self.writes.count_ones() == 1 => {
                write!(f, "ldr{condition}{wide} {}, {target}", first(self.writes))
            }
            Class::Data => write!(f, ".word 0x{:x}", self.word),
            class => {
                let (suffix, digits) = match (self.thumb, self.len) {
                    (true, 2) => (".n", 4),
                    (true, _) => (".w", 8),
                    _ => ("", 8),
                };
                write!(f, ".inst{suffix} 0x{:0digits$x} @ {class:?}", self.word)
            }
        }
    }

    /// `bxj`.
    fn is_jazelle(&self) -> bool {
        if self.thumb { self.len == 4 } else { self.word >> 4 & 15 == 2 }
    }

    fn stores_stack_pointer(&self) -> bool {
        self.len == 4 && self.word & 1 << SP != 0
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(it) = self.it() {
            // The letters behind the first one: the lowest bit of each condition.
            let first = it >> 4 & 1;
            let others = 3 - (it & 15).trailing_zeros().min(3);
            let letters = (0..others).map(|i| if it >> (3 - i) & 1 == first { 't' } else { 'e' });
            let letters: String = letters.collect();
            let condition = CONDITIONS[usize::from(it >> 4 & 15)];
            write!(f, "it{letters} {}", if condition.is_empty() { "al" } else { condition })?;
        }
        for (i, (va, op)) in self.places().enumerate() {
            if i > 0 || self.it().is_some() {
                f.write_str("; ")?;
            }
            op.write(f, va)?;
        }
        Ok(())
    }
}
