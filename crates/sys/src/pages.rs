//! Which pages of a process are in use.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::bpf::page_size;
use crate::process::Process;

/// A page in memory, and one that is swapped out (proc(5), `/proc/PID/pagemap`).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Pages that are asked for together.
const PIECE: u64 = 1 << 16;

/// What the kernel says of the pages of a process.
#[derive(Debug)]
pub struct Pages(Option<File>);

impl Process {
    /// Its pages; where the kernel says nothing of them, none counts as used.
    #[must_use]
    pub fn pages(&self) -> Pages {
        Pages(File::open(self.path("pagemap")).ok())
    }
}

impl Pages {
    /// The parts of an address range, in whole pages, that the process has used: they are in memory
    /// or swapped out. All others read as zeros, or as the file says.
    #[must_use]
    pub fn used(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let page = page_size() as u64;
        let mut parts: Vec<Range<u64>> = Vec::new();
        let Some(file) = &self.0 else { return parts };
        let mut entries = Vec::new();
        for start in (range.start / page..range.end.div_ceil(page)).step_by(PIECE as usize) {
            let count = PIECE.min(range.end.div_ceil(page) - start);
            entries.resize(count as usize * 8, 0);
            if file.read_exact_at(&mut entries, start * 8).is_err() {
                break;
            }
            for (number, entry) in (start..).zip(entries.chunks_exact(8)) {
                let is_used = entry.try_into().is_ok_and(|e| u64::from_le_bytes(e) & (PRESENT | SWAPPED) != 0);
                match parts.last_mut().filter(|last| last.end == number * page) {
                    Some(last) if is_used => last.end += page,
                    _ if is_used => parts.push(number * page..(number + 1) * page),
                    _ => {}
                }
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_written_to_are_in_use() {
        let page = page_size() as u64;
        // So much is mapped for itself, and not touched before.
        let mut memory = vec![0u8; 64 << 20];
        let base = memory.as_ptr() as u64;
        let start = base.next_multiple_of(page);
        let at = |number: u64| start + number * page;
        for number in [1, 2, 5] {
            memory[(at(number) - base) as usize] = 1;
        }
        let process = Process::look_at(std::process::id() as i32).unwrap();
        let used = process.pages().used(&(at(0)..at(8)));
        // A kernel with huge pages gives more.
        let has = |number: u64| used.iter().any(|part| part.start <= at(number) && at(number + 1) <= part.end);
        assert!([1, 2, 5].into_iter().all(has), "{used:x?}");
        assert_eq!(std::hint::black_box(memory)[0], 0);
    }
}
