//! Names of code that a program has compiled at run time: the lines of `/tmp/perf-PID.map`
//! (`tools/perf/Documentation/jit-interface.txt` of Linux).

use std::collections::BTreeMap;

use sidestep_isa::Va;

/// Names are cut to so many bytes.
const NAME_MAX: usize = 4096;
/// At most so many lines count; those behind them are ignored.
const LINES_MAX: usize = 1 << 22;
/// At most so many bytes of names are kept.
const NAMES_MAX: usize = 256 << 20;

/// Functions at run-time addresses. Each address belongs to the last line that has it: the program
/// may have freed what was there before.
#[derive(Clone, Debug, Default)]
pub struct CompiledNames {
    /// By their first addresses, disjoint.
    parts: BTreeMap<u64, Part>,
    names: Vec<u8>,
    lines: usize,
}

/// What is left of a function.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The address behind it.
    end: u64,
    /// Where the function begins.
    start: u64,
    /// Its name in `names`.
    name: usize,
    length: u16,
}

impl CompiledNames {
    /// Adds lines `START SIZE NAME`, the numbers in hexadecimal digits. Other lines, and a last one
    /// without its end, say nothing.
    pub fn add(&mut self, text: &[u8]) {
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = line.strip_suffix(b"\n") else { return };
            if self.lines == LINES_MAX {
                return;
            }
            if let Some((start, end, name)) = parse(line) {
                self.lines += 1;
                self.insert(start, end, name);
            }
        }
    }

    fn insert(&mut self, start: u64, end: u64, name: &[u8]) {
        let name = &name[..name.len().min(NAME_MAX)];
        if self.names.len() + name.len() > NAMES_MAX {
            return;
        }
        // One part may begin before the new function, and reach beyond it.
        if let Some((_, before)) = self.parts.range_mut(..start).next_back() {
            let whole = *before;
            before.end = whole.end.min(start);
            if whole.end > end {
                self.parts.insert(end, whole);
            }
        }
        // What begins inside of it.
        while let Some((&at, &part)) = self.parts.range(start..end).next() {
            self.parts.remove(&at);
            if part.end > end {
                self.parts.insert(end, part);
            }
        }
        self.parts.insert(start, Part { end, start, name: self.names.len(), length: name.len() as u16 });
        self.names.extend_from_slice(name);
    }

    /// The function around an address, and the offset in it. The name is as the program wrote it.
    #[must_use]
    pub fn find(&self, at: Va) -> Option<(String, u64)> {
        let (_, part) = self.parts.range(..=at.0).next_back().filter(|(_, part)| at.0 < part.end)?;
        let name = self.names.get(part.name..part.name + usize::from(part.length))?;
        Some((String::from_utf8_lossy(name).into_owned(), at.0 - part.start))
    }
}

/// First address, the one behind the last, and the name.
fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (start, rest) = number(line)?;
    let (size, rest) = number(rest)?;
    let name = rest.trim_ascii();
    let end = start.checked_add(size)?;
    (size > 0 && !name.is_empty()).then_some((start, end, name))
}

/// A number, and what is behind the blanks after it.
fn number(text: &[u8]) -> Option<(u64, &[u8])> {
    let text = text.trim_ascii_start();
    let end = text.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
    let digits = text[..end].strip_prefix(b"0x").unwrap_or(&text[..end]);
    // `from_str_radix` takes a sign, too.
    let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    Some((u64::from_str_radix(digits, 16).ok()?, &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> CompiledNames {
        let mut names = CompiledNames::default();
        names.add(text.as_bytes());
        names
    }

    #[track_caller]
    fn check(names: &CompiledNames, at: u64, wanted: Option<(&str, u64)>) {
        assert_eq!(names.find(Va(at)), wanted.map(|(name, offset)| (name.to_owned(), offset)), "{at:#x}");
    }

    #[test]
    fn names_may_have_blanks_and_numbers_a_prefix() {
        let names = names("1000 20 JS:*work /a b.js:1:2\n0x2000 0x10 other\r\n 3000\t8\tthird\n");
        check(&names, 0xfff, None);
        check(&names, 0x1000, Some(("JS:*work /a b.js:1:2", 0)));
        check(&names, 0x101f, Some(("JS:*work /a b.js:1:2", 0x1f)));
        check(&names, 0x1020, None);
        check(&names, 0x2008, Some(("other", 8)));
        check(&names, 0x3007, Some(("third", 7)));
    }

    #[test]
    fn malformed_lines_say_nothing() {
        let names = names(
            "\n1000\n1000 10\n1000 10 \n10x0 10 name\n+1000 10 name\n1000 -1 name\n1000 0 name\n\
             11112222333344445 1 name\nffffffffffffffff 1 name\n\u{fffd} 1 name\n2000 10 right\n3000 10 cut",
        );
        assert_eq!(names.parts.len(), 1);
        check(&names, 0x2000, Some(("right", 0)));
        check(&names, 0x3000, None);
    }

    #[test]
    fn later_lines_win() {
        let names =
            names("1000 100 old\n1040 10 new\n1100 100 gone\n1100 100 back\n10f0 8 over\n2000 10 a\n1ff0 40 all\n");
        check(&names, 0x103f, Some(("old", 0x3f)));
        check(&names, 0x1040, Some(("new", 0)));
        check(&names, 0x1050, Some(("old", 0x50)));
        check(&names, 0x10f7, Some(("over", 7)));
        check(&names, 0x10f8, Some(("old", 0xf8)));
        check(&names, 0x1100, Some(("back", 0)));
        check(&names, 0x2000, Some(("all", 0x10)));
        check(&names, 0x2030, None);
    }

    /// Each address belongs to the last line that has it, whatever the lines are.
    #[test]
    fn all_overlaps_are_as_if_each_address_was_written_by_itself() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut names = CompiledNames::default();
            let mut wanted = vec![None; 64];
            for line in 0..12 {
                let (start, size) = (random(48), 1 + random(15));
                names.add(format!("{start:x} {size:x} n{line}\n").as_bytes());
                for at in start..start + size {
                    wanted[at as usize] = Some((format!("n{line}"), at - start));
                }
            }
            for (at, wanted) in (0..).zip(wanted) {
                assert_eq!(names.find(Va(at)), wanted, "{at}: {:?}", names.parts);
            }
        }
    }

    #[test]
    fn long_names_are_cut() {
        let names = names(&format!("10 10 {}\n", "x".repeat(NAME_MAX + 1)));
        assert_eq!(names.find(Va(0x10)).unwrap().0.len(), NAME_MAX);
    }
}
