//! The context of a hit, which handlers get: a word of 8 bytes for each register.

/// Where functions of C have their arguments and results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallingConvention {
    /// All arguments are on the stack: the System V ABI of i386.
    I386,
    /// The System V ABI of x86-64: small structures are split into eight bytes each.
    SystemV,
    /// "Procedure Call Standard for the Arm 64-bit Architecture": floating-point members have a
    /// register each, large structures are passed by their address.
    Aapcs64,
    /// "Procedure Call Standard for the Arm Architecture": words in four registers.
    Aapcs32,
}

/// Where the registers are in the context. Offsets are in bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// Names of the first words, in order: those that the kernel's `regs_query_register_offset`
    /// knows, which is the order of `struct pt_regs`.
    pub names: &'static [&'static str],
    /// Offsets of the general registers, by the numbers that instructions have for them.
    pub registers: &'static [u16],
    /// Offset of the flags.
    pub flags: u16,
    /// More names of these words, with the ones that they stand for.
    pub aliases: &'static [(&'static str, &'static str)],
    /// Names of the registers for floating-point numbers whose lower halves the context has.
    pub floats: &'static [&'static str],
    /// Offset of the first of them.
    pub floats_at: u16,
    /// Where functions of C have their arguments and results.
    pub convention: CallingConvention,
    /// Offsets of the registers that functions take numbers in, first argument first.
    pub arguments: &'static [u16],
    /// The same of functions of Go.
    pub go_arguments: &'static [u16],
    /// Offset of what a function returns.
    pub result: u16,
    /// Offset of the second word of a result.
    pub second_result: u16,
    /// Offset of the register that has, where a function is entered, the address of a result that
    /// does not fit into registers.
    pub result_address: u16,
    /// Offset of the address of the probed instruction.
    pub pc: u16,
    /// Offset of the stack pointer.
    pub stack_pointer: u16,
    /// Offset of the register in which Go's code has its goroutine.
    pub goroutine: u16,
    /// Offset of the register in which calls leave the return address; `None`: they leave it on the
    /// stack, at the stack pointer.
    pub link: Option<u16>,
}

impl Context {
    /// Where the register with this name is; `None`: there is none.
    #[must_use]
    pub fn offset(&self, name: &str) -> Option<u16> {
        let of = self.aliases.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, of)| of);
        self.words().find_map(|(known, at)| (known == of).then_some(at))
    }

    /// Names and offsets of the words, without those of floating-point numbers.
    pub fn words(&self) -> impl Iterator<Item = (&'static str, u16)> + use<> {
        self.names.iter().zip((0..).step_by(8)).map(|(name, at)| (*name, at))
    }

    /// The same of floating-point numbers.
    pub fn float_words(&self) -> impl Iterator<Item = (&'static str, u16)> + use<> {
        self.floats.iter().zip((self.floats_at..).step_by(8)).map(|(name, at)| (*name, at))
    }

    /// Offset of the word that a program keeps from the entry to the return of a call, which is
    /// behind the registers.
    #[must_use]
    pub const fn cookie(&self) -> u16 {
        8 * self.names.len() as u16
    }

    /// Words on the stack at the entry of a function before its first argument there.
    #[must_use]
    pub const fn words_before_arguments(&self) -> u8 {
        if self.link.is_some() { 0 } else { 1 }
    }

    /// Offset of the `n`th register for floating-point numbers, counted from 0.
    #[must_use]
    pub const fn float(&self, n: u16) -> u16 {
        self.floats_at + 8 * n
    }
}
