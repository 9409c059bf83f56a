//! Arguments of USDT probes, as libbpf's `bpf_usdt_arg` finds them: by a specification that the cookie is the key of.

use sidestep_bpf::{AluOp, Cond, Insn, Reg, Size, Width};

use super::{Lower, USDT, helper};

/// Bytes of `struct __bpf_usdt_arg_spec`, and where its fields are.
const SPEC: i16 = 16;
const VALUE: i16 = 0;
const KIND: i16 = 8;
const REGISTER: i16 = 12;
const SIGNED: i16 = 14;
const SHIFT: i16 = 15;
/// Behind them all, how many there are.
const COUNT: i16 = 200;
/// Kinds of arguments.
const CONSTANT: i32 = 0;
const IN_REGISTER: i32 = 1;

impl Lower<'_, '_> {
    /// Argument `n` into `r0`; 0 if there is none.
    pub(super) fn usdt_argument(&mut self, n: u32) {
        let used = self.used;
        let (key, word) = (self.stack(8), self.stack(8));
        let (done, missing, shift, end) = (self.out.label(), self.out.label(), self.out.label(), self.out.label());
        let base = SPEC * n as i16;
        self.out.mov(Reg::R1, Reg::R6);
        self.out.call(helper::COOKIE);
        self.out.put(Reg::R10, key, Reg::R0);
        self.out.map(Reg::R1, USDT);
        self.out.mov(Reg::R2, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R2, key.into());
        self.out.call(helper::LOOKUP);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R0, 0, missing);
        self.out.mov(Reg::R7, Reg::R0);
        self.out.load(Size::H, Reg::R1, Reg::R7, COUNT);
        self.out.branch_imm(Width::W64, Cond::Le, Reg::R1, n as i32, missing);
        self.out.load(Size::Dw, Reg::R0, Reg::R7, base + VALUE);
        self.out.load(Size::W, Reg::R1, Reg::R7, base + KIND);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R1, CONSTANT, shift);
        // The register lies at an offset that is only known now.
        self.out.put_imm(Reg::R10, word, 0);
        self.out.load(Size::H, Reg::R2, Reg::R7, base + REGISTER);
        self.out.mov(Reg::R3, Reg::R6);
        self.out.alu(AluOp::Add, Reg::R3, Reg::R2);
        self.read_word(word, helper::READ_KERNEL);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, word);
        self.out.load(Size::W, Reg::R1, Reg::R7, base + KIND);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R1, IN_REGISTER, shift);
        self.out.load(Size::Dw, Reg::R3, Reg::R7, base + VALUE);
        self.out.alu(AluOp::Add, Reg::R3, Reg::R0);
        self.out.put_imm(Reg::R10, word, 0);
        self.read_word(word, helper::READ_USER);
        self.out.load(Size::Dw, Reg::R0, Reg::R10, word);
        self.out.bind(shift);
        self.out.load(Size::B, Reg::R1, Reg::R7, base + SHIFT);
        self.out.alu_imm(AluOp::And, Reg::R1, 63);
        self.out.alu(AluOp::Lsh, Reg::R0, Reg::R1);
        self.out.load(Size::B, Reg::R2, Reg::R7, base + SIGNED);
        self.out.branch_imm(Width::W64, Cond::Eq, Reg::R2, 0, done);
        self.out.alu(AluOp::Arsh, Reg::R0, Reg::R1);
        self.out.goto(end);
        self.out.bind(done);
        self.out.alu(AluOp::Rsh, Reg::R0, Reg::R1);
        self.out.goto(end);
        self.out.bind(missing);
        self.out.mov_imm(Reg::R0, 0);
        self.out.bind(end);
        self.release(used);
    }

    /// 8 bytes at `r3` into a word on the stack.
    fn read_word(&mut self, word: i16, reader: u32) {
        self.out.mov(Reg::R1, Reg::R10);
        self.out.alu_imm(AluOp::Add, Reg::R1, word.into());
        self.out.mov_imm(Reg::R2, 8);
        self.out.push(Insn::CallHelper(reader));
    }
}
