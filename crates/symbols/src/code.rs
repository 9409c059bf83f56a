//! What an analysis of the code must know about an object.

use sidestep_isa::object::{Bytes, Extent, ObjectCode};
use sidestep_isa::{Isa, Len, Va};

use crate::arch;
use crate::eh;
use crate::elf::{Elf, Section, word};
use crate::function::{Function, FunctionKind};
use crate::lsda::Landings;
use crate::reloc::{PATCHABLE, Relocations, SEQUENCES, XRAY};
use crate::{exidx, rewritten, symtab};

/// What every library has that Mono has compiled ahead of time (`mono/mini/aot-compiler.c`).
const MONO: &str = "mono_aot_file_info";

/// All but the bytes.
pub(crate) fn collect(
    elf: &Elf,
    functions: &[Function],
    labels: &[Va],
    relocations: &Relocations,
    go: bool,
) -> Result<ObjectCode<'static>, &'static str> {
    let mut frames = eh::read(elf)?;
    exidx::read(elf, &mut frames.landings)?;
    let ranges = elf.text_ranges();
    let Landings { pads, protected, .. } = frames.landings;
    let mut code = ObjectCode { landing_pads: pads, protected, go, ..ObjectCode::new(elf.isa) };
    code.fixed = elf.e_type == object::elf::ET_EXEC || elf.has_text_relocations();
    if arch::of(elf.isa).names_by_table {
        code.got = elf.global_offset_table();
    }
    code.extents = functions.iter().map(|f| Extent { start: f.va, len: f.size }).collect();
    let is_function = |va: &Va| {
        let at = functions.partition_point(|f| f.va < *va);
        functions[at..].iter().take_while(|f| f.va == *va).any(|f| f.kind != FunctionKind::Cold)
    };
    let nameless = |starts: &mut dyn Iterator<Item = Va>| {
        let mut starts: Vec<Va> = starts.filter(|va| !is_function(va)).collect();
        starts.sort_unstable();
        starts.dedup();
        starts
    };
    code.odd_frames = frames.odd;
    code.odd_frames.sort_unstable();
    code.frames = frames.extents.iter().map(|extent| extent.start).collect();
    code.frames.sort_unstable();
    code.parts = nameless(&mut frames.parts.into_iter());
    code.nameless = nameless(&mut frames.extents.iter().map(|extent| extent.start));
    code.extents.extend(frames.extents);

    let special = [object::elf::DT_INIT, object::elf::DT_FINI].map(i64::from).into_iter();
    let begin = special.flat_map(|tag| elf.dynamic(tag)).map(Va).chain([elf.entry]);
    let mut beginnings: Vec<Va> = begin.collect();
    for section in elf.sections.iter().filter(|section| section.is_array()) {
        let bytes = elf.data(section)?;
        let words = (0..bytes.len() / elf.word()).map(|i| i * elf.word());
        beginnings.extend(words.map(|at| relocations.stored(elf.word(), section.va, bytes, at)));
    }
    // Pointers to code say more than where it is.
    beginnings.retain(|va| !arch::is_foreign(elf.isa, *va));
    let place = |va: Va| arch::code(elf.isa, va);
    code.beginnings = beginnings.into_iter().map(place).filter(|va| ranges.contain(*va)).collect();
    code.labels = labels.iter().chain(&code.beginnings).copied().collect();
    // Where bit 0 says what code is, an address without it may be of a label, but of no function.
    let pointers = |found: &mut dyn Iterator<Item = Va>, code: &mut ObjectCode<'_>| {
        for va in found.filter(|va| ranges.contain(place(*va))) {
            match arch::is_foreign(elf.isa, va) {
                true => code.labels.push(place(va)),
                false => code.pointers.push(place(va)),
            }
        }
    };
    pointers(&mut relocations.values.iter().copied(), &mut code);
    if elf.e_type == object::elf::ET_EXEC {
        for section in data(elf)?.iter().filter(|section| ![PATCHABLE, XRAY].contains(&section.name)) {
            pointers(&mut words(elf.isa, section), &mut code);
        }
        // Text may hold tables of absolute addresses, too. Where words of text are taken for
        // addresses anyway, the analysis finds them.
        for section in if elf.isa.limits().words_name_code { Vec::new() } else { text(elf)? } {
            code.pointers.extend(tables(words(elf.isa, &section), |va| ranges.contain(va)));
        }
    }
    code.labels.retain(|va| ranges.contain(*va));
    code.labels.sort_unstable();
    code.labels.dedup();
    code.pointers.sort_unstable();
    code.pointers.dedup();
    code.restartable = restartable(elf, relocations)?;
    code.rewritten = rewritten::read(elf, relocations)?;
    code.mono = symtab::exports(elf, MONO);
    Ok(code)
}

/// The aligned words of a section.
fn words(isa: Isa, section: &Bytes<'_>) -> impl Iterator<Item = Va> {
    let skip = (section.va.0.wrapping_neg() % isa.word()) as usize;
    let aligned = section.data.get(skip..).unwrap_or(&[]);
    aligned.chunks_exact(isa.word() as usize).map(move |bytes| Va(word(isa.word() as usize, bytes, 0)))
}

/// Addresses in text that have another one beside them, as those of a table have. A single one is
/// nearly always part of instructions: the bytes of `mov %eax,8(%ebp)` are 0x084589, an address of
/// text in a program of 4 MB.
fn tables(words: impl Iterator<Item = Va>, is_text: impl Fn(Va) -> bool) -> Vec<Va> {
    let (mut found, mut last) = (Vec::new(), None);
    for word in words {
        let address = is_text(word).then_some(word);
        if let (Some(last), Some(address)) = (last, address) {
            found.extend([last, address]);
        }
        last = address;
    }
    found.dedup();
    found
}

/// Bytes of the signature in front of an abort handler (rseq(2)).
const SIGNATURE: i64 = 4;

/// `struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }`, 32 bytes
/// each.
fn restartable(elf: &Elf, relocations: &Relocations) -> Result<Vec<Extent>, &'static str> {
    let Some(section) = elf.section(SEQUENCES) else { return Ok(Vec::new()) };
    let entries = elf.data(section)?.chunks_exact(32).enumerate();
    let mut all = Vec::new();
    for (i, entry) in entries {
        let stored = |at: usize| relocations.stored(8, section.va.plus(Len(32 * i as u64)), entry, at);
        all.push(Extent { start: stored(8), len: Len(word(8, entry, 16)) });
        // The kernel looks for a signature in front of the handler before it goes there.
        all.push(Extent { start: stored(24).offset(-SIGNATURE), len: Len(SIGNATURE as u64) });
    }
    all.sort_unstable_by_key(|extent| extent.start);
    Ok(all)
}

/// The instructions alone.
pub(crate) fn text(elf: &Elf) -> Result<Vec<Bytes<'_>>, &'static str> {
    sections(elf, Section::is_text)
}

/// The other sections that are mapped and have bytes in the file.
pub(crate) fn data(elf: &Elf) -> Result<Vec<Bytes<'_>>, &'static str> {
    sections(elf, Section::is_data)
}

fn sections(elf: &Elf, wanted: impl Fn(&Section) -> bool) -> Result<Vec<Bytes<'_>>, &'static str> {
    let mut all = Vec::new();
    for section in elf.sections.iter().filter(|section| wanted(section)) {
        all.push(Bytes { name: &section.name, va: section.va, data: elf.data(section)? });
    }
    all.sort_by_key(|bytes| bytes.va);
    Ok(all)
}

/// The Go linker leaves these sections even in a stripped program.
pub(crate) fn is_go(elf: &Elf, functions: &[Function]) -> bool {
    elf.section(".gopclntab").is_some()
        || elf.section(".go.buildinfo").is_some()
        || functions.iter().any(|f| &*f.name == "runtime.morestack")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_look_like_one_address_were_taken_for_a_table() {
        let is_text = |va: Va| (0x0804_9000..0x0860_0000).contains(&va.0);
        let found = |words: &[u64]| tables(words.iter().copied().map(Va), is_text);
        assert_eq!(found(&[0x1000_0000, 0x0845_8904, 0x5e5b_0cc4, 0x0845_8908]), []);
        let table = [0x0845_8904, 0x0845_8920, 0x0845_8940];
        assert_eq!(found(&[&[0][..], &table, &[0x9090_9090, 0x0845_8910]].concat()), table.map(Va));
        assert_eq!(found(&table[..2]), table[..2].iter().copied().map(Va).collect::<Vec<_>>());
    }
}
