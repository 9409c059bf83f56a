//! What of the context of a hit a handler reads.

use sidestep_isa::live::Dead;
use sidestep_isa::{Isa, RegisterSet};
use sidestep_wire::{Hit, Regs, arch};

/// Words of the registers of a hit, and of what is behind them, a bit each: what a program reads.
/// The constants are those of the processor that this is compiled for.
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

    /// All that a handler in the target sees: the registers and what is behind them.
    pub const NATIVE: Context = Context((1 << (Hit::CONTEXT / 8)) - 1);

    /// What such a handler may change: the general registers but the stack pointer, and the
    /// instruction pointer if it `redirects`.
    #[must_use]
    pub fn native_changes(redirects: bool) -> Context {
        let registers = arch::REGISTERS.into_iter().filter(|at| *at != arch::STACK_POINTER);
        let ip = redirects.then_some(arch::INSTRUCTION_POINTER);
        Context(registers.chain(ip).fold(0, |set, at| set | bit(at)))
    }

    /// What either reads.
    #[must_use]
    pub fn union(self, other: Context) -> Context {
        Context(self.0 | other.0)
    }

    /// Machine registers among them but the stack pointer, one bit each by their number.
    #[must_use]
    pub fn registers(self, isa: Isa) -> RegisterSet {
        let words = isa.limits().context;
        let reads = |at: u16| at != words.stack_pointer && self.has(at.into());
        words.registers.iter().enumerate().fold(0, |set, (number, at)| set | RegisterSet::from(reads(*at)) << number)
    }

    pub(crate) fn has(self, offset: usize) -> bool {
        self.0 >> (offset / 8) & 1 == 1
    }

    /// What stays dead although this is read.
    pub(crate) fn spare(self, isa: Isa, dead: Dead) -> Dead {
        Dead { regs: dead.regs & !self.registers(isa), flags: dead.flags && !self.has_flags(isa) }
    }

    /// Whether the flags are read.
    #[must_use]
    pub fn has_flags(self, isa: Isa) -> bool {
        self.has(isa.limits().context.flags.into())
    }

    /// Whether the stack pointer is read.
    pub(crate) fn has_sp(self, isa: Isa) -> bool {
        self.has(isa.limits().context.stack_pointer.into())
    }

    /// Whether the word behind the registers is read.
    pub(crate) fn has_cookie(self, isa: Isa) -> bool {
        self.has(isa.limits().context.cookie().into())
    }

    /// Whether what is different behind a return is among them: the instruction pointer, the stack
    /// pointer, or the word that programs keep from the entry to the return.
    #[must_use]
    pub fn has_frame(self, isa: Isa) -> bool {
        self.has_ip(isa) || self.has_cookie(isa) || self.has_sp(isa)
    }

    /// Whether registers are among them in which functions return their result.
    #[must_use]
    pub fn has_result(self, isa: Isa) -> bool {
        let words = isa.limits().context;
        [words.result, words.second_result, words.float(0), words.float(1)].into_iter().any(|at| self.has(at.into()))
    }

    /// Whether the address of the probed instruction is among them.
    #[must_use]
    pub fn has_ip(self, isa: Isa) -> bool {
        self.has(isa.limits().context.pc.into())
    }
}

/// The bit of the word at this offset.
const fn bit(offset: usize) -> u64 {
    1 << (offset / 8)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use sidestep_wire::arch::x86::{self as arch, Hit, Regs};
    use sidestep_wire::arch::{a32, a64};

    use super::*;

    #[test]
    fn the_words_of_arm64_are_those_that_its_context_is_made_of() {
        let (isa, context) = (Isa::A64, Isa::A64.limits().context);
        assert_eq!(8 * context.names.len(), size_of::<a64::Regs>());
        assert_eq!(usize::from(context.floats_at), a64::Hit::FLOATS);
        assert_eq!(8 * context.floats.len(), size_of_val(&a64::Hit::default().floats));
        let words = [context.flags, context.cookie(), context.result, context.second_result, context.float(1)];
        let [result, second, _, float] = a64::RESULTS;
        assert_eq!(words.map(usize::from), [a64::FLAGS, a64::Hit::COOKIE, result, second, float]);
        assert_eq!(context.registers.iter().map(|at| usize::from(*at)).collect::<Vec<_>>(), a64::REGISTERS);
        let of = |name: &str| Context(bit(usize::from(context.offset(name).unwrap_or_else(|| panic!("no {name}")))));
        for (number, name) in isa.limits().registers.iter().enumerate().filter(|(_, name)| **name != "sp") {
            assert_eq!(of(name).registers(isa), 1 << number, "{name}");
        }
        assert!(of("sp").has_sp(isa) && of("sp").has_frame(isa) && of("sp").registers(isa) == 0);
        assert!(of("pc").has_ip(isa) && of("pc").has_frame(isa) && !of("pc").has_flags(isa));
        assert!(of("pstate").has_flags(isa) && !of("pstate").has_frame(isa));
        assert!(of("x1").has_result(isa) && !of("x2").has_result(isa));
        // The same bits are other words elsewhere.
        assert!(!of("pc").has_ip(Isa::X64));
        let live = of("x16").union(of("pstate"));
        let dead = Dead { regs: 3 << 16, flags: true };
        assert_eq!(live.spare(isa, dead), Dead { regs: 1 << 17, flags: false });
    }

    #[test]
    fn the_words_of_arm32_are_those_that_its_context_is_made_of() {
        for isa in [Isa::A32, Isa::T32] {
            let context = isa.limits().context;
            assert_eq!(8 * context.names.len(), size_of::<a32::Regs>());
            assert_eq!(usize::from(context.floats_at), a32::Hit::FLOATS);
            assert_eq!(8 * context.floats.len(), size_of_val(&a32::Hit::default().floats));
            let words = [context.flags, context.cookie(), context.result, context.second_result, context.float(1)];
            let [result, second, _, float] = a32::RESULTS;
            assert_eq!(words.map(usize::from), [a32::FLAGS, a32::Hit::COOKIE, result, second, float]);
            assert_eq!(context.registers.iter().map(|at| usize::from(*at)).collect::<Vec<_>>(), a32::REGISTERS);
            let words = [context.stack_pointer, context.goroutine, context.pc, context.link.expect("a link register")];
            let known = [a32::STACK_POINTER, a32::GOROUTINE, a32::INSTRUCTION_POINTER, a32::FRAME_BASE];
            assert_eq!(words.map(usize::from), known);
            let of = |name: &str| Context(bit(usize::from(context.offset(name).expect("a word"))));
            for (number, name) in isa.limits().registers.iter().enumerate().filter(|(_, name)| **name != "sp") {
                assert_eq!(of(name).registers(isa), 1 << number, "{name}");
            }
            assert!(of("sp").has_sp(isa) && of("pc").has_ip(isa) && of("cpsr").has_flags(isa));
        }
    }

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
            let words = [context.flags, context.cookie(), context.result, context.second_result, context.float(1)];
            let [result, second, _, float] = arch::RESULTS;
            assert_eq!(words.map(usize::from), [arch::FLAGS, Hit::COOKIE, result, second, float]);
            assert_eq!(context.registers.iter().map(|at| usize::from(*at)).collect::<Vec<_>>(), arch::REGISTERS);
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
