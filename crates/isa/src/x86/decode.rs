//! Decode: a thin view of an instruction with what the planner asks about it. iced-x86 does the
//! decoding.

use iced_x86::{
    Code, CodeSize, ConditionCode, ConstantOffsets, Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter,
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register, RflagsBits,
};

use crate::insn::{DecodeError, Flow, RegisterSet, Usage};
use crate::{Isa, Va};

/// Longest instruction in bytes (Intel SDM volume 2, section 2.3.11).
pub const INSN_MAX: usize = 15;

/// The six arithmetic flags in the masks of [`Usage`].
pub const ARITHMETIC_FLAGS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;

/// A decoded instruction.
#[derive(Clone, Copy, Debug)]
pub struct Insn {
    pub(crate) iced: Instruction,
}

/// Equal instructions have equal addresses, too.
impl PartialEq for Insn {
    fn eq(&self, other: &Insn) -> bool {
        self.iced.eq_all_bits(&other.iced)
    }
}

impl Eq for Insn {}

/// Decodes the instruction at the start of `bytes`, which lie at `at`. Bytes behind it do not
/// matter.
///
/// ```
/// use sidestep_isa::{DecodeError, Flow, Isa, Va, x86};
/// let insn = x86::decode(Isa::X64, &[0xeb, 0x02, 0x90], Va(0x1000))?;
/// assert_eq!((insn.len(), insn.flow()), (2, Flow::Jump(Va(0x1004))));
/// # Ok::<(), DecodeError>(())
/// ```
pub fn decode(isa: Isa, bytes: &[u8], at: Va) -> Result<Insn, DecodeError> {
    let bytes = bytes.get(..INSN_MAX).unwrap_or(bytes);
    Reader::new(isa, bytes, at).at(at)
}

/// Decodes at any place of one piece of code. To set up a decoder takes longer than to decode an
/// instruction: here, that is done once.
pub struct Reader<'a> {
    decoder: Decoder<'a>,
    base: Va,
    /// What is asked about instructions has memory of its own.
    factory: Option<InstructionInfoFactory>,
}

impl<'a> Reader<'a> {
    /// For `code`, which lies at `base`.
    #[must_use]
    pub fn new(isa: Isa, code: &'a [u8], base: Va) -> Reader<'a> {
        Reader { decoder: Decoder::with_ip(isa.bits(), code, base.0, DecoderOptions::NONE), base, factory: None }
    }

    /// The instruction at an address. An error also where the code does not have it.
    pub fn at(&mut self, at: Va) -> Result<Insn, DecodeError> {
        let error = DecodeError { at };
        let offset = usize::try_from(at.since(self.base)).map_err(|_| error)?;
        self.decoder.set_position(offset).map_err(|_| error)?;
        self.decoder.set_ip(at.0);
        let iced = self.decoder.decode();
        if iced.is_invalid() { Err(error) } else { Ok(Insn { iced }) }
    }

    /// Registers and flags that an instruction uses.
    pub(crate) fn usage(&mut self, insn: &Insn) -> Usage {
        insn.usage_by(self.factory.get_or_insert_with(InstructionInfoFactory::new))
    }
}

/// As [`decode`], with the places of displacement and immediates.
pub(crate) fn decode_with_offsets(isa: Isa, bytes: &[u8], at: Va) -> Result<(Insn, ConstantOffsets), DecodeError> {
    let bytes = bytes.get(..INSN_MAX).unwrap_or(bytes);
    let mut decoder = Decoder::with_ip(isa.bits(), bytes, at.0, DecoderOptions::NONE);
    let iced = decoder.decode();
    if iced.is_invalid() {
        return Err(DecodeError { at });
    }
    Ok((Insn { iced }, decoder.get_constant_offsets(&iced)))
}

/// Decodes bytes from the first to the last, one instruction behind the other. Ends after the
/// first error.
pub struct Sweep<'a> {
    decoder: Decoder<'a>,
    failed: bool,
}

impl<'a> Sweep<'a> {
    /// Of `bytes`, which lie at `at`.
    #[must_use]
    pub fn new(isa: Isa, bytes: &'a [u8], at: Va) -> Sweep<'a> {
        Sweep { decoder: Decoder::with_ip(isa.bits(), bytes, at.0, DecoderOptions::NONE), failed: false }
    }
}

impl Iterator for Sweep<'_> {
    type Item = Result<Insn, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || !self.decoder.can_decode() {
            return None;
        }
        let at = Va(self.decoder.ip());
        let iced = self.decoder.decode();
        self.failed = iced.is_invalid();
        Some(if self.failed { Err(DecodeError { at }) } else { Ok(Insn { iced }) })
    }
}

impl Insn {
    /// The instruction set that it was decoded as one of.
    #[must_use]
    pub fn isa(&self) -> Isa {
        if self.iced.code_size() == CodeSize::Code64 { Isa::X64 } else { Isa::X86 }
    }

    /// Its address, as given to [`decode`].
    #[must_use]
    pub fn va(&self) -> Va {
        Va(self.iced.ip())
    }

    /// Its length in bytes, 1 to 15.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.iced.len()
    }

    /// The address behind it.
    #[must_use]
    pub fn next(&self) -> Va {
        Va(self.iced.next_ip())
    }

    /// Where execution goes on.
    #[must_use]
    pub fn flow(&self) -> Flow {
        let target = Va(self.iced.near_branch_target());
        match self.iced.flow_control() {
            FlowControl::Next if self.iced.mnemonic() == Mnemonic::Hlt => Flow::Stop,
            FlowControl::Next => Flow::Next,
            FlowControl::UnconditionalBranch if self.iced.is_jmp_short_or_near() => Flow::Jump(target),
            FlowControl::ConditionalBranch => Flow::Branch(target),
            FlowControl::IndirectBranch if self.iced.is_jmp_near_indirect() => Flow::JumpIndirect,
            FlowControl::Call if self.iced.is_call_near() => Flow::Call(target),
            FlowControl::Call if self.iced.is_call_far() => Flow::Far,
            FlowControl::Call => Flow::Syscall,
            FlowControl::IndirectCall if self.iced.is_call_near_indirect() => Flow::CallIndirect,
            FlowControl::Return if self.iced.mnemonic() == Mnemonic::Ret => Flow::Return,
            FlowControl::Interrupt => Flow::Interrupt,
            FlowControl::XbeginXabortXend if self.iced.mnemonic() == Mnemonic::Xbegin => Flow::Transaction(target),
            FlowControl::XbeginXabortXend => Flow::Next,
            FlowControl::Exception => Flow::Stop,
            _ => Flow::Far,
        }
    }

    /// The condition of a conditional branch, as the lower half of its opcode has it (SDM volume 2,
    /// appendix B.1.4.7). `None`: it is none, or one that counts or tests a register (`loop`,
    /// `jrcxz`).
    #[must_use]
    pub fn condition(&self) -> Option<u8> {
        let number = match self.iced.condition_code() {
            ConditionCode::None => return None,
            ConditionCode::o => 0,
            ConditionCode::no => 1,
            ConditionCode::b => 2,
            ConditionCode::ae => 3,
            ConditionCode::e => 4,
            ConditionCode::ne => 5,
            ConditionCode::be => 6,
            ConditionCode::a => 7,
            ConditionCode::s => 8,
            ConditionCode::ns => 9,
            ConditionCode::p => 10,
            ConditionCode::np => 11,
            ConditionCode::l => 12,
            ConditionCode::ge => 13,
            ConditionCode::le => 14,
            ConditionCode::g => 15,
        };
        self.iced.is_jcc_short_or_near().then_some(number)
    }

    /// A nop of any length. `pause` and `endbr64` are none.
    #[must_use]
    pub fn is_nop(&self) -> bool {
        self.iced.mnemonic() == Mnemonic::Nop
    }

    /// What assemblers write between functions: a nop, `int3`, and in 32-bit code a `lea` of a
    /// register to itself, which is GNU as's long nop there (`gas/config/tc-i386.c`, `f32_3` and so
    /// on). In 64-bit code that may clear an upper half.
    #[must_use]
    pub fn is_filler(&self) -> bool {
        let address = (self.iced.memory_base(), self.iced.memory_index(), self.iced.memory_displacement32());
        let itself = || self.iced.code() == Code::Lea_r32_m && address == (self.iced.op0_register(), Register::None, 0);
        self.is_nop() || self.is_breakpoint() || self.isa() == Isa::X86 && itself()
    }

    /// `endbr64` or `endbr32`: the mark of a valid target of indirect branches (SDM volume 1,
    /// chapter 17).
    #[must_use]
    pub fn is_target_mark(&self) -> bool {
        matches!(self.iced.code(), Code::Endbr64 | Code::Endbr32)
    }

    /// If this is a near return: how many bytes it drops besides its address, which are arguments
    /// of its function (i386 psABI, "Functions Returning Structures").
    #[must_use]
    pub fn dropped_by_return(&self) -> Option<u16> {
        let drops = if self.iced.op_count() == 1 { self.iced.immediate16() } else { 0 };
        (self.flow() == Flow::Return).then_some(drops)
    }

    /// A trap, which is reported with the address behind it (SDM volume 3, section 6.5): `int3`,
    /// `int1`, and `int 3` in two bytes.
    #[must_use]
    pub fn is_trap(&self) -> bool {
        match self.iced.code() {
            Code::Int3 | Code::Int1 => true,
            Code::Int_imm8 => self.iced.immediate8() == 3,
            _ => false,
        }
    }

    /// `int3`.
    #[must_use]
    pub fn is_breakpoint(&self) -> bool {
        self.iced.code() == Code::Int3
    }

    /// The displacement of its memory operand, as the number that is added.
    pub(crate) fn displacement(&self) -> i64 {
        let displacement = self.iced.memory_displacement64();
        match self.isa() {
            Isa::X86 => i64::from(displacement as i32),
            _ => displacement as i64,
        }
    }

    /// A register of its operands, by the name that it has in 64-bit code if it is as wide as a
    /// pointer.
    pub(crate) fn whole(&self, register: Register) -> Register {
        if self.isa() == Isa::X86 && register.is_gpr32() { register.full_register() } else { register }
    }

    /// The address that a rip-relative memory operand means, whether it is loaded from, stored to
    /// or only computed.
    #[must_use]
    pub fn pc_target(&self) -> Option<Va> {
        self.iced.is_ip_rel_memory_operand().then(|| Va(self.iced.ip_rel_memory_address()))
    }

    /// A value that this instruction makes available to the program and that may be an address: a
    /// rip-relative operand, or the immediate of `mov` and `push`. Targets of direct branches are
    /// in [`Insn::flow`].
    #[must_use]
    pub fn address_candidate(&self) -> Option<Va> {
        if self.iced.is_ip_rel_memory_operand() {
            return self.pc_target();
        }
        let operand = match self.iced.mnemonic() {
            Mnemonic::Mov if self.iced.op_count() == 2 => 1,
            Mnemonic::Push => 0,
            // A position-dependent program may compute addresses by an absolute `lea`.
            Mnemonic::Lea if self.iced.memory_base() == Register::None => {
                return Some(Va(self.iced.memory_displacement64()));
            }
            _ => return None,
        };
        match self.iced.op_kind(operand) {
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64 => {
                Some(Va(self.iced.immediate(operand)))
            }
            _ => None,
        }
    }

    /// An address to which this instruction adds a register: the immediate of `add`, or the
    /// displacement of a `lea` with a base or an index. Code at fixed addresses makes a label of a
    /// distance so.
    #[must_use]
    pub fn address_in_sum(&self) -> Option<Va> {
        match self.iced.mnemonic() {
            Mnemonic::Add => match self.iced.op_kind(1) {
                OpKind::Immediate32 | OpKind::Immediate32to64 => Some(Va(self.iced.immediate(1))),
                _ => None,
            },
            Mnemonic::Lea if !self.iced.is_ip_rel_memory_operand() => {
                let adds = self.iced.memory_base() != Register::None || self.iced.memory_index() != Register::None;
                adds.then(|| Va(self.iced.memory_displacement64()))
            }
            _ => None,
        }
    }

    /// As [`Insn::address_candidate`], of 32-bit code whose addresses may be distances from its
    /// `_GLOBAL_OFFSET_TABLE_`: the displacement of a `lea`, the immediate of a `mov` or `add`
    /// (i386 psABI, "Position-Independent Code").
    #[must_use]
    pub fn address_from(&self, got: Va) -> Option<Va> {
        let distance = match self.iced.mnemonic() {
            Mnemonic::Lea if self.iced.memory_base() != Register::None => self.displacement(),
            Mnemonic::Mov | Mnemonic::Add
                if self.iced.op_count() == 2 && self.iced.op1_kind() == OpKind::Immediate32 =>
            {
                i64::from(self.iced.immediate32() as i32)
            }
            _ => return None,
        };
        Some(self.isa().wrap(got.offset(distance)))
    }

    /// Whether it makes an address available as a value: what it names is no operand of a load or
    /// store.
    #[must_use]
    pub fn makes_address(&self) -> bool {
        matches!(self.iced.mnemonic(), Mnemonic::Lea | Mnemonic::Push | Mnemonic::Mov | Mnemonic::Add)
            && (self.iced.mnemonic() == Mnemonic::Lea || self.pc_target().is_none())
    }

    /// Whether its memory operand is one word that linkers place: relative to rip, and in 32-bit
    /// code absolute or relative to ebx.
    #[must_use]
    pub fn is_slot_jump(&self) -> bool {
        let placed = matches!(self.iced.memory_base(), Register::None | Register::EBX);
        let memory = self.iced.op0_kind() == OpKind::Memory && self.iced.memory_index() == Register::None;
        self.pc_target().is_some() || self.isa() == Isa::X86 && memory && placed
    }

    /// Whether it jumps through a register, or through a word of the stack: then the value may be a
    /// computed one, and [`crate::indirect`] has to say where it came from. Jumps through
    /// other memory go where a stored pointer says.
    #[must_use]
    pub fn jumps_through_value(&self) -> bool {
        self.flow() == Flow::JumpIndirect
            && (self.iced.op0_kind() == OpKind::Register || is_stack(self.iced.memory_base()))
    }

    /// If it jumps through a table of pointers by an index: where the table is.
    #[must_use]
    pub fn pointer_table(&self) -> Option<Va> {
        let indexed = self.flow() == Flow::JumpIndirect
            && self.iced.op0_kind() == OpKind::Memory
            && self.iced.memory_base() == Register::None
            && u64::from(self.iced.memory_index_scale()) == self.isa().word();
        indexed.then(|| Va(self.iced.memory_displacement64()))
    }

    /// Whether compilers make it for a program. They make `hlt`, for what must not return, but
    /// nothing else that only the kernel may do, no input or output, no far jumps, and not what
    /// zeros are.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        let through_rax = self.len() == 2 && self.whole(self.iced.memory_base()) == Register::RAX;
        let zeros = self.iced.code() == Code::Add_rm8_r8 && through_rax && self.iced.op1_register() == Register::AL;
        let ports = matches!(
            self.iced.mnemonic(),
            Mnemonic::In
                | Mnemonic::Insb
                | Mnemonic::Insd
                | Mnemonic::Insw
                | Mnemonic::Out
                | Mnemonic::Outsb
                | Mnemonic::Outsd
                | Mnemonic::Outsw
        );
        let kernel = self.iced.is_privileged() && self.iced.mnemonic() != Mnemonic::Hlt;
        !(zeros || ports || kernel || self.flow() == Flow::Far)
    }

    /// The register of its first operand that it writes as a whole, by number.
    #[must_use]
    pub fn destination(&self) -> Option<u8> {
        (self.iced.op0_kind() == OpKind::Register).then(|| register_number(self.iced.op0_register()))
    }

    /// `mov` of a whole register to another one: their numbers.
    #[must_use]
    pub fn copied(&self) -> Option<(u8, u8)> {
        let is_copy = self.iced.mnemonic() == Mnemonic::Mov
            && self.iced.op0_kind() == OpKind::Register
            && self.iced.op1_kind() == OpKind::Register
            && self.whole(self.iced.op0_register()).is_gpr64();
        let number = |register| register_number(register);
        is_copy.then(|| (number(self.iced.op1_register()), number(self.iced.op0_register())))
    }

    /// `cmov` of a whole register, which may stay as it is.
    #[must_use]
    pub fn selected(&self) -> Option<(RegisterSet, u8)> {
        let to = self.iced.op0_register();
        let selects = self.iced.condition_code() != ConditionCode::None
            && self.iced.op_count() == 2
            && self.iced.op0_kind() == OpKind::Register
            && self.whole(to).is_gpr64();
        let from = if self.iced.op1_kind() == OpKind::Register { self.iced.op1_register() } else { to };
        let bit = |register| 1 << register_number(register);
        selects.then(|| (bit(from) | bit(to), register_number(to)))
    }

    /// `add`, or a `lea` that is more than a copy.
    #[must_use]
    pub fn is_sum(&self) -> bool {
        match self.iced.mnemonic() {
            Mnemonic::Lea => self.iced.memory_index() != Register::None || self.displacement() != 0,
            mnemonic => mnemonic == Mnemonic::Add,
        }
    }

    /// `syscall` of 64-bit code. The other ways into the kernel do not lead to the next
    /// instruction.
    #[must_use]
    pub fn is_plain_syscall(&self) -> bool {
        self.iced.code() == Code::Syscall && self.isa() == Isa::X64
    }

    /// Registers and flags that it uses.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage_by(&mut InstructionInfoFactory::new())
    }

    /// The same of many instructions, by one factory: it has memory of its own.
    fn usage_by(&self, factory: &mut InstructionInfoFactory) -> Usage {
        let mut usage = Usage::default();
        for used in factory.info_options(&self.iced, InstructionInfoOptions::NO_MEMORY_USAGE).used_registers() {
            let register = used.register();
            if !register.is_gpr() {
                continue;
            }
            let bit = register_bit(register);
            let whole = register.is_gpr32() || register.is_gpr64();
            match used.access() {
                OpAccess::None | OpAccess::NoMemAccess => {}
                OpAccess::Read | OpAccess::CondRead => usage.reads |= bit,
                OpAccess::Write => {
                    usage.writes |= bit;
                    if whole && !self.may_keep_destination() {
                        usage.kills |= bit;
                    }
                }
                OpAccess::CondWrite => usage.writes |= bit,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => {
                    usage.reads |= bit;
                    usage.writes |= bit;
                }
            }
        }
        // What is read is needed, whatever happens to it afterwards.
        usage.kills &= !usage.reads;
        usage.flags_read = self.iced.rflags_read() & ARITHMETIC_FLAGS;
        if !self.may_keep_flags() {
            // A flag that the manual leaves undefined may survive (AMD's `bsf`, for example). But
            // AF, undefined after logical instructions, is set or cleared by all CPUs, and nothing
            // reads it on purpose.
            let defined = self.iced.rflags_written() | self.iced.rflags_cleared() | self.iced.rflags_set();
            let undefined = self.iced.rflags_undefined() & RflagsBits::AF;
            usage.flags_killed = (defined | undefined) & ARITHMETIC_FLAGS;
        }
        usage
    }

    /// `bsf` and `bsr` leave the destination alone when the source is 0 (as AMD documents, and
    /// Intel CPUs do), and a CPU without BMI1/LZCNT runs `tzcnt`/`lzcnt` as `bsf`/`bsr`. `rdssp` is
    /// a nop where there is no shadow stack (SDM volume 2).
    fn may_keep_destination(&self) -> bool {
        use Mnemonic::{Bsf, Bsr, Lzcnt, Rdsspd, Rdsspq, Tzcnt};
        matches!(self.iced.mnemonic(), Bsf | Bsr | Tzcnt | Lzcnt | Rdsspd | Rdsspq)
    }

    /// Shifts and rotates by 0 and repeated string instructions with a count of 0 leave all flags
    /// as they were (SDM volume 2, "SAL/SAR/SHL/SHR" and "REP").
    fn may_keep_flags(&self) -> bool {
        use Mnemonic::{Rcl, Rcr, Rol, Ror, Sal, Sar, Shl, Shld, Shr, Shrd};
        let shift = matches!(self.iced.mnemonic(), Shl | Shr | Sal | Sar | Shld | Shrd | Rol | Ror | Rcl | Rcr);
        let by_zero = || {
            let count = self.iced.op_count() - 1;
            self.iced.op_kind(count) != OpKind::Immediate8 || self.iced.immediate8() & 0x1f == 0
        };
        (shift && by_zero()) || self.iced.has_rep_prefix() || self.iced.has_repne_prefix()
    }
}

impl core::fmt::Display for Insn {
    /// In the syntax of the GNU assembler, as `objdump -d` prints it.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut formatter = GasFormatter::new();
        let options = formatter.options_mut();
        options.set_space_after_operand_separator(false);
        options.set_first_operand_char_index(7);
        options.set_uppercase_hex(false);
        options.set_rip_relative_addresses(false);
        options.set_branch_leading_zeros(false);
        let mut text = String::new();
        formatter.format(&self.iced, &mut text);
        f.write_str(&text)
    }
}

/// The number of a general-purpose register of any width, 0 to 15.
pub(crate) fn register_number(register: Register) -> u8 {
    register.full_register().number() as u8
}

/// The bit of a general-purpose register of any width in the masks of [`Usage`].
pub(crate) fn register_bit(register: Register) -> RegisterSet {
    1 << register.full_register().number()
}

/// Whether memory addressed through this register may be the thread's stack frame.
pub(crate) fn is_stack(base: Register) -> bool {
    matches!(base, Register::RSP | Register::RBP | Register::ESP | Register::EBP)
}
