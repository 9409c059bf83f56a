//! Instructions that only 32-bit code uses.

use super::{Asm, Reg};
use crate::{Isa, Va};

/// Length of what [`Asm::thread_pointer_32`] emits.
pub const THREAD_POINTER_32_LEN: usize = 14;

/// `mov %gs,%reg; and $-4,%reg; jz 1f; mov %gs:0,%reg; 1:`
pub(super) fn asking(reg: u8) -> [u8; THREAD_POINTER_32_LEN] {
    [0x8c, 0xe8 | reg, 0x83, 0xe0 | reg, 0xfc, 0x74, 7, 0x65, 0x8b, 5 | reg << 3, 0, 0, 0, 0]
}

/// `mov %gs:0,%reg`, and a nop.
pub(super) fn through_self(reg: u8) -> [u8; THREAD_POINTER_32_LEN] {
    [0x65, 0x8b, 5 | reg << 3, 0, 0, 0, 0, 0x0f, 0x1f, 0x80, 0, 0, 0, 0]
}

impl Asm {
    /// Which kind of code it is.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `mov dst, imm32`
    pub fn mov_imm32(&mut self, dst: Reg, value: u32) {
        self.raw(&[0xb8 | dst.low()]);
        self.raw(&value.to_le_bytes());
    }

    /// The thread pointer: the word at `%gs:0`, which is that pointer itself wherever TLS is set up
    /// (ELF Handling for Thread-Local Storage, 3.4.6). Before that `gs` selects nothing, and the
    /// pointer is 0. Changes the flags.
    pub fn thread_pointer_32(&mut self, dst: Reg, by_itself: bool) {
        let code = if by_itself { through_self(dst.low()) } else { asking(dst.low()) };
        self.raw(&code);
    }

    /// `call` of any address.
    pub fn call_any(&mut self, target: Va) {
        let distance = target.since(self.here()) - 5;
        self.raw(&[0xe8]);
        self.raw(&(distance as i32).to_le_bytes());
    }

    /// `mul reg`: `edx:eax = eax * reg`
    pub fn mul(&mut self, reg: Reg) {
        self.raw(&[0xf7, 0xe0 | reg.low()]);
    }

    /// `shl dst, imm8`
    pub fn shl(&mut self, dst: Reg, by: u8) {
        self.raw(&[0xc1, 0xe0 | dst.low(), by]);
    }

    /// `xor reg, reg`
    pub fn clear(&mut self, reg: Reg) {
        self.raw(&[0x31, 0xc0 | reg.low() << 3 | reg.low()]);
    }

    /// `add dword [base + disp], value; adc dword [base + disp + 4], 0`: a word of 64 bits that no
    /// other thread writes. `value` is 127 at most.
    pub fn add_to_64(&mut self, base: Reg, disp: i32, value: u8) {
        self.mem(&[], &[0x83], 0, base, disp);
        self.raw(&[value]);
        self.mem(&[], &[0x83], 2, base, disp.wrapping_add(4));
        self.raw(&[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::text;
    use super::*;
    use crate::x86::emit::Cond;

    #[test]
    fn every_instruction_decodes_to_what_was_meant() {
        let mut a = Asm::of(Isa::X86, Va(0x1000));
        a.push(Reg::Rbp);
        a.pop(Reg::Rdi);
        a.push_imm(-2);
        a.mov(Reg::Rbx, Reg::Rsp);
        a.mov_imm32(Reg::Rsi, 0xf122_3344);
        a.load(Reg::Rcx, Reg::Rsp, 8);
        a.load32(Reg::Rcx, Reg::Rbx, 0x1000);
        a.store(Reg::Rbx, -4, Reg::Rdx);
        a.store_imm(Reg::Rsp, 4, -1);
        a.lea(Reg::Rsp, Reg::Rsp, -300);
        a.thread_pointer_32(Reg::Rcx, true);
        let gs = a.label();
        a.thread_pointer_32(Reg::Rsi, false);
        a.bind(gs);
        a.call_any(Va(0xf7c0_0000));
        a.mul(Reg::Rcx);
        a.and32(Reg::Rdx, 0x1fff);
        a.and_imm8(Reg::Rsp, -16);
        a.shl(Reg::Rdx, 5);
        a.clear(Reg::Rax);
        a.cmp_mem(Reg::Rdx, 0x4000_0040, Reg::Rcx);
        a.cmp_imm8(Reg::Rbx, 8, 0);
        a.test(Reg::Rcx);
        a.add_to_64(Reg::Rcx, 0x400, 1);
        a.add(Reg::Rcx, Reg::Rdx);
        a.imul_imm(Reg::Rcx, Reg::Rax, 0x60);
        a.pushf();
        a.pop_to(Reg::Rsp, 8);
        a.store_xmm(16, 3);
        a.jcc(Cond::E, gs);
        a.flags_to_ax();
        a.ax_to_flags();
        a.ret_drop(4);
        a.syscall(173);
        let want = [
            "push %ebp",
            "pop %edi",
            "push $0xFFFFFFFE",
            "mov %esp,%ebx",
            "mov $0xF1223344,%esi",
            "mov 8(%esp),%ecx",
            "mov 0x1000(%ebx),%ecx",
            "mov %edx,-4(%ebx)",
            "movl $0xFFFFFFFF,4(%esp)",
            "lea -0x12C(%esp),%esp",
            "mov %gs:0,%ecx",
            "nopl (%eax)",
            "mov %gs,%esi",
            "and $0xFFFFFFFC,%esi",
            "je 0x1046",
            "mov %gs:0,%esi",
            "call 0xF7C00000",
            "mul %ecx",
            "and $0x1FFF,%edx",
            "and $0xFFFFFFF0,%esp",
            "shl $5,%edx",
            "xor %eax,%eax",
            "cmp %ecx,0x40000040(%edx)",
            "cmpl $0,8(%ebx)",
            "test %ecx,%ecx",
            "addl $1,0x400(%ecx)",
            "adcl $0,0x404(%ecx)",
            "add %edx,%ecx",
            "imul $0x60,%eax,%ecx",
            "pushf",
            "popl 8(%esp)",
            "movups %xmm3,0x10(%esp)",
            "je 0x1046",
            "lahf",
            "seto %al",
            "add $0x7F,%al",
            "sahf",
            "ret $4",
            "mov $0xAD,%eax",
            "int $0x80",
        ];
        assert_eq!(text(a), want);
    }
}
