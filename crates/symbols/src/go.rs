//! Facts of Go's runtime: where a goroutine keeps its number.

use sidestep_isa::Va;

use crate::elf::Elf;
use crate::object::Object;
use crate::types::DataType;

/// From which minor version of Go 1 on `runtime.g` has its `goid` at which offset, on amd64:
/// `src/runtime/runtime2.go` of each. `syscallbp` came with 1.23, `gobuf.ret` went with 1.25.
const OFFSETS: [(u32, u64); 3] = [(18, 152), (23, 160), (25, 152)];
/// The last one that is known.
const LAST: u32 = 26;

impl Object {
    /// Where `runtime.g`, which Go's own code has in `r14`, keeps the number of the goroutine. What
    /// the linker says of the version decides, as it is there in stripped programs, too; of one
    /// that is not known here, debug information.
    #[must_use]
    pub fn goid_offset(&self) -> Option<u64> {
        if !self.is_go() || !self.isa().limits().go {
            return None;
        }
        match version(self.elf()) {
            Some(minor @ 18..=LAST) => OFFSETS.iter().rev().find(|(first, _)| *first <= minor).map(|(_, at)| *at),
            Some(..18) => None,
            _ => self.described_offset(),
        }
    }

    fn described_offset(&self) -> Option<u64> {
        let info = self.debug_info().ok()?;
        let DataType::Record { place, .. } = info.find("struct runtime.g", None).ok()? else { return None };
        let layout = info.layout(place).ok()?;
        layout.members.iter().find(|member| member.name == "goid").map(|member| member.bit / 8)
    }

    /// Whether a function is Go code that has its goroutine in `r14`: all that the compiler makes
    /// of Go does (`cmd/compile/abi-internal.md`); assembly does not have to, and C does not know
    /// it.
    #[must_use]
    pub fn is_go_code(&self, va: Va) -> bool {
        if !self.is_go() {
            return false;
        }
        // Names of Go have the path of a package before a dot. Where there is no name, there is no
        // C that could be told from Go.
        self.function_at(va).is_none_or(|(function, _)| {
            let is_assembly = function.name.ends_with(".abi0") || self.assembly.binary_search(&function.va).is_ok();
            function.name.contains('.') && !is_assembly
        })
    }
}

/// The minor version of the Go that made it (`debug/buildinfo`, since Go 1.18).
fn version(elf: &Elf) -> Option<u32> {
    let data = elf.data(elf.section(".go.buildinfo")?).ok()?;
    let rest = data.strip_prefix(b"\xff Go buildinf:")?;
    // Pointer size, flags; then, aligned to 32, a length and the text.
    if rest.get(1)? & 2 == 0 {
        return Some(17);
    }
    let len = usize::from(*data.get(32)?);
    let text = std::str::from_utf8(data.get(33..33 + len.min(127))?).ok()?;
    let minor = text.strip_prefix("go1.")?;
    minor[..minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len())].parse().ok()
}
