//! How to find the caller of a frame: what `.eh_frame` says of each instruction, as a table that is
//! searched at a hit.
//!
//! Made by the engine and replaced as a whole; a replaced one stays mapped, and so do rows. Numbers
//! of rules stay the same.
//!
//! ```text
//!   UnwindTable
//!   [UnwindObject; objects]   in order of `start`
//!   [UnwindRule; rules]
//!
//!   of each object, elsewhere:
//!   [u32; rows]   offsets from `start` at which a rule begins to hold, in order; the first is 0
//!   [u16; rows]   its number
//! ```

use crate::arch;

/// Head of the table.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct UnwindTable {
    /// Number of objects.
    pub objects: u32,
    /// Number of rules.
    pub rules: u32,
}

impl UnwindTable {
    /// Offset of the objects from the start of the table.
    pub const OBJECTS: u64 = size_of::<UnwindTable>() as u64;
    /// Most rules: so many numbers are not those of plain rules.
    pub const RULES_MAX: usize = 1 << 15;

    /// Offset of the rules.
    #[inline]
    #[must_use]
    pub const fn rules(&self) -> u64 {
        UnwindTable::OBJECTS + self.objects as u64 * size_of::<UnwindObject>() as u64
    }
}

/// Code of an object.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct UnwindObject {
    /// Its run-time address.
    pub start: u64,
    /// The address behind it.
    pub end: u64,
    /// Run-time address of the rows.
    pub rows: u64,
    /// Number of rows, at least 1.
    pub len: u64,
}

impl UnwindObject {
    /// Run-time address of the numbers of rules.
    #[inline]
    #[must_use]
    pub const fn numbers(&self) -> u64 {
        self.rows + 4 * self.len
    }
}

/// Where the caller's registers are. Words are the target's; "CFA" is the stack pointer of the
/// caller, above its return address (DWARF 5, 6.4.1: canonical frame address).
#[repr(C)]
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnwindRule {
    /// An [`UnwindKind`] as a number.
    pub kind: u8,
    /// The register of `offset`, as its place in `struct pt_regs` ([`UnwindRule::BP`] and the
    /// like).
    pub base: u8,
    /// [`UnwindRule::BP_BY_BP`], [`UnwindRule::BX_BY_BP`].
    pub flags: u8,
    /// Padding.
    pub pad: u8,
    /// Where the caller's frame pointer is: words from the CFA; 0 = unchanged,
    /// [`UnwindRule::LOST`].
    pub bp: i16,
    /// The same for the caller's `rbx`. On arm64, where this frame's return address is.
    pub bx: i16,
    /// See [`UnwindKind`].
    pub offset: i32,
    /// See [`UnwindKind`].
    pub plus: i32,
}

impl UnwindRule {
    /// Number of the rule of code about which nothing is known.
    pub const UNKNOWN: u16 = 0;
    /// `base`: the frame pointer.
    pub const BP: u8 = (arch::FRAME_POINTER / 8) as u8;
    /// `base`: `rbx`; on arm64, the link register.
    pub const BX: u8 = (arch::FRAME_BASE / 8) as u8;
    /// `base`: the stack pointer.
    pub const SP: u8 = (arch::STACK_POINTER / 8) as u8;
    /// `bp`, `bx`: nowhere.
    pub const LOST: i16 = i16::MIN;
    /// Bit of `flags`: `bp` counts from this frame's frame pointer, and 0 is a place, too.
    pub const BP_BY_BP: u8 = 1;
    /// Bit of `flags`: so does `bx`.
    pub const BX_BY_BP: u8 = 2;
}

/// A rule that is in its number instead of in the table, as most are: the CFA is some words above
/// the stack pointer, `bp` and `bx` are where they were or a few words below the CFA. It saves a
/// hit a load per frame, for which the next frame would wait.
///
/// ```text
///   1 bit   set (numbers of rules in the table are below)
///   3 bits  bp: 0 = unchanged, n = n + 1 words below the CFA
///   3 bits  bx: the same
///   9 bits  CFA: words above the stack pointer, at least 1
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlainRule(u16);

impl PlainRule {
    const SET: u16 = 1 << 15;
    const BP: u32 = 12;
    const BX: u32 = 9;
    const CFA: u16 = (1 << PlainRule::BX) - 1;

    /// The rule with this number, if it is a plain one.
    #[inline(always)]
    #[must_use]
    pub const fn of_number(number: u16) -> Option<PlainRule> {
        if number & PlainRule::SET != 0 { Some(PlainRule(number)) } else { None }
    }

    /// The plain form of a rule, if it has one; `word`: bytes of a word of the target.
    #[must_use]
    pub fn of(rule: &UnwindRule, word: i32) -> Option<PlainRule> {
        let saved = |words: i16| match words {
            0 => Some(0),
            -8..=-2 => Some((-words - 1) as u16),
            _ => None,
        };
        let cfa = u16::try_from(rule.offset / word).ok().filter(|words| (1..=PlainRule::CFA).contains(words))?;
        let (bp, bx) = (saved(rule.bp)?, saved(rule.bx)?);
        let plain = PlainRule(PlainRule::SET | bp << PlainRule::BP | bx << PlainRule::BX | cfa);
        (plain.rule(word) == *rule).then_some(plain)
    }

    /// The same as a rule of the table.
    #[must_use]
    pub const fn rule(self, word: i32) -> UnwindRule {
        UnwindRule {
            kind: UnwindKind::Register as u8,
            base: UnwindRule::SP,
            flags: 0,
            pad: 0,
            bp: self.bp(),
            bx: self.bx(),
            offset: self.cfa() as i32 * word,
            plus: 0,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }

    /// Words from the stack pointer to the CFA.
    #[inline(always)]
    #[must_use]
    pub const fn cfa(self) -> u16 {
        self.0 & PlainRule::CFA
    }

    /// [`UnwindRule::bp`].
    #[inline(always)]
    #[must_use]
    pub const fn bp(self) -> i16 {
        PlainRule::saved(self.0 >> PlainRule::BP & 7)
    }

    /// [`UnwindRule::bx`].
    #[inline(always)]
    #[must_use]
    pub const fn bx(self) -> i16 {
        PlainRule::saved(self.0 >> PlainRule::BX & 7)
    }

    #[inline(always)]
    const fn saved(code: u16) -> i16 {
        if code == 0 { 0 } else { -(code as i16) - 1 }
    }
}

/// How a rule finds the CFA.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnwindKind {
    /// Nothing is known about the code.
    Unknown = 0,
    /// `base + offset`.
    Register = 1,
    /// The word at `base + offset`, plus `plus`.
    Memory = 2,
    /// The frame is the outermost one.
    Outermost = 3,
    /// Code to which a signal handler returns: the registers are in the `struct ucontext` at the
    /// stack pointer.
    Signal = 4,
    /// The description is one that cannot be followed.
    Strange = 5,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_plain_rules_are_the_same() {
        for word in [4, 8] {
            let plain = (1 << 15..=u16::MAX).filter_map(PlainRule::of_number);
            for plain in plain.filter(|plain| plain.cfa() != 0) {
                assert_eq!(PlainRule::of(&plain.rule(word), word), Some(plain));
            }
        }
        assert_eq!(PlainRule::of_number(UnwindRule::UNKNOWN), None);
    }

    #[test]
    fn what_is_not_plain_stays_in_the_table() {
        let plain = UnwindRule {
            kind: UnwindKind::Register as u8,
            base: UnwindRule::SP,
            bp: -2,
            bx: -7,
            offset: 64,
            ..UnwindRule::default()
        };
        assert!(PlainRule::of(&plain, 8).is_some());
        let others = [
            UnwindRule { kind: UnwindKind::Memory as u8, ..plain },
            UnwindRule { base: UnwindRule::BP, ..plain },
            UnwindRule { flags: UnwindRule::BP_BY_BP, ..plain },
            UnwindRule { bp: -1, ..plain },
            UnwindRule { bp: UnwindRule::LOST, ..plain },
            UnwindRule { bx: -9, ..plain },
            UnwindRule { bx: 1, ..plain },
            UnwindRule { offset: 0, ..plain },
            UnwindRule { offset: 12, ..plain },
            UnwindRule { offset: -8, ..plain },
            UnwindRule { offset: 512 * 8, ..plain },
        ];
        for other in others {
            assert_eq!(PlainRule::of(&other, 8), None, "{other:?}");
        }
    }
}
