//! Reads what the planner must know from an ELF file, and compiles small programs.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, UnwindSection};
use object::elf::{R_386_RELATIVE, R_X86_64_64, R_X86_64_RELATIVE, SHF_ALLOC, SHF_EXECINSTR};
use object::{Object, ObjectSection, ObjectSymbol, RelocationFlags, RelocationTarget, SectionFlags, SymbolKind};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::Index;
use sidestep_plan::object::{Bytes, Extent, ObjectCode};

/// A parsed file with what the tests ask for.
#[allow(dead_code)]
pub struct Elf<'a> {
    pub file: object::File<'a>,
    pub code: ObjectCode<'a>,
    /// Function symbols with a size: name, address, size.
    pub functions: Vec<(String, Va, u64)>,
}

#[allow(dead_code)]
impl Elf<'_> {
    /// Address of a symbol.
    pub fn symbol(&self, name: &str) -> Va {
        let mut symbols = self.file.symbols().chain(self.file.dynamic_symbols());
        let symbol = symbols.find(|s| s.name() == Ok(name) && s.is_definition());
        Va(symbol.unwrap_or_else(|| panic!("no symbol {name}")).address())
    }
}

/// How assembly becomes a library.
#[allow(dead_code)]
pub const SHARED: [&str; 4] = ["-shared", "-nostdlib", "-fPIC", "-Wl,-z,noexecstack"];

/// A function in assembly, with type and size.
#[allow(dead_code)]
pub fn function(name: &str, body: &str) -> String {
    format!(".globl {name}\n.type {name},@function\n{name}:\n{body}\n.size {name},.-{name}\n")
}

/// Assembles a library and looks at it.
#[allow(dead_code)]
pub fn with<T>(source: &str, check: impl FnOnce(&Elf<'_>, &Index<'_>) -> T) -> T {
    let data = compile("a.s", source, &SHARED);
    let elf = parse(&data);
    let index = Index::new(elf.code.clone());
    check(&elf, &index)
}

/// Parses an ELF file.
pub fn parse(data: &[u8]) -> Elf<'_> {
    let file = object::File::parse(data).expect("an ELF file");
    let mut code = ObjectCode::new(if file.is_64() { Isa::X64 } else { Isa::X86 });
    for section in file.sections() {
        let SectionFlags::Elf { sh_flags } = section.flags() else { continue };
        let data = section.data().unwrap_or_default();
        if sh_flags & u64::from(SHF_ALLOC) == 0 || data.is_empty() {
            continue;
        }
        let name: &str = match section.name() {
            Ok(".text") => ".text",
            _ => "section",
        };
        let bytes = Bytes { name, va: Va(section.address()), data };
        if sh_flags & u64::from(SHF_EXECINSTR) != 0 { code.text.push(bytes) } else { code.data.push(bytes) }
    }
    code.text.sort_by_key(|t| t.va);

    let mut functions = Vec::new();
    // Not `is_definition`, which is false for labels without type and size.
    for symbol in file.symbols().chain(file.dynamic_symbols()).filter(|s| !s.is_undefined()) {
        let va = Va(symbol.address());
        if !code.text.iter().any(|t| va >= t.va && va.since(t.va) < t.data.len() as i64) {
            continue;
        }
        code.labels.push(va);
        let ifunc = matches!(symbol.flags(), object::SymbolFlags::Elf { st_info, .. } if st_info & 0xf == 10);
        if symbol.kind() == SymbolKind::Text || ifunc {
            code.extents.push(Extent { start: va, len: Len(symbol.size()) });
            functions.push((symbol.name().unwrap_or_default().to_owned(), va, symbol.size()));
        }
    }
    functions.sort_by_key(|f| (f.1, std::cmp::Reverse(f.2)));
    functions.dedup_by_key(|f| f.1);
    // Compilers describe each function.
    code.frames = functions.iter().map(|(_, va, _)| *va).collect();
    frames(&file, code.isa, &mut code.extents);
    for (at, relocation) in file.dynamic_relocations().into_iter().flatten() {
        let RelocationFlags::Elf { r_type } = relocation.flags() else { continue };
        if code.isa == Isa::X86 {
            // What is to be relocated holds the address.
            let word = code.bytes_at(Va(at)).filter(|_| r_type == R_386_RELATIVE).and_then(|bytes| bytes.first_chunk());
            code.pointers.extend(word.map(|word| Va(u32::from_le_bytes(*word).into())));
            continue;
        }
        let base = match relocation.target() {
            RelocationTarget::Symbol(symbol) if r_type == R_X86_64_64 => {
                let table = file.dynamic_symbol_table().expect(".dynsym");
                object::ObjectSymbolTable::symbol_by_index(&table, symbol).map_or(0, |s| s.address())
            }
            _ if r_type == R_X86_64_RELATIVE => 0,
            _ => continue,
        };
        code.pointers.push(Va(base.wrapping_add_signed(relocation.addend())));
    }
    code.go = file.section_by_name(".gopclntab").is_some();
    let table = [".got.plt", ".got"].into_iter().find_map(|name| file.section_by_name(name));
    code.got = table.filter(|_| code.isa == Isa::X86).map(|table| Va(table.address()));
    Elf { file, code, functions }
}

/// Extents of all FDEs.
fn frames(file: &object::File<'_>, isa: Isa, extents: &mut Vec<Extent>) {
    let Some(section) = file.section_by_name(".eh_frame") else { return };
    let mut frame = EhFrame::new(section.data().unwrap_or_default(), LittleEndian);
    frame.set_address_size(isa.word() as u8);
    let bases = BaseAddresses::default().set_eh_frame(section.address());
    let mut entries = frame.entries(&bases);
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry {
            if let Ok(fde) = partial.parse(EhFrame::cie_from_offset) {
                extents.push(Extent { start: Va(fde.initial_address()), len: Len(fde.len()) });
            }
        }
    }
}

/// Compiles C or assembly (by the ending of `name`) and returns the file's contents.
#[allow(dead_code)]
pub fn compile(name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
    compile_by("cc", name, source, flags)
}

/// The same for 32-bit code.
#[allow(dead_code)]
pub fn compile_32(name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
    compile_by("i686-linux-gnu-gcc", name, source, flags)
}

fn compile_by(compiler: &str, name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let dir = std::env::temp_dir().join(format!("sidestep-plan-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (from, to) = (dir.join(name), dir.join("out"));
    std::fs::write(&from, source).expect("a source file");
    let status = Command::new(compiler).args(flags).arg(&from).arg("-o").arg(&to).status().expect(compiler);
    assert!(status.success(), "{compiler} {name}");
    let data = std::fs::read(&to).expect("the output");
    std::fs::remove_dir_all(&dir).expect("clean up");
    data
}

/// The contents of a program or library, `None` where it is not installed.
#[allow(dead_code)]
pub fn installed(path: &str) -> Option<Vec<u8>> {
    std::fs::read(Path::new(path)).ok()
}
