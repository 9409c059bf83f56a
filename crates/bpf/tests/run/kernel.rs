//! The kernel's own eBPF, as root.

#[path = "../kernel/mod.rs"]
mod glue;

use std::os::fd::AsRawFd;

use sidestep_bpf::{Imm64, Insn, Program};
use sidestep_sys::bpf::{self, Map, MapSpec, ProgramKind, ProgramSpec, Update};

use super::Buffer;

/// A map with one entry, which is the buffer.
pub struct Kernel {
    map: Map,
}

impl Kernel {
    /// None, and a line that says so, where the machine does not let us load programs.
    pub fn new() -> Option<Kernel> {
        let value_size = size_of::<Buffer>() as u32;
        let spec = MapSpec { name: "buffer", kind: 2, key_size: 4, value_size, max_entries: 1, ..MapSpec::default() };
        match Map::create(&spec) {
            Ok(map) => Some(Kernel { map }),
            Err(error) => {
                glue::say(&format!("NOT COMPARED with the kernel's eBPF, run as root to do so: {error}\n"));
                None
            }
        }
    }

    /// Runs a program with references to the buffer; changes the buffer as it does, and gives the
    /// lower half of `r0`.
    ///
    /// # Errors
    /// What the kernel's verifier says.
    pub fn run(&self, program: &Program, buffer: &mut Buffer) -> Result<u32, String> {
        let key = [0; 4];
        let bytes: Vec<u8> = buffer.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.map.update(&key, &bytes, Update::Any).unwrap();
        let mut program = program.clone();
        let fd = self.map.as_raw_fd() as u32;
        for (at, insn) in program.clone().iter().map(Result::unwrap) {
            if let Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { offset, .. } } = insn {
                program.slots[at] = Insn::LoadImm64 { dst, imm: Imm64::MapFdValue { map: fd, offset } }.encode().0;
            }
        }
        let code = glue::code(&program);
        let spec = ProgramSpec { name: "test", kind: ProgramKind::SocketFilter, code: &code, license: "GPL" };
        let loaded = bpf::Program::load(&spec).map_err(|error| error.to_string())?;
        let result = loaded.run().unwrap();
        let bytes = self.map.lookup(&key).unwrap().unwrap();
        for (word, bytes) in buffer.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        Ok(result)
    }
}
