//! Patterns with stars and sets, as functions: the automaton's states are the bits of a word.

use sidestep_bpf::{AluOp, Cond, Insn, Reg, Size, Width};

use crate::build::Builder;
use crate::uprobe_events::pattern::{Pattern, Token};

/// `r0` = whether the string at `r1`, in a memory of `room` bytes, is what the pattern says.
///
/// `r2` has the states, `r3` the index, `r4` the byte, `r5` which tokens take it.
pub(super) fn function(out: &mut Builder, pattern: &Pattern, room: usize) {
    let (next, end) = (out.label(), out.label());
    out.mov_imm(Reg::R2, 1);
    out.mov_imm(Reg::R3, 0);
    out.bind(next);
    out.mov(Reg::R4, Reg::R1);
    out.alu(AluOp::Add, Reg::R4, Reg::R3);
    out.load(Size::B, Reg::R4, Reg::R4, 0);
    out.branch_imm(Width::W64, Cond::Eq, Reg::R4, 0, end);
    tokens(out, pattern);
    out.mov(Reg::R0, Reg::R2);
    out.alu(AluOp::And, Reg::R0, Reg::R5);
    out.alu_imm(AluOp::Lsh, Reg::R0, 1);
    out.alu_value(AluOp::And, Reg::R2, pattern.stars, Reg::R5);
    out.alu(AluOp::Or, Reg::R2, Reg::R0);
    out.branch_imm(Width::W64, Cond::Eq, Reg::R2, 0, end);
    out.alu_imm(AluOp::Add, Reg::R3, 1);
    out.branch_imm(Width::W64, Cond::Lt, Reg::R3, room as i32, next);
    out.bind(end);
    out.mov(Reg::R0, Reg::R2);
    if !pattern.tokens.is_empty() {
        out.alu_imm(AluOp::Rsh, Reg::R0, pattern.tokens.len() as i32);
    }
    out.alu_imm(AluOp::And, Reg::R0, 1);
    out.push(Insn::Exit);
}

/// A bit in `r5` for each token that takes the byte in `r4`; without branches.
fn tokens(out: &mut Builder, pattern: &Pattern) {
    let mut sets: Vec<(&Token, u64)> = Vec::new();
    for (index, token) in pattern.tokens.iter().enumerate() {
        match sets.iter_mut().find(|(known, _)| *known == token) {
            Some((_, mask)) => *mask |= 1 << index,
            None => sets.push((token, 1 << index)),
        }
    }
    let always = sets.iter().find(|(token, _)| **token == Token::Any).map_or(0, |(_, mask)| *mask);
    out.set(Reg::R5, always);
    for (token, mask) in sets {
        match token {
            Token::Any => continue,
            Token::Byte(byte) => {
                // Only 0 becomes negative.
                out.mov(Reg::R0, Reg::R4);
                out.alu_imm(AluOp::Xor, Reg::R0, i32::from(*byte));
                out.alu_imm(AluOp::Sub, Reg::R0, 1);
                out.sign(Reg::R0);
            }
            Token::Class { negated, ranges } => class(out, *negated, ranges),
        }
        out.alu_value(AluOp::And, Reg::R0, mask, Reg::R6);
        out.alu(AluOp::Or, Reg::R5, Reg::R0);
    }
}

/// All ones in `r0` if the byte in `r4` is in the class, else 0.
fn class(out: &mut Builder, negated: bool, ranges: &[(u8, u8)]) {
    out.mov_imm(Reg::R0, 0);
    for (first, last) in ranges {
        // Negative if it is below the first or above the last.
        out.mov(Reg::R6, Reg::R4);
        out.alu_imm(AluOp::Sub, Reg::R6, i32::from(*first));
        out.mov_imm(Reg::R7, i32::from(*last));
        out.alu(AluOp::Sub, Reg::R7, Reg::R4);
        out.alu(AluOp::Or, Reg::R6, Reg::R7);
        out.sign(Reg::R6);
        out.invert(Reg::R6);
        out.alu(AluOp::Or, Reg::R0, Reg::R6);
    }
    if negated {
        out.invert(Reg::R0);
    }
}
