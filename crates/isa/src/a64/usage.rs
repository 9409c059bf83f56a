//! Registers and flags that instructions use. Sections are those of the pages of the instructions,
//! in chapters C6 and C7.

use super::class::Class;
use super::decode::{Insn, hint, is_bti};
use super::emit::system;
use super::{LINK, SP};
use crate::insn::{RegisterSet, Usage};

/// The flags N, Z, C and V in the masks of [`Usage`], in the order of `PSTATE`.
pub const N: u32 = 8;
/// See [`N`].
pub const Z: u32 = 4;
/// See [`N`].
pub const C: u32 = 2;
/// See [`N`].
pub const V: u32 = 1;
/// All of them.
pub const NZCV: u32 = N | Z | C | V;

const ALL: RegisterSet = RegisterSet::MAX;
const STACK: RegisterSet = 1 << SP;
const RETURN: RegisterSet = 1 << LINK;

/// A register where 31 is the zero register.
const fn plain(number: u8) -> RegisterSet {
    if number == 31 { 0 } else { 1 << number }
}

/// A register where 31 is the stack pointer.
const fn or_stack(number: u8) -> RegisterSet {
    1 << number
}

/// A register and the one behind it.
const fn two(number: u8) -> RegisterSet {
    plain(number) | if number < 30 { 1 << (number + 1) } else { 0 }
}

/// Flags that a condition looks at (section C1.2.4).
pub(super) const fn condition_flags(condition: u32) -> u32 {
    match condition >> 1 {
        0 => Z,
        1 => C,
        2 => N,
        3 => V,
        4 => C | Z,
        5 => N | V,
        6 => N | Z | V,
        _ => 0,
    }
}

/// Registers and flags: what is read, what is written, flags that are read, flags that are killed.
type Used = (RegisterSet, RegisterSet, u32, u32);

impl Insn {
    /// See [`crate::Insn::usage`]. A write to a `w` register clears the upper half, so it kills the
    /// register.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (reads, writes, flags_read, flags_killed) =
            if self.memory_base().is_some() { self.memory_usage() } else { self.usage_without_base() };
        let unsure = matches!(self.class(), Class::Sve | Class::Sme | Class::System | Class::SystemResult)
            || self.class() == Class::Vector && !self.has_known_result();
        let kills = if unsure { 0 } else { writes & !reads };
        Usage { reads, writes, kills, flags_read, flags_killed }
    }

    fn usage_without_base(&self) -> Used {
        let (d, n, m, a) = (self.rd(), self.rn(), self.rm(), self.ra());
        // Bit 29 says whether the flags are set; bits 30 and 29, which operation it is.
        let (sets, operation) = (self.bits(29, 29) == 1, self.bits(30, 29));
        let killed = if sets { NZCV } else { 0 };
        match self.class() {
            Class::Sve | Class::Sme => (ALL, ALL & !STACK | self.stack_of_vectors(), NZCV, 0),
            Class::Vector => self.vector_usage(),
            Class::Adr | Class::Adrp | Class::LoadLiteral => (0, plain(d), 0, 0),
            Class::AddImmediate => (or_stack(n), if sets { plain(d) } else { or_stack(d) }, 0, killed),
            Class::AddTag => (or_stack(n), or_stack(d), 0, 0),
            Class::MinMaxImmediate | Class::OneSource => (plain(n), plain(d), 0, 0),
            Class::LogicImmediate if operation == 3 => (plain(n), plain(d), 0, NZCV),
            Class::LogicImmediate => (plain(n), or_stack(d), 0, 0),
            Class::MoveWide => (if operation == 3 { plain(d) } else { 0 }, plain(d), 0, 0),
            Class::Bitfield => (plain(n) | if operation == 1 { plain(d) } else { 0 }, plain(d), 0, 0),
            Class::Extract => (plain(n) | plain(m), plain(d), 0, 0),
            Class::AuthenticateHere | Class::SignHere => (RETURN | STACK, RETURN, 0, 0),
            // One of them signs x17 with x16 and x15.
            Class::AuthenticateLink => (plain(n) | RETURN | STACK | 0x3_8000, RETURN | 0x2_0000, 0, 0),
            Class::BranchLink => (0, RETURN, 0, 0),
            Class::BranchCondition => (0, 0, condition_flags(self.bits(3, 0)), 0),
            Class::CompareZero | Class::TestBit | Class::CompareImmediate => (plain(d), 0, 0, 0),
            Class::CompareRegisters => (plain(d) | plain(m), 0, 0, 0),
            Class::BranchRegister => (plain(n) | self.modifier(), 0, 0, 0),
            Class::BranchLinkRegister => (plain(n) | self.modifier(), RETURN, 0, 0),
            Class::Return => (plain(n), 0, 0, 0),
            Class::ReturnAuthenticated => (RETURN | STACK | plain(d), 0, 0, 0),
            Class::ReturnHere => (RETURN | STACK, 0, 0, 0),
            Class::SupervisorCall => (ALL, 1, 0, 0),
            Class::Hint => self.hint_usage(),
            Class::WaitTime => (plain(d), 0, 0, 0),
            Class::MoveToState => match (self.bits(18, 16), self.bits(7, 5)) {
                (0, 0) => (0, 0, C, C),
                (0, 1 | 2) => (0, 0, NZCV, NZCV),
                _ => (0, 0, 0, 0),
            },
            Class::System => (two(d), 0, 0, 0),
            Class::SystemResult => (0, plain(d), 0, 0),
            Class::MoveToSystem => (self.system_registers(), 0, 0, if self.is_flags_register() { NZCV } else { 0 }),
            Class::MoveFromSystem => {
                let read = if self.is_flags_register() { NZCV } else { 0 };
                (0, self.system_registers(), read, if self.is_random_number() { NZCV } else { 0 })
            }
            Class::MemoryCopy if self.bits(23, 22) == 3 => {
                (plain(d) | plain(n) | plain(m), plain(d) | plain(n), NZCV, 0)
            }
            Class::MemoryCopy => {
                let all = plain(d) | plain(n) | plain(m);
                (all, all, NZCV, 0)
            }
            Class::Logic => (plain(n) | plain(m), plain(d), 0, if operation == 3 { NZCV } else { 0 }),
            Class::AddShifted => (plain(n) | plain(m), plain(d), 0, killed),
            Class::AddExtended => (or_stack(n) | plain(m), if sets { plain(d) } else { or_stack(d) }, 0, killed),
            Class::AddCarry => (plain(n) | plain(m), plain(d), C, killed),
            Class::AddPointer => (or_stack(n) | plain(m), or_stack(d), 0, 0),
            Class::RotateToFlags => (plain(n), 0, 0, self.bits(3, 0)),
            Class::SetFlags => (plain(n), 0, 0, N | Z | V),
            Class::ConditionalCompare => {
                let second = if self.bits(11, 11) == 0 { plain(m) } else { 0 };
                (plain(n) | second, 0, condition_flags(self.bits(15, 12)), NZCV)
            }
            Class::ConditionalSelect => (plain(n) | plain(m), plain(d), condition_flags(self.bits(15, 12)), 0),
            Class::TwoSources => match self.bits(15, 10) {
                0b0000 => (or_stack(n) | or_stack(m), plain(d), 0, 0),
                0b0100 => (or_stack(n) | plain(m), or_stack(d), 0, 0),
                0b0101 => (or_stack(n) | plain(m), plain(d), 0, 0),
                0b1100 => (plain(n) | or_stack(m), plain(d), 0, 0),
                _ => (plain(n) | plain(m), plain(d), 0, 0),
            },
            Class::SubtractPointersFlags => (or_stack(n) | or_stack(m), plain(d), 0, NZCV),
            // xpaci, paciza and their like have no second register.
            Class::Authenticate if self.bits(15, 10) >= 8 => (plain(d), plain(d), 0, 0),
            Class::Authenticate => (plain(d) | or_stack(n), plain(d), 0, 0),
            // smulh, umulh
            Class::ThreeSources if self.bits(22, 21) == 2 => (plain(n) | plain(m), plain(d), 0, 0),
            Class::ThreeSources => (plain(n) | plain(m) | plain(a), plain(d), 0, 0),
            _ => (0, 0, 0, 0),
        }
    }

    /// The modifier of `braa` and `blraa`; those ending in z have none.
    fn modifier(&self) -> RegisterSet {
        if self.bits(24, 24) == 1 { or_stack(self.rd()) } else { 0 }
    }

    fn hint_usage(&self) -> Used {
        const X16: RegisterSet = 1 << 16;
        const X17: RegisterSet = 1 << 17;
        let (reads, writes) = match self.hint().unwrap_or_default() {
            hint::XPACLRI => (RETURN, RETURN),
            8 | 10 | 12 | 14 => (X16 | X17, X17),
            // Odd ones have the stack pointer as modifier.
            number @ 24..=31 => (RETURN | if number & 1 == 1 { STACK } else { 0 }, RETURN),
            hint::CHKFEAT => (X16, X16),
            // nop, yield, wfe, wfi, sev, sevl, dgh, esb, psb, tsb, gcsb, csdb, clrbhb, pacm
            0..=6 | 16..=20 | 22 | 39 => (0, 0),
            number if is_bti(number) => (0, 0),
            // Those that have no meaning yet: the ones that have got one use these registers.
            _ => (X16 | X17 | RETURN | STACK, X16 | X17 | RETURN),
        };
        (reads, writes, 0, 0)
    }

    /// The registers of `msr` and `mrs`, two for 128 bits.
    fn system_registers(&self) -> RegisterSet {
        if self.bits(22, 22) == 1 { two(self.rd()) } else { plain(self.rd()) }
    }

    /// Whether `msr` or `mrs` means `NZCV` (`S3_3_C4_C2_0`).
    pub(super) fn is_flags_register(&self) -> bool {
        self.bits(22, 22) == 0 && self.bits(20, 5) as u16 == system::NZCV
    }

    /// Whether `mrs` reads `RNDR` or `RNDRRS` (`S3_3_C2_C4_0` and 1), which set the flags.
    fn is_random_number(&self) -> bool {
        self.bits(22, 22) == 0 && self.bits(20, 6) as u16 == system::number(3, 3, 2, 4, 0) >> 1
    }

    /// `addvl`, `addpl`, `addsvl` and `addspl` are the only SVE instructions that write the stack
    /// pointer (section C8.2).
    fn stack_of_vectors(&self) -> RegisterSet {
        let adds_length = self.word() & 0xffa0_f000 == 0x0420_5000;
        if adds_length && self.rd() == SP { STACK } else { 0 }
    }

    /// General-purpose registers and flags of Advanced SIMD and floating-point instructions.
    fn vector_usage(&self) -> Used {
        let (d, n) = (plain(self.rd()), plain(self.rn()));
        let word = self.word();
        // Floating point, one number: `x0x11110 type 1 …`.
        if word & 0x5f20_0000 == 0x1e20_0000 {
            return match self.bits(11, 10) {
                0b00 if self.bits(15, 12) == 0 => self.conversion_usage(),
                // fcmp, fcmpe.
                0b00 if self.bits(13, 10) == 0b1000 => (0, 0, 0, NZCV),
                // fccmp, fccmpe.
                0b01 => (0, 0, condition_flags(self.bits(15, 12)), NZCV),
                // fcsel.
                0b11 => (0, 0, condition_flags(self.bits(15, 12)), 0),
                _ => (0, 0, 0, 0),
            };
        }
        // Conversion between fixed point and floating point.
        if word & 0x5f20_0000 == 0x1e00_0000 {
            return if self.bits(18, 17) == 0 { (0, d, 0, 0) } else { (n, 0, 0, 0) };
        }
        // Advanced SIMD copy, `0 Q 0 01110000 imm5 0 imm4 1`. With another bit 29 it is a move
        // between vectors.
        if word & 0xbfe0_8400 == 0x0e00_0400 {
            return match self.bits(14, 11) {
                // dup, ins
                0b0001 | 0b0011 => (n, 0, 0, 0),
                // smov, umov
                0b0101 | 0b0111 => (0, d, 0, 0),
                _ => (0, 0, 0, 0),
            };
        }
        (0, 0, 0, 0)
    }

    /// Conversion between integers and floating point, and moves between the two kinds of
    /// registers.
    fn conversion_usage(&self) -> Used {
        let (d, n) = (plain(self.rd()), plain(self.rn()));
        let (kind, rmode, opcode) = (self.bits(23, 22), self.bits(20, 19), self.bits(18, 16));
        match opcode {
            0b010 | 0b011 if rmode == 0 => (n, 0, 0, 0),
            0b111 => (n, 0, 0, 0),
            // fjcvtzs.
            0b110 if kind == 1 && rmode == 3 => (0, d, 0, NZCV),
            0b000 | 0b001 | 0b110 => (0, d, 0, 0),
            0b100 | 0b101 if rmode == 0 => (0, d, 0, 0),
            _ => (n, d, 0, 0),
        }
    }

    /// Whether it writes its general-purpose register for certain: not where the encoding may mean
    /// something else in a later extension.
    fn has_known_result(&self) -> bool {
        let (kind, rmode, opcode) = (self.bits(23, 22), self.bits(20, 19), self.bits(18, 16));
        if self.word() & 0x5f20_0000 != 0x1e20_0000 || self.bits(15, 10) != 0 {
            // smov and umov.
            return self.word() & 0xbfe0_8400 == 0x0e00_0400;
        }
        match opcode {
            0b000 | 0b001 => kind != 2,
            0b100 | 0b101 => kind != 2 && rmode == 0,
            0b110 => rmode == 0 && kind != 2 || rmode == 1 && kind == 2,
            _ => false,
        }
    }

    fn memory_usage(&self) -> Used {
        let (t, n, s, t2) = (self.rd(), self.rn(), self.rm(), self.ra());
        let base = or_stack(n);
        let (loads, stores) = if self.is_store() { (0, ALL) } else { (ALL, 0) };
        // What the registers of data are: read or written.
        let data = |registers: RegisterSet| (base | registers & stores, registers & loads);
        let (reads, writes) = match self.class() {
            Class::Pair => data(plain(t) | plain(t2)),
            Class::PairTag => data(plain(t) | plain(t2)),
            Class::OrderedPair => data(plain(t) | plain(s)),
            Class::Single => {
                let (reads, writes) = data(plain(t));
                (reads | self.offset_register(), writes)
            }
            Class::SingleVector | Class::Prefetch => (base | self.offset_register(), 0),
            Class::LoadExclusive | Class::LoadAcquire | Class::LoadAuthenticated => (base, plain(t)),
            Class::LoadExclusivePair => (base, plain(t) | plain(t2)),
            Class::StoreExclusive => (base | plain(t), plain(s)),
            Class::StoreExclusivePair => (base | plain(t) | plain(t2), plain(s)),
            Class::StoreRelease | Class::OrderedWriteBack => data(plain(t)),
            Class::CompareSwap => (base | plain(t) | plain(s), plain(s)),
            Class::CompareSwapPair => (base | two(t) | two(s), two(s)),
            Class::Atomic => (base | plain(s), plain(t)),
            Class::AtomicPair => (base | plain(t) | plain(s), plain(t) | plain(s)),
            Class::Load64Bytes => (base, 0xff << t),
            Class::Store64Bytes => (base | 0xff << t, plain(s)),
            Class::StoreTag => (base | or_stack(t), 0),
            Class::LoadTag => (base | plain(t), plain(t)),
            Class::TagBlock => (base | plain(t), plain(t)),
            Class::Structures if self.writes_base() => (base | plain(s), 0),
            _ => (base, 0),
        };
        let back = if self.writes_base() { base } else { 0 };
        (reads, writes | back, 0, 0)
    }

    /// The register that is added to the base, if one is.
    fn offset_register(&self) -> RegisterSet {
        if self.access().is_none() { plain(self.rm()) } else { 0 }
    }
}
