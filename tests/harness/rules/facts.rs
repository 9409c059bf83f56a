//! What binutils say of an object: where instructions begin, and who comes to which of them. Only
//! the tables of exceptions are read here, since no tool prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSection};

use crate::process::{LIMIT, run};

/// An instruction, by objdump.
pub struct Insn {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its text.
    pub text: String,
}

impl Insn {
    /// Does a function end here?
    pub fn is_return(&self) -> bool {
        let words = self.text.split_whitespace().skip_while(|word| ["bnd", "repz", "rep"].contains(word));
        words.take(1).any(|word| word == "ret" || word == "retq")
    }

    /// Does execution go on behind it?
    fn falls_through(&self) -> bool {
        !self.is_return() && !["jmp", "notrack jmp", "bnd jmp", "ud2", "hlt"].iter().any(|s| self.text.starts_with(s))
    }

    /// Where a direct branch leads.
    fn target(&self) -> Option<u64> {
        let mut words =
            self.text.split_whitespace().skip_while(|word| ["bnd", "notrack", "data16", "rex.W"].contains(word));
        let name = words.next()?;
        let branches = name.starts_with('j') || ["call", "loop", "xbegin"].iter().any(|start| name.starts_with(start));
        u64::from_str_radix(words.next().filter(|_| branches)?, 16).ok()
    }

    /// The address that objdump computes from the instruction pointer.
    fn named(&self) -> Option<u64> {
        let (_, comment) = self.text.split_once("# ")?;
        u64::from_str_radix(comment.split_whitespace().next()?, 16).ok()
    }
}

/// Who leads to an address of which nothing else is known.
const A_BRANCH: &str = "a branch";

/// All of it.
#[derive(Default)]
pub struct Facts {
    /// Instructions by their address.
    pub insns: BTreeMap<u64, Insn>,
    /// Addresses that somebody may come to, and who.
    pub arrivals: BTreeMap<u64, &'static str>,
    /// Direct branches by where they lead.
    pub branches: BTreeMap<u64, Vec<u64>>,
    /// Functions and parts of functions, as unwind information has them.
    pub frames: Vec<Range<u64>>,
}

impl Facts {
    /// Looks at an object. `None`: it is no 64-bit object with code.
    pub fn of(path: &Path) -> Option<Facts> {
        let data = std::fs::read(path).ok()?;
        let file = object::File::parse(&*data).ok()?;
        if file.architecture() != object::Architecture::X86_64 || file.section_by_name(".text").is_none() {
            return None;
        }
        let mut facts = Facts { insns: instructions(path), ..Facts::default() };
        facts.relocations(path);
        facts.symbols(path);
        facts.unwind_information(path, &file);
        facts.tables(&file);
        // The last: who leads to an address is what is found first.
        facts.branches();
        Some(facts)
    }

    /// Does nobody come to an address but by these branches?
    pub fn only_by(&self, at: u64, branches: &[u64]) -> bool {
        let is_padding =
            |insn: &&Insn| ["nop", "cs nop", "data16", "xchg   %ax,%ax"].iter().any(|p| insn.text.starts_with(p));
        let before = self.insns.range(..at).rev().map(|(_, insn)| insn).find(|insn| !is_padding(insn));
        let falls_through = before.is_some_and(Insn::falls_through);
        let sources = self.branches.get(&at).map_or(&[][..], Vec::as_slice);
        !falls_through && !sources.is_empty() && sources.iter().all(|from| branches.contains(from))
    }

    /// The instructions of a function that are executed if all of its branches go both ways.
    /// Compilers leave code behind loops that never end.
    pub fn executed(&self, frame: &Range<u64>) -> BTreeSet<u64> {
        let from_elsewhere =
            |at: &u64| self.branches.get(at).is_some_and(|all| all.iter().any(|from| !frame.contains(from)));
        let arrivals = self.arrivals.range(frame.clone());
        let roots = arrivals.filter(|(at, who)| **who != A_BRANCH || from_elsewhere(at)).map(|(at, _)| *at);
        let mut todo: Vec<u64> = roots.collect();
        let mut executed = BTreeSet::new();
        while let Some(at) = todo.pop() {
            let Some(insn) = self.insns.get(&at).filter(|_| frame.contains(&at) && executed.insert(at)) else {
                continue;
            };
            todo.extend(insn.target());
            todo.extend(Some(at + insn.bytes.len() as u64).filter(|_| insn.falls_through()));
        }
        executed
    }

    fn arrive(&mut self, at: u64, who: &'static str) {
        self.arrivals.entry(at).or_insert(who);
    }

    fn branches(&mut self) {
        let (mut targets, mut names) = (Vec::new(), Vec::new());
        for (from, insn) in &self.insns {
            if let Some(to) = insn.target() {
                self.branches.entry(to).or_default().push(*from);
                targets.push(to);
            }
            names.extend(insn.named().filter(|at| insn.text.starts_with("lea") && self.insns.contains_key(at)));
        }
        names.into_iter().for_each(|at| self.arrive(at, "an instruction that names it"));
        targets.into_iter().for_each(|at| self.arrive(at, A_BRANCH));
    }

    fn relocations(&mut self, path: &Path) {
        let text = run(Command::new("readelf").arg("-rW").arg(path), LIMIT).stdout;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = match words[..] {
                [_, _, "R_X86_64_RELATIVE" | "R_X86_64_IRELATIV", at] => u64::from_str_radix(at, 16).ok(),
                [_, _, "R_X86_64_64", value, _, "+", more] => u64::from_str_radix(value, 16)
                    .ok()
                    .and_then(|value| value.checked_add(u64::from_str_radix(more, 16).ok()?)),
                _ => None,
            };
            at.into_iter().for_each(|at| self.arrive(at, "a relocation"));
        }
    }

    fn symbols(&mut self, path: &Path) {
        let text = run(Command::new("readelf").arg("-sW").arg(path), LIMIT).stdout;
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, value, _, "FUNC" | "NOTYPE" | "IFUNC" | "GNU_IFUNC", _, _, section, ..] = words[..] {
                let at = u64::from_str_radix(value, 16).ok().filter(|at| section != "UND" && *at != 0);
                at.into_iter().for_each(|at| self.arrive(at, "a symbol"));
            }
        }
    }

    fn unwind_information(&mut self, path: &Path, file: &object::File<'_>) {
        let Some(section) = file.section_by_name(".eh_frame") else { return };
        let text = run(Command::new("readelf").args(["-W", "--debug-dump=frames"]).arg(path), LIMIT).stdout;
        let (mut at, mut frame) = (0, 0..0);
        for line in text.lines() {
            if let Some(range) = line.split_once(" FDE ").and_then(|(_, rest)| rest.split_once("pc=")) {
                let Some((start, end)) = range.1.split_once("..") else { continue };
                let number = |text: &str| u64::from_str_radix(text.trim(), 16).unwrap_or(0);
                at = number(line.split_whitespace().next().unwrap_or_default());
                frame = number(start)..number(end);
                self.frames.push(frame.clone());
                self.arrive(frame.start, "unwind information");
            } else if let Some(data) = line.trim().strip_prefix("Augmentation data:") {
                // The distance of four bytes that DW_EH_PE_pcrel and DW_EH_PE_sdata4 make. It is
                // behind length, id, start, length of the function and the length of this.
                let bytes: Vec<u8> = data.split_whitespace().filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
                let Ok(distance) = bytes.try_into().map(i32::from_le_bytes) else { continue };
                if frame.is_empty() || distance == 0 {
                    continue;
                }
                let table = (section.address() + at + 17).wrapping_add_signed(distance.into());
                for pad in landing_pads(file, table, frame.start).unwrap_or_default() {
                    self.arrive(pad, "an exception");
                }
            } else if line.contains(" CIE") {
                frame = 0..0;
            }
        }
    }

    /// Tables of distances from their own address, which the jumps of a function go through.
    fn tables(&mut self, file: &object::File<'_>) {
        let mut bases = BTreeSet::new();
        for frame in &self.frames {
            let insns = || self.insns.range(frame.clone()).map(|(_, insn)| insn);
            if insns().any(|insn| insn.text.contains("jmp    *%r")) {
                bases.extend(insns().filter(|insn| insn.text.starts_with("lea")).filter_map(Insn::named));
            }
        }
        for base in &bases {
            let end = bases.range(base + 1..).next().copied().unwrap_or(u64::MAX);
            for at in (*base..end).step_by(4) {
                let target = word(file, at).map(|distance| base.wrapping_add_signed(distance.into()));
                let Some(target) = target.filter(|target| self.insns.contains_key(target)) else { break };
                self.arrive(target, "a jump table");
            }
        }
    }
}

/// All instructions of an object.
fn instructions(path: &Path) -> BTreeMap<u64, Insn> {
    let code = run(Command::new("objdump").args(["-d", "-w"]).arg(path), LIMIT).ok().stdout;
    let insn = |line: &str| {
        let mut parts = line.split('\t');
        let va = u64::from_str_radix(parts.next()?.trim().strip_suffix(':')?, 16).ok()?;
        let bytes = parts.next()?.split_whitespace().map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>();
        Some((va, Insn { bytes: bytes.ok()?, text: parts.next()?.trim().to_owned() }))
    };
    code.lines().filter_map(insn).collect()
}

/// Four bytes of data.
fn word(file: &object::File<'_>, at: u64) -> Option<i32> {
    let section = file.sections().find(|s| (s.address()..s.address() + s.size()).contains(&at) && at != 0)?;
    let bytes = section.data_range(at, 4).ok()??;
    Some(i32::from_le_bytes(bytes.try_into().ok()?))
}

/// The landing pads of a table of call sites ("Itanium C++ ABI: Exception Handling Level 1", and
/// the LSDA of GCC).
fn landing_pads(file: &object::File<'_>, table: u64, start: u64) -> Option<Vec<u64>> {
    const OMITTED: u8 = 0xff;
    const ULEB128: u8 = 1;
    let section = file.section_by_name(".gcc_except_table")?;
    let data = section.data().ok()?.get(usize::try_from(table.checked_sub(section.address())?).ok()?..)?;
    let mut bytes = data.iter().copied();
    if bytes.next()? != OMITTED {
        return None;
    }
    if bytes.next()? != OMITTED {
        uleb128(&mut bytes)?;
    }
    if bytes.next()? != ULEB128 {
        return None;
    }
    let len = usize::try_from(uleb128(&mut bytes)?).ok()?;
    let mut sites = bytes.take(len);
    let mut pads = Vec::new();
    while let Some(_begin) = uleb128(&mut sites) {
        let (_len, pad, _action) = (uleb128(&mut sites)?, uleb128(&mut sites)?, uleb128(&mut sites)?);
        if pad != 0 {
            pads.push(start + pad);
        }
    }
    Some(pads)
}

fn uleb128(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}
