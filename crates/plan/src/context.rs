//! What of the context of a hit a handler reads.

use sidestep_isa::RegisterSet;
use sidestep_isa::live::Dead;
use sidestep_wire::{Hit, Regs, arch};

/// Words of [`Regs`], a bit each: what a program reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Context(pub u64);

impl Context {
    /// All words.
    pub const ALL: Context = Context((1 << (size_of::<Regs>() / 8)) - 1);

    /// All that helpers may look at: not the flags.
    pub const HELPERS: Context = Context(Context::ALL.0 & !bit(arch::FLAGS));

    /// Those of them that mean something at the entry of a function: not the result, nor the
    /// registers that callers give nothing in.
    pub const HELPERS_AT_ENTRY: Context = {
        let (mut words, mut i) = (Context::HELPERS.0, 0);
        while i < arch::UNUSED_AT_ENTRY.len() {
            words &= !bit(arch::UNUSED_AT_ENTRY[i]);
            i += 1;
        }
        Context(words)
    };

    /// Where Go's code has its goroutine, which the agent looks at.
    pub const GOROUTINE: Context = Context(bit(arch::GOROUTINE));

    /// What either reads.
    #[must_use]
    pub fn union(self, other: Context) -> Context {
        Context(self.0 | other.0)
    }

    /// Machine registers among them but the stack pointer, one bit each by their number.
    #[must_use]
    pub fn registers(self) -> RegisterSet {
        let reads = |at: usize| at != arch::STACK_POINTER && self.has(at);
        arch::REGISTERS.iter().enumerate().fold(0, |set, (number, at)| set | RegisterSet::from(reads(*at)) << number)
    }

    pub(crate) fn has(self, offset: usize) -> bool {
        self.0 >> (offset / 8) & 1 == 1
    }

    /// What stays dead although this is read.
    pub(crate) fn spare(self, dead: Dead) -> Dead {
        Dead { regs: dead.regs & !self.registers(), flags: dead.flags && !self.has_flags() }
    }

    /// Whether the flags are read.
    #[must_use]
    pub fn has_flags(self) -> bool {
        self.has(arch::FLAGS)
    }

    /// Whether the stack pointer is read.
    pub(crate) fn has_sp(self) -> bool {
        self.has(arch::STACK_POINTER)
    }

    /// Whether the word behind the registers is read.
    pub(crate) fn has_cookie(self) -> bool {
        self.has(Hit::COOKIE)
    }

    /// Whether what is different behind a return is among them: the instruction pointer, the stack
    /// pointer, or the word that programs keep from the entry to the return.
    #[must_use]
    pub fn has_frame(self) -> bool {
        self.has_ip() || self.has_cookie() || self.has(arch::STACK_POINTER)
    }

    /// Whether registers are among them in which functions return their result.
    #[must_use]
    pub fn has_result(self) -> bool {
        arch::RESULTS.into_iter().any(|at| self.has(at))
    }

    /// Whether the address of the probed instruction is among them.
    #[must_use]
    pub fn has_ip(self) -> bool {
        self.has(arch::INSTRUCTION_POINTER)
    }
}

/// The bit of the word at this offset.
const fn bit(offset: usize) -> u64 {
    1 << (offset / 8)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use sidestep_isa::Isa;

    use super::*;

    #[test]
    fn the_words_of_the_context_are_those_that_it_is_made_of() {
        for isa in [Isa::X86, Isa::X64] {
            let context = isa.limits().context;
            assert_eq!(8 * context.names.len(), size_of::<Regs>());
            assert_eq!(usize::from(context.floats_at), Hit::FLOATS);
            assert_eq!(8 * context.floats.len(), size_of_val(&Hit::default().floats));
            for (name, at) in [
                ("r15", offset_of!(Regs, r15)),
                ("bp", offset_of!(Regs, rbp)),
                ("di", offset_of!(Regs, rdi)),
                ("orig_ax", offset_of!(Regs, orig_rax)),
                ("pc", offset_of!(Regs, rip)),
                ("flags", offset_of!(Regs, eflags)),
                ("ss", offset_of!(Regs, ss)),
            ] {
                assert_eq!(context.offset(name).map(usize::from), Some(at), "{name}");
            }
            let named = |at: u16| context.words().find(|(_, known)| *known == at).map(|(name, _)| name);
            assert_eq!([context.result, context.second_result, context.pc].map(named), ["ax", "dx", "ip"].map(Some));
            assert_eq!([context.stack_pointer, context.goroutine].map(named), ["sp", "r14"].map(Some));
            let words = [context.stack_pointer, context.goroutine, context.pc, context.result].map(usize::from);
            assert_eq!(words, [arch::STACK_POINTER, arch::GOROUTINE, arch::INSTRUCTION_POINTER, arch::RESULT]);
            for (name, at) in isa.limits().registers.iter().zip(arch::REGISTERS) {
                let plain = context.offset(name.trim_start_matches(['e', 'r']));
                assert_eq!(plain.or(context.offset(name)).map(usize::from), Some(at), "{name}");
            }
            let arguments: Vec<_> = context.arguments.iter().filter_map(|at| named(*at)).collect();
            let known = ["di", "si", "dx", "cx", "r8", "r9"];
            assert_eq!(arguments, known[..if isa == Isa::X64 { 6 } else { 0 }]);
        }
    }
}
