//! The agent as it is mapped into a target: made by the build script, embedded here, checked by the
//! tests below.

use object::elf::{FileHeader32, FileHeader64};
use object::elf::{PF_W, PT_LOAD};
use object::read::elf::{ElfFile, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, Object, ObjectSection, ObjectSymbol, RelocationFlags};
use sidestep_isa::Isa;
use sidestep_isa::vectors::vectors_used;
use sidestep_sys::arch;

use crate::error::BlobError;
use crate::memory::layout::PAGE;

static ELF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent.elf"));
/// The same with the interpreter.
static INTERPRETER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/interpreter.elf"));
/// The agent's image, position-independent and all read-execute, with what is needed to place it.
#[derive(Clone, Debug)]
pub struct Blob {
    image: Vec<u8>,
    isa: Isa,
    code_len: u64,
    relocations: Vec<(u64, u64)>,
    symbols: Vec<(String, u64)>,
}

impl Blob {
    /// Reads the embedded agent: the one with the interpreter, or the one without.
    pub fn new(interpreter: bool) -> Result<Blob, BlobError> {
        let file = if interpreter { INTERPRETER } else { ELF };
        match FileKind::parse(file)? {
            FileKind::Elf32 => Blob::read::<FileHeader32<Endianness>>(arch::ISA, file),
            _ => Blob::read::<FileHeader64<Endianness>>(arch::ISA, file),
        }
    }

    fn read<H: FileHeader<Endian = Endianness>>(isa: Isa, file: &'static [u8]) -> Result<Blob, BlobError> {
        let elf: ElfFile<'_, H> = ElfFile::parse(file)?;
        let endian = elf.endian();
        let mut loads =
            elf.elf_program_headers().iter().filter(|s| s.p_type(endian) == PT_LOAD && s.p_memsz(endian).into() != 0);
        let (Some(segment), None) = (loads.next(), loads.next()) else { return Err(BlobError::Layout) };
        if segment.p_vaddr(endian).into() != 0 || segment.p_flags(endian) & PF_W != 0 {
            return Err(BlobError::Layout);
        }
        let mut image = segment.data(endian, file).map_err(|()| BlobError::Layout)?.to_vec();
        image.resize(image.len().next_multiple_of(PAGE as usize), 0);
        let code = elf.section_by_name(".text").filter(|code| code.address() == 0).ok_or(BlobError::Layout)?;
        let mut relocations = Vec::new();
        for (offset, relocation) in elf.dynamic_relocations().into_iter().flatten() {
            match relocation.flags() {
                RelocationFlags::Elf { r_type }
                    if r_type == arch::RELATIVE && offset + isa.word() <= image.len() as u64 =>
                {
                    let addend = if relocation.has_implicit_addend() {
                        let at = offset as usize;
                        let mut word = [0; 8];
                        word[..isa.word() as usize].copy_from_slice(&image[at..at + isa.word() as usize]);
                        u64::from_le_bytes(word)
                    } else {
                        relocation.addend() as u64
                    };
                    relocations.push((offset, addend));
                }
                _ => return Err(BlobError::Relocation(offset)),
            }
        }
        let symbols = elf.symbols().filter(|s| s.is_definition());
        let symbols = symbols.filter_map(|s| Some((s.name().ok()?.to_owned(), s.address()))).collect();
        Ok(Blob { isa, image, code_len: code.size(), relocations, symbols })
    }

    /// Length of the whole image in bytes, a multiple of the page size.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.image.len() as u64
    }

    /// Offset of a function in the image.
    #[must_use]
    pub fn symbol(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|(symbol, _)| symbol == name).map(|(_, offset)| *offset)
    }

    /// The image as it has to be written at the address `base`.
    #[must_use]
    pub fn place(&self, base: u64) -> Vec<u8> {
        let mut image = self.image.clone();
        for (offset, addend) in &self.relocations {
            let (at, len) = (*offset as usize, self.isa.word() as usize);
            image[at..at + len].copy_from_slice(&base.wrapping_add(*addend).to_le_bytes()[..len]);
        }
        image
    }

    /// The vector registers that the agent's code touches, a bit each: a thunk saves these and no
    /// other.
    #[must_use]
    pub fn vectors_used(&self) -> u32 {
        vectors_used(self.isa, &self.image[..self.code_len as usize])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, HashMap};
    use std::path::Path;
    use std::process::Command;

    use iced_x86::{Decoder, DecoderOptions, FlowControl, InstructionInfoFactory, Mnemonic, Register};
    use sidestep_plan::thunk::STATE_STACK;

    use super::*;
    use crate::programs::HIT_STACK;

    fn blob() -> Blob {
        Blob::new(false).unwrap()
    }

    fn code(blob: &Blob) -> Vec<iced_x86::Instruction> {
        Decoder::new(blob.isa.bits(), &blob.image[..blob.code_len as usize], DecoderOptions::NONE).iter().collect()
    }

    fn tool(name: &str, args: &[&str]) -> String {
        let elf = concat!(env!("OUT_DIR"), "/agent.elf");
        assert!(Path::new(elf).exists());
        let output = Command::new(name).args(args).arg(elf).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn symbols_agree_with_nm() {
        let listing = tool("nm", &[]);
        for name in ["agent_slot", "agent_hit", "agent_return", "agent_signal"] {
            let line = listing.lines().find(|line| line.ends_with(&format!(" T {name}"))).unwrap();
            let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
            assert_eq!(blob().symbol(name), Some(address));
        }
    }

    #[test]
    fn nothing_is_imported_relocated_or_writable() {
        assert!(!tool("readelf", &["-dW"]).contains("NEEDED"));
        assert!(tool("readelf", &["-rW"]).contains("no relocations"));
        assert_eq!(tool("nm", &["-u"]), "");
        let blob = blob();
        assert_eq!(blob.len() % PAGE, 0);
        assert_eq!(blob.place(0x1234_5000), blob.image);
    }

    #[test]
    fn the_interpreter_needs_nothing_else_either() {
        let interpreter = Blob::new(true).unwrap();
        assert!(interpreter.symbol("agent_interpret").is_some() && blob().symbol("agent_interpret").is_none());
        assert_eq!((interpreter.vectors_used(), &interpreter.relocations), (0, &Vec::new()));
    }

    #[test]
    fn nothing_panics() {
        let listing = tool("nm", &["-C"]);
        assert!(!listing.contains("panic"), "{listing}");
        assert!(!listing.contains("core::fmt"), "{listing}");
    }

    #[test]
    fn the_image_is_what_objdump_sees() {
        let listing = tool("objdump", &["-d", "--no-show-raw-insn"]);
        let lines = listing.lines().filter(|line| line.starts_with(' ') && line.contains(":\t")).count();
        assert_eq!(lines, code(&blob()).len());
    }

    #[test]
    fn a_thunk_has_no_vector_or_fpu_state_to_save() {
        let blob = blob();
        assert_eq!(blob.vectors_used(), 0);
        let mut factory = InstructionInfoFactory::new();
        for insn in code(&blob) {
            for register in factory.info(&insn).used_registers().iter().map(|used| used.register()) {
                let r = register;
                let other = r.is_st() || r.is_mm() || r.is_k() || r.is_bnd() || r.is_tmm();
                assert!(!other, "{r:?}");
            }
        }
        let other = code(&blob)
            .into_iter()
            .find(|i| i.mnemonic() == Mnemonic::Emms || i.fpu_stack_increment_info().writes_top());
        assert!(other.is_none());
    }

    /// The direction flag may be set at a probe inside a function.
    #[test]
    fn no_string_instruction_depends_on_the_direction_flag() {
        for instruction in code(&blob()) {
            assert!(!instruction.is_string_instruction(), "{:x}", instruction.ip());
        }
    }

    /// What leaves the image are programs, at a hit and as callbacks of `loop`, and what another
    /// session says of its frames (`agent_real`) and of its loads (`agent_after_fault`): the
    /// application's own signal handlers are entered by the generated stub.
    #[test]
    fn calls_stay_inside() {
        let blob = blob();
        let mut indirect = 0;
        for instruction in code(&blob) {
            match instruction.flow_control() {
                FlowControl::Call | FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                    if instruction.mnemonic() != Mnemonic::Syscall =>
                {
                    assert!(instruction.near_branch_target() < blob.code_len);
                }
                FlowControl::IndirectCall => indirect += 1,
                FlowControl::Interrupt | FlowControl::Exception | FlowControl::XbeginXabortXend => {
                    panic!("{:x}", instruction.ip())
                }
                _ => {}
            }
            let own_tls = instruction.has_segment_prefix() && instruction.mnemonic() != Mnemonic::Nop;
            assert!(!own_tls, "{:x}", instruction.ip());
        }
        assert_eq!(indirect, 4);
    }

    /// The stack of the agent's functions, by their instructions.
    struct Stacks {
        code: BTreeMap<u64, iced_x86::Instruction>,
        functions: BTreeSet<u64>,
        known: HashMap<u64, i64>,
    }

    impl Stacks {
        fn of(blob: &Blob) -> Stacks {
            let code = code(blob).into_iter().map(|instruction| (instruction.ip(), instruction)).collect();
            let functions = blob.symbols.iter().map(|(_, at)| *at).filter(|at| *at < blob.code_len).collect();
            Stacks { code, functions, known: HashMap::new() }
        }

        /// Bytes from the stack pointer in front of a call of this function to the lowest one that
        /// it and what it calls use. A program that it runs counts as nothing.
        fn needed_by(&mut self, function: u64) -> i64 {
            if let Some(known) = self.known.get(&function) {
                assert_ne!(*known, 0, "{function:x} calls itself");
                return *known;
            }
            self.known.insert(function, 0);
            let end = self.functions.range(function + 1..).next().copied().unwrap_or(u64::MAX);
            let (mut deepest, mut seen) = (0, BTreeSet::new());
            let mut open = vec![(function, 8)];
            while let Some((at, depth)) = open.pop() {
                // Padding behind the function leads to the next one.
                let instruction = self.code.get(&at).copied().filter(|_| at != end && seen.insert(at));
                let Some(instruction) = instruction else { continue };
                let target = instruction.near_branch_target();
                let next = match (instruction.mnemonic(), instruction.op0_register()) {
                    (Mnemonic::Call, _) => depth,
                    (Mnemonic::Sub, Register::RSP) => depth + instruction.immediate(1) as i64,
                    (Mnemonic::Add, Register::RSP) => depth - instruction.immediate(1) as i64,
                    _ => depth - i64::from(instruction.stack_pointer_increment()),
                };
                deepest = next.max(deepest);
                match instruction.flow_control() {
                    FlowControl::Call if instruction.mnemonic() == Mnemonic::Call => {
                        deepest = (depth + self.needed_by(target)).max(deepest);
                        open.push((instruction.next_ip(), next));
                    }
                    FlowControl::UnconditionalBranch if target != function && self.functions.contains(&target) => {
                        deepest = (depth - 8 + self.needed_by(target)).max(deepest);
                    }
                    FlowControl::UnconditionalBranch => open.push((target, depth)),
                    FlowControl::ConditionalBranch => {
                        open.extend([(target, depth), (instruction.next_ip(), depth)]);
                    }
                    // Through a table, to any place of the function that nothing else leads to.
                    FlowControl::IndirectBranch => {
                        let others = self.code.range(at + 1..end).map(|(at, _)| (*at, depth));
                        open.splice(0..0, others.collect::<Vec<_>>());
                    }
                    FlowControl::Return | FlowControl::Exception => {}
                    _ => open.push((instruction.next_ip(), next)),
                }
            }
            self.known.insert(function, deepest);
            deepest
        }
    }

    /// An end of a remembered call needed 672 bytes where 512 were looked for: goroutines overwrote
    /// each other's stacks.
    #[test]
    fn the_agent_needed_more_of_a_goroutines_stack_than_was_looked_for() {
        let blob = blob();
        if blob.isa != Isa::X64 {
            return; // there are no goroutines
        }
        let mut stacks = Stacks::of(&blob);
        let mut needed = |name: &str| stacks.needed_by(blob.symbol(name).unwrap());
        for (name, room) in [("agent_hit", HIT_STACK), ("agent_slot", STATE_STACK), ("agent_stack", STATE_STACK)] {
            let needed = needed(name);
            assert!((40..=i64::from(room)).contains(&needed), "{name}: {needed} of {room}");
        }
    }

    /// A goroutine's stack may have a few hundred bytes left. The largest is that of `get_stackid`,
    /// which keeps addresses.
    #[test]
    fn frames_are_small() {
        for instruction in code(&blob()) {
            if instruction.mnemonic() == Mnemonic::Sub && instruction.op0_register() == Register::RSP {
                assert!(instruction.immediate(1) < 320, "{:x}", instruction.ip());
            }
        }
    }
}
