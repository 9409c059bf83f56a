//! Instructions to run: by opcode map and form, and those of real programs.
#![allow(dead_code)]

use std::collections::{HashMap, HashSet};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};

use sidestep_isa::Isa;

use crate::cpu::{DATA, FROM, Rng};
use crate::gas;

/// An instruction with its bytes, for [`FROM`].
#[derive(Clone)]
pub struct Case {
    pub bytes: Vec<u8>,
    pub insn: Instruction,
}

/// Some of each kind.
pub struct Cases {
    /// What they are decoded as.
    pub isa: Isa,
    /// How many of a kind are kept.
    each: usize,
    kinds: HashMap<Kind, usize>,
    pub cases: Vec<Case>,
    rng: Rng,
}

type Kind = (Code, [u8; 5], Register, bool, Register, [bool; 4]);

/// What tells instructions apart: opcode, operands, how memory is addressed, prefixes.
fn kind(insn: &Instruction) -> Kind {
    let mut operands = [0; 5];
    for (operand, kind) in operands.iter_mut().zip(insn.op_kinds()) {
        *operand = kind as u8 + 1;
    }
    let base = match insn.memory_base() {
        base @ (Register::None | Register::RIP | Register::EIP | Register::RSP | Register::ESP) => base,
        base if base.is_gpr64() => Register::RAX,
        base if base.is_gpr16() => Register::AX,
        _ => Register::EAX,
    };
    let prefixes = [insn.has_lock_prefix(), insn.has_rep_prefix(), insn.has_repne_prefix(), insn.is_broadcast()];
    let segment = match insn.segment_prefix() {
        segment @ (Register::FS | Register::GS) => segment,
        Register::None => Register::None,
        _ => Register::DS,
    };
    (insn.code(), operands, base, insn.memory_index() == Register::None, segment, prefixes)
}

impl Cases {
    pub fn new(isa: Isa, each: usize, seed: u64) -> Cases {
        Cases { isa, each, kinds: HashMap::new(), cases: Vec::new(), rng: Rng(seed) }
    }

    /// How many different opcodes there are.
    pub fn codes(&self) -> usize {
        self.cases.iter().map(|case| case.insn.code()).collect::<HashSet<_>>().len()
    }

    /// Takes the instruction at the start of `bytes`, if it is one and there are not enough of its
    /// kind. Operands relative to rip are moved to the data, most branches to the code.
    fn offer(&mut self, bytes: &[u8]) {
        let mut decoder = Decoder::with_ip(self.isa.bits(), bytes, FROM, DecoderOptions::NONE);
        let insn = decoder.decode();
        if insn.is_invalid() {
            return;
        }
        let count = self.kinds.entry(kind(&insn)).or_default();
        if *count >= self.each {
            return;
        }
        *count += 1;
        let offsets = decoder.get_constant_offsets(&insn);
        let mut bytes = bytes[..insn.len()].to_vec();
        let end = FROM + insn.len() as u64;
        let mut put = |at: usize, value: u64| bytes[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
        let absolute = insn.memory_base() == Register::None
            && insn.memory_index() == Register::None
            && offsets.displacement_size() == 4;
        if insn.is_ip_rel_memory_operand() {
            put(offsets.displacement_offset(), (DATA + 0x1000 + self.rng.below(0x40) * 64).wrapping_sub(end));
        } else if self.isa == Isa::X86 && absolute {
            put(offsets.displacement_offset(), DATA + 0x1000 + self.rng.below(0x40) * 64);
        } else if insn.near_branch_target() != 0 && offsets.immediate_size() == 4 && !self.rng.one_in(8) {
            put(offsets.immediate_offset(), (FROM + 0x100 + self.rng.below(0x800)).wrapping_sub(end));
        }
        let insn = Decoder::with_ip(self.isa.bits(), &bytes, FROM, DecoderOptions::NONE).decode();
        self.cases.push(Case { bytes, insn });
    }

    /// The bits that tell a prefix of several bytes from `les`, `lds` and `bound` in 32-bit code.
    fn not_les(&self) -> u8 {
        if self.isa == Isa::X86 { 0xc0 } else { 0 }
    }

    /// Opcode, ModRM of some forms with each opcode extension, and anything behind it.
    fn forms(&mut self, head: &[u8]) {
        for extension in 0..8u8 {
            for form in 0..4 {
                let low = self.rng.below(8) as u8;
                let modrm = match form {
                    0 => 0xc0 | low,
                    1 => 0x05,
                    2 => 0x40 | low,
                    _ => 0x84,
                };
                let mut bytes = [0; 24];
                self.rng.fill(&mut bytes);
                bytes[..head.len()].copy_from_slice(head);
                bytes[head.len()] = modrm | extension << 3;
                self.offer(&bytes[..15]);
            }
        }
    }

    /// The maps of one to three opcode bytes, with prefixes.
    pub fn legacy(&mut self) {
        let prefixes: [&[u8]; 12] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0xf0],
            &[0x67],
            &[0x2e],
            &[0x3e],
            &[0x64],
            &[0x65],
            &[0x66, 0xf2],
            &[0x66, 0xf3],
        ];
        let maps: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];
        let rex: &[&[u8]] = match self.isa {
            Isa::X86 => &[&[]],
            _ => &[&[], &[0x48], &[0x41], &[0x44], &[0x4f]],
        };
        for prefix in prefixes {
            for rex in rex {
                for map in maps {
                    for opcode in 0..=255 {
                        let head = [prefix, rex, map, &[opcode]].concat();
                        self.forms(&head);
                    }
                }
            }
        }
    }

    /// VEX (c5, c4) and XOP (8f).
    pub fn vex(&mut self) {
        for opcode in 0..=255 {
            for variant in 0..16 {
                let (pp, length, wide) = (variant % 4, variant / 4 % 2, variant / 8);
                // v is inverted: 1111 is none.
                for vvvv in [0xf, self.rng.below(16) as u8] {
                    let last = vvvv << 3 | length << 2 | pp;
                    self.forms(&[0xc5, 0x80 | last | self.not_les(), opcode]);
                    for map in 1..=3 {
                        let rxb = (self.rng.below(8) as u8) << 5;
                        self.forms(&[0xc4, rxb | map | self.not_les(), wide << 7 | last, opcode]);
                    }
                    for map in 8..=10 {
                        self.forms(&[0x8f, 0xe0 | map, wide << 7 | last, opcode]);
                    }
                }
            }
        }
    }

    /// EVEX (62), with and without broadcast, masks and zeroing.
    pub fn evex(&mut self) {
        for opcode in 0..=255 {
            for map in [1, 2, 3, 5, 6] {
                for variant in 0..48u8 {
                    let (pp, length, wide, broadcast) = (variant % 4, variant / 4 % 3, variant / 12 % 2, variant / 24);
                    let vvvv = if self.rng.one_in(2) { 0xf } else { self.rng.below(16) as u8 };
                    let mask = if self.rng.one_in(2) { 0 } else { self.rng.below(8) as u8 };
                    let zero = u8::from(mask != 0 && self.rng.one_in(3));
                    let p0 = (self.rng.below(16) as u8) << 4 | map | self.not_les();
                    let p1 = wide << 7 | vvvv << 3 | 4 | pp;
                    let p2 = zero << 7 | length << 5 | broadcast << 4 | 8 | mask;
                    self.forms(&[0x62, p0, p1, p2, opcode]);
                }
            }
        }
    }

    /// What a program or library has, if it is there.
    pub fn program(&mut self, path: &str) {
        if !std::path::Path::new(path).exists() {
            eprintln!("{path}: not installed");
            return;
        }
        let (_, text) = gas::text_of(path);
        let mut at = 0;
        while at < text.len() {
            let insn =
                Decoder::with_ip(self.isa.bits(), &text[at..text.len().min(at + 15)], FROM, DecoderOptions::NONE)
                    .decode();
            if insn.is_invalid() {
                at += 1;
                continue;
            }
            self.offer(&text[at..at + insn.len()]);
            at += insn.len();
        }
    }
}
