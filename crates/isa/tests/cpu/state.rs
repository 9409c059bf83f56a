//! Random states: registers that are pointers, numbers or anything, vectors, memory.

use std::arch::x86_64::__cpuid_count;

use iced_x86::{Instruction, OpKind, Register};
use libc::user_regs_struct;

use sidestep_isa::Isa;

use super::random::Rng;
use super::{CODE, Cpu, DATA, DATA_LEN, FS, GS, STACK, STACK_LEN};

/// What a run starts from.
#[derive(Clone)]
pub struct State {
    pub regs: user_regs_struct,
    pub xstate: Vec<u8>,
    pub data: Vec<u8>,
    pub stack: Vec<u8>,
}

/// Carry, parity, adjust, zero, sign, direction, overflow, and the one that can be changed for
/// nothing (ID).
const FLAGS: u64 = 1 | 1 << 2 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 11 | 1 << 21;
/// Bit 1 is always set, and interrupts are on.
const FLAGS_ON: u64 = 1 << 1 | 1 << 9;

/// A register by its number in encodings.
pub fn gpr(regs: &mut user_regs_struct, number: usize) -> &mut u64 {
    match number {
        0 => &mut regs.rax,
        1 => &mut regs.rcx,
        2 => &mut regs.rdx,
        3 => &mut regs.rbx,
        4 => &mut regs.rsp,
        5 => &mut regs.rbp,
        6 => &mut regs.rsi,
        7 => &mut regs.rdi,
        8 => &mut regs.r8,
        9 => &mut regs.r9,
        10 => &mut regs.r10,
        11 => &mut regs.r11,
        12 => &mut regs.r12,
        13 => &mut regs.r13,
        14 => &mut regs.r14,
        _ => &mut regs.r15,
    }
}

/// All general-purpose registers, by number.
pub fn gprs(regs: &user_regs_struct) -> [u64; 16] {
    let mut regs = *regs;
    std::array::from_fn(|number| *gpr(&mut regs, number))
}

impl State {
    /// A state in which most memory operands of `insn` are in the data.
    pub fn random(cpu: &Cpu, rng: &mut Rng, insn: &Instruction) -> State {
        let mut regs = cpu.initial();
        // What is no number of a system call makes the kernel restart nothing.
        regs.orig_rax = u64::MAX;
        regs.fs_base = DATA + 0x1000;
        regs.gs_base = DATA + 0x1800;
        // The segments of 64-bit and of 32-bit programs (asm/segment.h).
        (regs.cs, regs.ss, regs.ds, regs.es, regs.fs, regs.gs) = match cpu.isa {
            Isa::X86 => (0x23, 0x2b, 0x2b, 0x2b, FS, GS),
            _ => (0x33, 0x2b, 0, 0, 0, 0),
        };
        regs.eflags = rng.next() & FLAGS | FLAGS_ON;
        for number in 0..16 {
            *gpr(&mut regs, number) = value(rng);
        }
        regs.rsp = STACK + 0x1000 + rng.below(0x40) * 8;
        aim(&mut regs, rng, insn);
        if cpu.isa == Isa::X86 {
            (0..8).for_each(|number| *gpr(&mut regs, number) &= 0xffff_ffff);
            (8..16).for_each(|number| *gpr(&mut regs, number) = 0);
        }

        let mut state = State { regs, xstate: cpu.blank.clone(), data: vec![0; DATA_LEN], stack: vec![0; STACK_LEN] };
        rng.fill(&mut state.data);
        let word = cpu.isa.word() as usize;
        for bytes in state.data.chunks_mut(word).chain(state.stack.chunks_mut(word)) {
            if rng.one_in(2) {
                bytes.copy_from_slice(&value(rng).to_le_bytes()[..word]);
            }
        }
        vectors(&mut state.xstate, rng);
        state
    }
}

/// A pointer to data or code, a small number, or anything.
fn value(rng: &mut Rng) -> u64 {
    match rng.below(20) {
        0..=5 => DATA + 0x1000 + rng.below(0x100) * 16,
        6..=8 => DATA + 0x1000 + rng.below(0x1000),
        9..=10 => CODE + rng.below(0xf00),
        11..=14 => rng.below(64),
        15 => rng.below(64).wrapping_neg(),
        _ => rng.next(),
    }
}

/// Lets the memory operand lie in the data, as a rule.
fn aim(regs: &mut user_regs_struct, rng: &mut Rng, insn: &Instruction) {
    let base = insn.memory_base();
    let stack = base.is_gpr() && base.full_register() == Register::RSP;
    if !insn.op_kinds().any(|kind| kind == OpKind::Memory) || !base.is_gpr() || stack || rng.one_in(8) {
        return;
    }
    let align = if rng.one_in(4) { 1 } else { 64 };
    let mut at = DATA + 0x1000 + rng.below(0x1000 / align) * align;
    let index = insn.memory_index();
    if index.is_gpr() {
        let count = rng.below(32);
        *gpr(regs, index.full_register().number()) = count;
        at = at.wrapping_sub(count * u64::from(insn.memory_index_scale()));
    }
    at = at.wrapping_sub(insn.memory_displacement64());
    if matches!(insn.segment_prefix(), Register::FS | Register::GS) {
        at = at.wrapping_sub(DATA + 0x1000);
    }
    // The upper half does not matter for a 32-bit address.
    let upper = if base.is_gpr32() { rng.next() << 32 } else { 0 };
    let low = if base.is_gpr32() { at & 0xffff_ffff } else { at };
    *gpr(regs, base.full_register().number()) = low | upper;
}

/// Fills x87, vector and mask registers of an area as `xsave` has it (SDM volume 1, section 13.4).
fn vectors(area: &mut [u8], rng: &mut Rng) {
    // Any rounding; now and then exceptions that are not masked.
    let raised = if rng.one_in(8) { rng.below(64) } else { 0 };
    let (x87, sse) = (0x037f & !raised | rng.below(4) << 10, 0x1f80 & !(raised << 7) | rng.below(8) << 13);
    area[0..2].copy_from_slice(&(x87 as u16).to_le_bytes());
    area[2..4].fill(0);
    area[4] = if rng.one_in(2) { 0xff } else { 0 };
    area[24..28].copy_from_slice(&(sse as u32).to_le_bytes());
    for register in area[32..160].chunks_mut(16) {
        rng.fill(&mut register[..10]);
        // An exponent of a number that is neither huge nor tiny, mostly.
        if !rng.one_in(4) {
            register[7] |= 0x80;
            register[8..10].copy_from_slice(&(0x3fff_u16 + rng.below(40) as u16).to_le_bytes());
        }
    }
    // Components: 1 SSE, 2 AVX, 5 masks, 6 upper halves of zmm0-15, 7 zmm16-31.
    let enabled = u64::from_le_bytes(area[464..472].try_into().expect("8 bytes"));
    let small = rng.one_in(3);
    let mut used = 3;
    for component in [1, 2, 5, 6, 7] {
        if enabled >> component & 1 == 0 {
            continue;
        }
        // SAFETY: every x86-64 CPU has the instruction.
        #[allow(unused_unsafe)]
        let found = unsafe { __cpuid_count(0xd, component) };
        let (at, len) = if component == 1 { (160, 256) } else { (found.ebx as usize, found.eax as usize) };
        let Some(bytes) = area.get_mut(at..at + len) else { continue };
        rng.fill(bytes);
        if small {
            // Numbers that gathers find data by.
            bytes.iter_mut().enumerate().for_each(|(i, byte)| *byte &= if i % 4 == 0 { 0x7f } else { 0 });
        }
        used |= 1 << component;
    }
    area[512..520].copy_from_slice(&(used | 1_u64).to_le_bytes());
}
