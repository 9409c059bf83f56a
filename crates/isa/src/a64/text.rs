//! Instructions as text, in the syntax of the GNU assembler.
//!
//! What functions begin and end with, what goes elsewhere, and the most frequent loads and stores
//! are written out. All others are their word and their class: an assembler reads `.inst` as well.

use core::fmt;

use super::access::Mode;
use super::class::Class;
use super::decode::Insn;
use super::emit::Cond;

const CONDITIONS: [&str; 16] =
    ["eq", "ne", "cs", "cc", "mi", "pl", "vs", "vc", "hi", "ls", "ge", "lt", "gt", "le", "al", "nv"];

/// `b.cond` as the assembler names it.
pub(super) fn condition(number: u8) -> &'static str {
    CONDITIONS[usize::from(number & 15)]
}

impl fmt::Display for Cond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(condition(*self as u8))
    }
}

/// A register as an operand.
struct Name {
    number: u8,
    wide: bool,
    /// What 31 is.
    stack: bool,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.number, self.wide, self.stack) {
            (31, true, true) => f.write_str("sp"),
            (31, false, true) => f.write_str("wsp"),
            (31, true, false) => f.write_str("xzr"),
            (31, false, false) => f.write_str("wzr"),
            (number, true, _) => write!(f, "x{number}"),
            (number, false, _) => write!(f, "w{number}"),
        }
    }
}

fn x(number: u8) -> Name {
    Name { number, wide: true, stack: false }
}

impl Insn {
    /// A register of the size that bit 31 says.
    fn name(&self, number: u8) -> Name {
        Name { number, wide: self.is_wide(), stack: false }
    }

    fn or_stack(&self, number: u8) -> Name {
        Name { number, wide: self.is_wide(), stack: true }
    }

    /// `mnemonic`, padded as objdump does with a tab.
    fn branch(&self, f: &mut fmt::Formatter<'_>, target: u64) -> fmt::Result {
        let to = format!("{target:#x}");
        match self.class() {
            Class::Branch => write!(f, "b {to}"),
            Class::BranchLink => write!(f, "bl {to}"),
            Class::BranchCondition => {
                let name = if self.bits(4, 4) == 0 { "b" } else { "bc" };
                write!(f, "{name}.{} {to}", condition(self.bits(3, 0) as u8))
            }
            Class::CompareZero => {
                let name = if self.bits(24, 24) == 0 { "cbz" } else { "cbnz" };
                write!(f, "{name} {}, {to}", self.name(self.rd()))
            }
            Class::TestBit => {
                let name = if self.bits(24, 24) == 0 { "tbz" } else { "tbnz" };
                let bit = self.bits(31, 31) << 5 | self.bits(23, 19);
                write!(f, "{name} {}, #{bit}, {to}", self.name(self.rd()))
            }
            _ => {
                let registers = self.class() == Class::CompareRegisters;
                let name = match (self.bits(23, 21), registers) {
                    (0, _) => "gt",
                    (1, true) => "ge",
                    (1, false) => "lt",
                    (2, _) => "hi",
                    (3, true) => "hs",
                    (3, false) => "lo",
                    (6, _) => "eq",
                    _ => "ne",
                };
                let size = match self.bits(15, 14) {
                    2 if registers => "b",
                    3 if registers => "h",
                    _ => "",
                };
                write!(f, "cb{size}{name} {}, ", self.name(self.rd()))?;
                if registers {
                    write!(f, "{}, {to}", self.name(self.rm()))
                } else {
                    write!(f, "#{}, {to}", self.bits(20, 15))
                }
            }
        }
    }

    fn hint_text(&self, f: &mut fmt::Formatter<'_>, number: u32) -> fmt::Result {
        let name = match number {
            0 => "nop",
            1 => "yield",
            2 => "wfe",
            3 => "wfi",
            4 => "sev",
            5 => "sevl",
            7 => "xpaclri",
            20 => "csdb",
            24 => "paciaz",
            25 => "paciasp",
            26 => "pacibz",
            27 => "pacibsp",
            28 => "autiaz",
            29 => "autiasp",
            30 => "autibz",
            31 => "autibsp",
            32 => "bti",
            34 => "bti c",
            36 => "bti j",
            38 => "bti jc",
            _ => return write!(f, "hint #{number:#x}"),
        };
        f.write_str(name)
    }

    /// A load or store of one or two registers; its class and word if it is a rare one.
    fn access_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(access) = self.access() else { return self.word_text(f) };
        let (size, load) = (self.bits(31, 30), !self.is_store());
        let base = Name { number: self.rn(), wide: true, stack: true };
        let (name, registers) = match self.class() {
            Class::Pair => {
                let wide = size != 0;
                let name = match (size, load, self.bits(25, 23) == 0) {
                    (1, ..) => "ldpsw",
                    (_, true, false) => "ldp",
                    (_, false, false) => "stp",
                    (_, true, true) => "ldnp",
                    (_, false, true) => "stnp",
                };
                let of = |number| Name { number, wide, stack: false };
                (name, format!("{}, {}", of(self.rd()), of(self.ra())))
            }
            Class::PairVector => {
                let letter = ["s", "d", "q"][size as usize % 3];
                let name = match (load, self.bits(25, 23) == 0) {
                    (true, false) => "ldp",
                    (false, false) => "stp",
                    (true, true) => "ldnp",
                    (false, true) => "stnp",
                };
                (name, format!("{letter}{}, {letter}{}", self.rd(), self.ra()))
            }
            Class::Single if self.bits(29, 28) == 3 => {
                let scaled = self.bits(25, 24) == 1;
                let names = match (scaled, self.bits(11, 10)) {
                    (false, 0) => ["sturb", "ldurb", "sturh", "ldurh", "stur", "ldur", "ldursb", "ldursh", "ldursw"],
                    (false, 2) => ["sttrb", "ldtrb", "sttrh", "ldtrh", "sttr", "ldtr", "ldtrsb", "ldtrsh", "ldtrsw"],
                    _ => ["strb", "ldrb", "strh", "ldrh", "str", "ldr", "ldrsb", "ldrsh", "ldrsw"],
                };
                let opc = self.bits(23, 22);
                let index = match (size, opc) {
                    (0 | 1, 0 | 1) => size * 2 + opc,
                    (_, 0 | 1) => 4 + opc,
                    _ => 6 + size,
                };
                let wide = if opc < 2 { size == 3 } else { opc == 2 };
                (names[index as usize % 9], Name { number: self.rd(), wide, stack: false }.to_string())
            }
            _ => return self.word_text(f),
        };
        match (access.mode, access.offset) {
            (Mode::Offset, 0) => write!(f, "{name} {registers}, [{base}]"),
            (Mode::Offset, offset) => write!(f, "{name} {registers}, [{base}, #{offset}]"),
            (Mode::Pre, offset) => write!(f, "{name} {registers}, [{base}, #{offset}]!"),
            (Mode::Post, offset) => write!(f, "{name} {registers}, [{base}], #{offset}"),
        }
    }

    fn word_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ".inst {:#010x} // {:?}", self.word(), self.class())
    }

    fn sum_text(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subtracts, sets) = (self.bits(30, 30) == 1, self.bits(29, 29) == 1);
        let (from, imm) = (self.or_stack(self.rn()), self.bits(21, 10));
        let shift = if self.bits(22, 22) == 1 { ", lsl #12" } else { "" };
        match (sets, self.rd()) {
            (true, 31) => write!(f, "{} {from}, #{imm:#x}{shift}", if subtracts { "cmp" } else { "cmn" }),
            (true, to) => {
                write!(f, "{} {}, {from}, #{imm:#x}{shift}", if subtracts { "subs" } else { "adds" }, self.name(to))
            }
            (false, to) => {
                let is_move = !subtracts && imm == 0 && shift.is_empty() && (to == 31 || self.rn() == 31);
                if is_move {
                    return write!(f, "mov {}, {from}", self.or_stack(to));
                }
                write!(f, "{} {}, {from}, #{imm:#x}{shift}", if subtracts { "sub" } else { "add" }, self.or_stack(to))
            }
        }
    }
}

impl fmt::Display for Insn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(target) = self.branch_target() {
            return self.branch(f, target.0);
        }
        let literal = self.pc_target().map_or(0, |target| target.0);
        let number = self.bits(20, 5);
        match self.class() {
            Class::Udf => write!(f, "udf #{}", self.word()),
            Class::Adr => write!(f, "adr {}, {literal:#x}", x(self.rd())),
            Class::Adrp => write!(f, "adrp {}, {literal:#x}", x(self.rd())),
            Class::LoadLiteral => match self.bits(31, 30) {
                2 => write!(f, "ldrsw {}, {literal:#x}", x(self.rd())),
                size => {
                    write!(f, "ldr {}, {literal:#x}", Name { number: self.rd(), wide: size == 1, stack: false })
                }
            },
            Class::LoadLiteralVector => {
                let letter = ["s", "d", "q"][self.bits(31, 30) as usize % 3];
                write!(f, "ldr {letter}{}, {literal:#x}", self.rd())
            }
            Class::BranchRegister if self.bits(15, 10) == 0 => write!(f, "br {}", x(self.rn())),
            Class::BranchLinkRegister if self.bits(15, 10) == 0 => write!(f, "blr {}", x(self.rn())),
            Class::Return if self.rn() == 30 => f.write_str("ret"),
            Class::Return => write!(f, "ret {}", x(self.rn())),
            Class::SupervisorCall => write!(f, "svc #{number:#x}"),
            Class::Breakpoint => write!(f, "brk #{number:#x}"),
            Class::Halt => write!(f, "hlt #{number:#x}"),
            Class::Hint => self.hint_text(f, self.bits(11, 5)),
            Class::AddImmediate => self.sum_text(f),
            Class::Logic if self.word() & 0x7fe0_ffe0 == 0x2a00_03e0 => {
                write!(f, "mov {}, {}", self.name(self.rd()), self.name(self.rm()))
            }
            Class::Pair | Class::PairVector | Class::Single => self.access_text(f),
            _ => self.word_text(f),
        }
    }
}
