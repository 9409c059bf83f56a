//! A small assembler for generated code: just the instructions that detours and thunks use.
//!
//! Registers and words of memory have the width of an address. What one of the two kinds of code
//! does not have is said.
//!
//! Encodings are from the Intel SDM, volume 2; the tests decode everything again with `iced-x86`.

use crate::insn::RegisterSet;
use crate::{Isa, Va};

mod branch;
mod patch;
mod short;

pub use patch::{
    SETS_THREAD_POINTER_LEN, TRAP_PATCH, jump_patch, jump_patch_target, sets_thread_pointer, short_jump_patch,
    thread_pointer_through_self,
};

/// A general-purpose register, by its number in encodings. In 32-bit code, the first eight by their
/// names there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Reg {
    Rax = 0,
    Rcx = 1,
    Rdx = 2,
    Rbx = 3,
    Rsp = 4,
    Rbp = 5,
    Rsi = 6,
    Rdi = 7,
    R8 = 8,
    R9 = 9,
    R10 = 10,
    R11 = 11,
    R12 = 12,
    R13 = 13,
    R14 = 14,
    R15 = 15,
}

impl Reg {
    /// Its bit in a register set.
    #[must_use]
    pub fn bit(self) -> RegisterSet {
        1 << self as u8
    }

    fn low(self) -> u8 {
        self as u8 & 7
    }

    fn high(self) -> u8 {
        self as u8 >> 3
    }
}

/// A condition of `jcc`, as encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Cond {
    /// Equal, zero.
    E = 4,
    /// Not equal, not zero.
    Ne = 5,
    /// Below or equal: the first operand is not the greater one, unsigned.
    Be = 6,
    /// Above: the first operand is the greater one, unsigned.
    A = 7,
}

/// A place in the code that is being assembled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Label(usize);

/// Code being assembled for a known address.
#[derive(Debug)]
pub struct Asm {
    isa: Isa,
    at: Va,
    bytes: Vec<u8>,
    labels: Vec<Option<usize>>,
    /// Where distances to labels are, and how many bytes they have.
    fixups: Vec<(usize, Label, usize)>,
    near: bool,
}

impl Asm {
    /// 64-bit code that starts at a run-time address.
    #[must_use]
    pub fn new(at: Va) -> Asm {
        Asm::of(Isa::X64, at)
    }

    /// Code that starts at a run-time address.
    #[must_use]
    pub fn of(isa: Isa, at: Va) -> Asm {
        Asm { isa, at, bytes: Vec::new(), labels: Vec::new(), fixups: Vec::new(), near: false }
    }

    /// As [`Asm::of`]; jumps to labels have a distance of one byte. Whether that is enough,
    /// [`Asm::fits`] says in the end.
    #[must_use]
    pub fn near(isa: Isa, at: Va) -> Asm {
        Asm { near: true, ..Asm::of(isa, at) }
    }

    /// Whether all jumps reach their labels, all of which are bound.
    #[must_use]
    pub fn fits(&self) -> bool {
        self.fixups
            .iter()
            .all(|fixup| fixup.2 == 4 || self.distance(fixup).is_some_and(|far| i8::try_from(far).is_ok()))
    }

    /// From behind a distance to the label that it leads to.
    fn distance(&self, (pos, label, len): &(usize, Label, usize)) -> Option<i64> {
        Some(self.labels[label.0]? as i64 - (pos + len) as i64)
    }

    /// Bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Nothing emitted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The address of the next instruction.
    #[must_use]
    pub fn here(&self) -> Va {
        Va(self.at.0 + self.bytes.len() as u64)
    }

    /// Resolves all labels and gives the code. A label that was used must have been bound.
    ///
    /// # Panics
    /// If a used label was never bound: an error in the caller, found by its first test.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        for fixup in std::mem::take(&mut self.fixups) {
            let rel = self.distance(&fixup).expect("label is bound");
            let (pos, _, len) = fixup;
            self.bytes[pos..pos + len].copy_from_slice(&rel.to_le_bytes()[..len]);
        }
        self.bytes
    }

    /// Raw bytes.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Code with distances of 4 bytes, at these offsets, that are to lead to labels.
    pub fn code(&mut self, bytes: &[u8], branches: &[(usize, Label)]) {
        let start = self.bytes.len();
        self.fixups.extend(branches.iter().map(|(at, label)| (start + at, *label, 4)));
        self.raw(bytes);
    }

    /// A label to be bound later.
    pub fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Binds a label here.
    pub fn bind(&mut self, label: Label) {
        self.labels[label.0] = Some(self.bytes.len());
    }

    fn rel32(&mut self, label: Label) {
        self.fixups.push((self.bytes.len(), label, 4));
        self.bytes.extend_from_slice(&[0; 4]);
    }

    fn rel8(&mut self, label: Label) {
        self.fixups.push((self.bytes.len(), label, 1));
        self.bytes.push(0);
    }

    fn imm32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// A REX prefix (SDM volume 2, section 2.2.1). In 32-bit code there is none.
    fn rex(&mut self, prefix: u8) {
        if self.isa == Isa::X64 {
            self.bytes.push(prefix);
        }
    }

    /// REX.W, opcode and ModRM for `reg, [base + disp32]`.
    fn mem(&mut self, prefix: &[u8], opcode: &[u8], reg: u8, base: Reg, disp: i32) {
        self.raw(prefix);
        self.rex(0x48 | (reg >> 3) << 2 | base.high());
        self.raw(opcode);
        self.modrm_disp(reg & 7, base, disp);
    }

    fn modrm_disp(&mut self, reg: u8, base: Reg, disp: i32) {
        let short = i8::try_from(disp).ok();
        let mode = if short.is_some() { 0x40 } else { 0x80 };
        self.bytes.push(mode | reg << 3 | base.low());
        if base.low() == 4 {
            self.bytes.push(0x24);
        }
        match short {
            Some(d) => self.bytes.push(d as u8),
            None => self.imm32(disp),
        }
    }

    /// `push reg`
    pub fn push(&mut self, reg: Reg) {
        if reg.high() == 1 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x50 | reg.low());
    }

    /// `pop reg`
    pub fn pop(&mut self, reg: Reg) {
        if reg.high() == 1 {
            self.bytes.push(0x41);
        }
        self.bytes.push(0x58 | reg.low());
    }

    /// `push imm32`, sign-extended.
    pub fn push_imm(&mut self, value: i32) {
        self.bytes.push(0x68);
        self.imm32(value);
    }

    /// `mov dst, src`
    pub fn mov(&mut self, dst: Reg, src: Reg) {
        self.rex(0x48 | src.high() << 2 | dst.high());
        self.raw(&[0x89, 0xc0 | src.low() << 3 | dst.low()]);
    }

    /// `movabs dst, imm64` (64-bit code)
    pub fn mov_imm64(&mut self, dst: Reg, value: u64) {
        self.raw(&[0x48 | dst.high(), 0xb8 | dst.low()]);
        self.raw(&value.to_le_bytes());
    }

    /// `mov dst, [base + disp]`
    pub fn load(&mut self, dst: Reg, base: Reg, disp: i32) {
        self.mem(&[], &[0x8b], dst as u8, base, disp);
    }

    /// `mov dst32, [base + disp]`: zero-extends.
    pub fn load32(&mut self, dst: Reg, base: Reg, disp: i32) {
        self.rex(0x40 | dst.high() << 2 | base.high());
        self.bytes.push(0x8b);
        self.modrm_disp(dst.low(), base, disp);
    }

    /// `mov [base + disp], src`
    pub fn store(&mut self, base: Reg, disp: i32, src: Reg) {
        self.mem(&[], &[0x89], src as u8, base, disp);
    }

    /// `mov [base + disp], imm32`, sign-extended.
    pub fn store_imm(&mut self, base: Reg, disp: i32, value: i32) {
        self.mem(&[], &[0xc7], 0, base, disp);
        self.imm32(value);
    }

    /// `pushfq`
    pub fn pushf(&mut self) {
        self.bytes.push(0x9c);
    }

    /// `pop [base + disp]`; a displacement from `rsp` counts from what it is afterwards.
    pub fn pop_to(&mut self, base: Reg, disp: i32) {
        self.mem(&[], &[0x8f], 0, base, disp);
    }

    /// `add dst, src`
    pub fn add(&mut self, dst: Reg, src: Reg) {
        self.rex(0x48 | src.high() << 2 | dst.high());
        self.raw(&[0x01, 0xc0 | src.low() << 3 | dst.low()]);
    }

    /// `lea dst, [base + disp]`: arithmetic without flags.
    pub fn lea(&mut self, dst: Reg, base: Reg, disp: i32) {
        self.mem(&[], &[0x8d], dst as u8, base, disp);
    }

    /// `lea dst, [rip + …]` of a label of this code (64-bit code).
    pub fn lea_label(&mut self, dst: Reg, label: Label) {
        self.raw(&[0x48 | dst.high() << 2, 0x8d, 0x05 | dst.low() << 3]);
        self.rel32(label);
    }

    /// The thread pointer (`fs` base) of 64-bit code, in [`THREAD_POINTER_LEN`] bytes either way.
    ///
    /// `rdfsbase` always works, but waits until all older instructions have retired, and what
    /// depends on it waits too (6 ns on Zen). `mov %fs:0` is an ordinary load; the word is the
    /// pointer itself wherever TLS is set up according to the ABI (ELF Handling for Thread-Local
    /// Storage, 3.4.6), and unmapped before that.
    pub fn thread_pointer(&mut self, dst: Reg, through_self: bool) {
        if through_self {
            self.raw(&[0x64, 0x48 | dst.high() << 2, 0x8b, 0x04 | dst.low() << 3, 0x25, 0, 0, 0, 0]);
        } else {
            self.raw(&[0xf3, 0x48 | dst.high(), 0x0f, 0xae, 0xc0 | dst.low(), 0x0f, 0x1f, 0x40, 0]);
        }
    }

    /// `imul dst, src, imm32`
    pub fn imul_imm(&mut self, dst: Reg, src: Reg, value: i32) {
        self.rex(0x48 | dst.high() << 2 | src.high());
        self.raw(&[0x69, 0xc0 | dst.low() << 3 | src.low()]);
        self.imm32(value);
    }

    /// `shr dst, imm8`
    pub fn shr(&mut self, dst: Reg, by: u8) {
        self.rex(0x48 | dst.high());
        self.raw(&[0xc1, 0xe8 | dst.low(), by]);
    }

    /// `and dst32, imm32`: zero-extends.
    pub fn and32(&mut self, dst: Reg, mask: i32) {
        if dst.high() == 1 {
            self.bytes.push(0x41);
        }
        self.raw(&[0x81, 0xe0 | dst.low()]);
        self.imm32(mask);
    }

    /// `and dst, imm8`, sign-extended.
    pub fn and_imm8(&mut self, dst: Reg, mask: i8) {
        self.rex(0x48 | dst.high());
        self.raw(&[0x83, 0xe0 | dst.low(), mask as u8]);
    }

    /// `cmp [base + disp], reg`
    pub fn cmp_mem(&mut self, base: Reg, disp: i32, reg: Reg) {
        self.mem(&[], &[0x39], reg as u8, base, disp);
    }

    /// `cmp [base + disp], imm8`, sign-extended.
    pub fn cmp_imm8(&mut self, base: Reg, disp: i32, value: i8) {
        self.mem(&[], &[0x83], 7, base, disp);
        self.bytes.push(value as u8);
    }

    /// `cmp qword [at], imm8`, sign-extended, of an address below 2 GiB (64-bit code).
    pub fn cmp_at_imm8(&mut self, at: i32, value: i8) {
        self.raw(&[0x48, 0x83, 0x3c, 0x25]);
        self.imm32(at);
        self.bytes.push(value as u8);
    }

    /// `cmpxchg [base + disp], src`, without `lock`: if the word is `rax`, it becomes `src`.
    pub fn replace(&mut self, base: Reg, disp: i32, src: Reg) {
        self.mem(&[], &[0x0f, 0xb1], src as u8, base, disp);
    }

    /// `bts reg, imm8` (64-bit code)
    pub fn set_bit(&mut self, reg: Reg, bit: u8) {
        self.raw(&[0x48 | reg.high(), 0x0f, 0xba, 0xe8 | reg.low(), bit]);
    }

    /// `test reg, reg`
    pub fn test(&mut self, reg: Reg) {
        self.rex(0x48 | reg.high() << 2 | reg.high());
        self.raw(&[0x85, 0xc0 | reg.low() << 3 | reg.low()]);
    }

    /// `add qword [base + disp], 1` (64-bit code); with `lock` for memory that threads share.
    pub fn add_one(&mut self, base: Reg, disp: i32, lock: bool) {
        let prefix: &[u8] = if lock { &[0xf0] } else { &[] };
        self.mem(prefix, &[0x83], 0, base, disp);
        self.bytes.push(1);
    }

    /// `lea dst, [base + index * 8]`
    pub fn lea_index8(&mut self, dst: Reg, base: Reg, index: Reg) {
        self.rex(0x48 | dst.high() << 2 | index.high() << 1 | base.high());
        self.raw(&[0x8d, 0x44 | dst.low() << 3, 0xc0 | index.low() << 3 | base.low(), 0]);
    }

    /// Saves the arithmetic flags in `ax`: `lahf; seto al`. Does not change them.
    pub fn flags_to_ax(&mut self) {
        self.raw(&[0x9f, 0x0f, 0x90, 0xc0]);
    }

    /// Restores what [`Asm::flags_to_ax`] saved: `add al, 0x7f; sahf`.
    pub fn ax_to_flags(&mut self) {
        self.raw(&[0x04, 0x7f, 0x9e]);
    }

    /// `movups [rsp + disp], xmm`
    pub fn store_xmm(&mut self, disp: i32, xmm: u8) {
        self.xmm_rsp(0x11, disp, xmm);
    }

    /// `movups xmm, [rsp + disp]`
    pub fn load_xmm(&mut self, disp: i32, xmm: u8) {
        self.xmm_rsp(0x10, disp, xmm);
    }

    /// `movq [rsp + disp], xmm`: the lower half of one of the first eight.
    pub fn store_xmm_low(&mut self, disp: i32, xmm: u8) {
        self.raw(&[0x66, 0x0f, 0xd6]);
        self.modrm_disp(xmm & 7, Reg::Rsp, disp);
    }

    fn xmm_rsp(&mut self, opcode: u8, disp: i32, xmm: u8) {
        if xmm > 7 {
            self.bytes.push(0x44);
        }
        self.raw(&[0x0f, opcode]);
        self.modrm_disp(xmm & 7, Reg::Rsp, disp);
    }

    /// `mov eax, imm32; syscall`; in 32-bit code `int 0x80`.
    pub fn syscall(&mut self, number: u32) {
        self.bytes.push(0xb8);
        self.raw(&number.to_le_bytes());
        self.raw(if self.isa == Isa::X86 { &[0xcd, 0x80] } else { &[0x0f, 0x05] });
    }

    /// `int3` up to an alignment.
    pub fn align(&mut self, to: usize) {
        while self.bytes.len() % to != 0 {
            self.bytes.push(0xcc);
        }
    }
}

/// Length of what [`Asm::thread_pointer`] emits.
pub const THREAD_POINTER_LEN: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter};

    pub(super) fn text(asm: Asm) -> Vec<String> {
        let (bits, at) = (asm.isa.bits(), asm.at.0);
        let code = asm.finish();
        let mut out = Vec::new();
        let mut f = GasFormatter::new();
        f.options_mut().set_branch_leading_zeros(false);
        for insn in &mut Decoder::with_ip(bits, &code, at, DecoderOptions::NONE) {
            let mut s = String::new();
            f.format(&insn, &mut s);
            out.push(s);
        }
        out
    }

    #[test]
    fn every_instruction_decodes_to_what_was_meant() {
        let mut a = Asm::new(Va(0x1000));
        a.push(Reg::R9);
        a.pop(Reg::Rbx);
        a.push_imm(-2);
        a.mov(Reg::R8, Reg::Rcx);
        a.mov_imm64(Reg::R10, 0x1122_3344_5566_7788);
        a.load(Reg::R9, Reg::Rsp, 8);
        a.load(Reg::Rax, Reg::R12, 0x1000);
        a.load32(Reg::R9, Reg::Rbx, 0x60);
        a.store(Reg::R13, 0, Reg::Rdx);
        a.lea(Reg::Rsp, Reg::Rsp, -128);
        a.thread_pointer(Reg::R11, false);
        a.thread_pointer(Reg::R11, true);
        a.thread_pointer(Reg::Rcx, true);
        a.imul_imm(Reg::R11, Reg::Rax, 0x1e37_79b1);
        a.shr(Reg::R11, 27);
        a.and32(Reg::R11, 0x3ffe0);
        a.and_imm8(Reg::Rsp, -16);
        a.cmp_mem(Reg::R11, 0x4000_0040, Reg::Rax);
        a.test(Reg::R9);
        a.add_one(Reg::Rcx, 8, false);
        a.add_one(Reg::Rcx, 0x400, true);
        a.lea_index8(Reg::Rax, Reg::R9, Reg::Rcx);
        a.store_xmm(16, 9);
        a.load_xmm(0, 1);
        a.store_xmm_low(0x140, 7);
        a.call_reg(Reg::R11);
        a.call_mem_rsp(-16);
        a.flags_to_ax();
        a.ax_to_flags();
        a.ret();
        let want = [
            "push %r9",
            "pop %rbx",
            "push $0xFFFFFFFFFFFFFFFE",
            "mov %rcx,%r8",
            "movabs $0x1122334455667788,%r10",
            "mov 8(%rsp),%r9",
            "mov 0x1000(%r12),%rax",
            "mov 0x60(%rbx),%r9d",
            "mov %rdx,(%r13)",
            "lea -0x80(%rsp),%rsp",
            "rdfsbase %r11",
            "nopl (%rax)",
            "mov %fs:0,%r11",
            "mov %fs:0,%rcx",
            "imul $0x1E3779B1,%rax,%r11",
            "shr $0x1B,%r11",
            "and $0x3FFE0,%r11d",
            "and $0xFFFFFFFFFFFFFFF0,%rsp",
            "cmp %rax,0x40000040(%r11)",
            "test %r9,%r9",
            "addq $1,8(%rcx)",
            "lock addq $1,0x400(%rcx)",
            "lea (%r9,%rcx,8),%rax",
            "movups %xmm9,0x10(%rsp)",
            "movups (%rsp),%xmm1",
            "movq %xmm7,0x140(%rsp)",
            "call *%r11",
            "callq *-0x10(%rsp)",
            "lahf",
            "seto %al",
            "add $0x7F,%al",
            "sahf",
            "ret",
        ];
        assert_eq!(text(a), want);
    }
}
