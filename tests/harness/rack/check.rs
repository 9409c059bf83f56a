//! What a program must be when no session is there any more.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{Failure, Wrong};
use crate::process::{LIMIT, eventually};

/// Executable mappings of files, by address, path and offset: the bytes.
pub(super) struct Code(BTreeMap<String, Vec<u8>>);

impl Code {
    /// Of a process, before anything was done to it.
    pub fn of(pid: i32) -> Code {
        let mut code = BTreeMap::new();
        let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return Code(code) };
        for (range, access, path, line) in mappings(pid) {
            let mut bytes = vec![0; (range.1 - range.0) as usize];
            if access.contains('x') && path.starts_with('/') && memory.read_exact_at(&mut bytes, range.0).is_ok() {
                code.insert(line, bytes);
            }
        }
        Code(code)
    }
}

/// Address range, access, path and the whole line of each mapping.
fn mappings(pid: i32) -> Vec<((u64, u64), String, String, String)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let range = (hex(start)?, hex(end)?);
        let access = words.next()?.to_owned();
        Some((range, access, words.nth(3).unwrap_or_default().to_owned(), line.to_owned()))
    };
    maps.lines().filter_map(mapping).collect()
}

/// Nothing of ours is left: no memory, no changed byte.
pub(super) fn left(pid: i32, before: &Code) -> Result<(), Failure> {
    let wrong = |what: String| Failure::new(Wrong::Result, what);
    if let Some((.., line)) = mappings(pid).into_iter().find(|(.., path, _)| path.contains("memfd:sidestep")) {
        return Err(Failure::new(Wrong::Left, format!("memory is left: {line}")));
    }
    // A uprobe of the kernel, which others may have in a library for a while, is a byte there, too.
    let mut different = Vec::new();
    let is_same = || {
        let now = Code::of(pid);
        let differs = |(line, bytes): &(&String, &Vec<u8>)| now.0.get(*line).is_some_and(|now| now != *bytes);
        different = before.0.iter().filter(differs).map(|(line, _)| line.clone()).collect();
        different.is_empty()
    };
    match eventually(LIMIT, is_same) {
        true => Ok(()),
        false => Err(wrong(format!("code is changed: {different:?}"))),
    }
}
