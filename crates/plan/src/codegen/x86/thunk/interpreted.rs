//! A program that is not compiled: a function as native code would be, which calls the interpreter
//! in the agent.
//!
//! `agent_interpret(regs, slots, len: u64, stack_end: u64, stack_len: u64, state)` runs the
//! program's `len` instructions at `slots`, on a stack that the function has.

use sidestep_isa::x86::emit::{Asm, Reg};
use sidestep_isa::{Isa, Va};

use crate::codegen::thunk::Interpreted;

/// See [`crate::thunk::interpreted`].
pub(crate) fn interpreted(isa: Isa, stack: i32, len: usize) -> Interpreted {
    match isa {
        Isa::X86 => in_32_bit_code(stack, len),
        _ => in_64_bit_code(stack, len),
    }
}

fn in_64_bit_code(stack: i32, len: usize) -> Interpreted {
    let mut asm = Asm::new(Va(0));
    // The return address makes the frame a multiple of 16.
    asm.lea(Reg::Rsp, Reg::Rsp, -(stack + 8));
    asm.lea(Reg::Rcx, Reg::Rsp, stack);
    asm.mov_imm64(Reg::R8, stack as u64);
    asm.mov_imm64(Reg::Rdx, len as u64);
    asm.mov_imm64(Reg::Rsi, 0);
    let slots_at = asm.len() - 8;
    asm.mov_imm64(Reg::Rax, 0);
    let interpreter_at = asm.len() - 8;
    asm.call_reg(Reg::Rax);
    asm.lea(Reg::Rsp, Reg::Rsp, stack + 8);
    asm.ret();
    Interpreted { bytes: asm.finish(), slots_at, interpreter_at }
}

fn in_32_bit_code(stack: i32, len: usize) -> Interpreted {
    /// From `esp`: room for the arguments of the interpreter.
    const ARGUMENTS: i32 = 48;
    /// From `ebp`: the context, and behind four other words of 64 bits the thread's state.
    const CONTEXT: i32 = 8;
    const STATE: i32 = CONTEXT + 5 * 8;
    let mut asm = Asm::of(Isa::X86, Va(0));
    asm.push(Reg::Rbp);
    asm.mov(Reg::Rbp, Reg::Rsp);
    // Return address and `ebp` are 8 bytes.
    asm.lea(Reg::Rsp, Reg::Rsp, -(stack + ARGUMENTS + 8));
    asm.load(Reg::Rax, Reg::Rbp, CONTEXT);
    asm.store(Reg::Rsp, 0, Reg::Rax);
    asm.store_imm(Reg::Rsp, 4, 0);
    let slots_at = asm.len() - 4;
    asm.store_imm(Reg::Rsp, 8, len as i32);
    asm.store_imm(Reg::Rsp, 12, 0);
    asm.lea(Reg::Rcx, Reg::Rsp, ARGUMENTS + stack);
    asm.store(Reg::Rsp, 16, Reg::Rcx);
    asm.store_imm(Reg::Rsp, 20, 0);
    asm.store_imm(Reg::Rsp, 24, stack);
    asm.store_imm(Reg::Rsp, 28, 0);
    asm.load(Reg::Rcx, Reg::Rbp, STATE);
    asm.store(Reg::Rsp, 32, Reg::Rcx);
    asm.mov_imm32(Reg::Rax, 0);
    let interpreter_at = asm.len() - 4;
    asm.call_reg(Reg::Rax);
    asm.mov(Reg::Rsp, Reg::Rbp);
    asm.pop(Reg::Rbp);
    asm.ret();
    Interpreted { bytes: asm.finish(), slots_at, interpreter_at }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn addresses_are_where_it_says() {
        for (isa, load) in [(Isa::X64, "mov"), (Isa::X86, "mov")] {
            let mut made = interpreted(isa, 512, 3);
            let word = isa.word() as usize;
            let (slots, interpreter) = (0x0123_4560u64.to_le_bytes(), 0x0654_3210u64.to_le_bytes());
            made.bytes[made.slots_at..][..word].copy_from_slice(&slots[..word]);
            made.bytes[made.interpreter_at..][..word].copy_from_slice(&interpreter[..word]);
            let text: Vec<String> =
                sidestep_isa::sweep(isa, &made.bytes, Va(0)).map(|insn| insn.unwrap().to_string()).collect();
            let one = |what: &str| text.iter().filter(|line| line.contains(what) && line.starts_with(load)).count();
            assert_eq!((one("$0x1234560"), one("$0x6543210")), (1, 1), "{text:?}");
        }
    }
}
