//! `/proc/PID/maps` as data. Source of the format: fs/proc/task_mmu.c (`show_map_vma`) and
//! proc_pid_maps(5).

use std::path::PathBuf;

use sidestep_isa::{FileOff, Len, Va};

/// One line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First run-time address.
    pub start: Va,
    /// The address behind the last.
    pub end: Va,
    /// `r`.
    pub read: bool,
    /// `w`.
    pub write: bool,
    /// `x`.
    pub execute: bool,
    /// `s` instead of `p`.
    pub shared: bool,
    /// Where in the file it begins.
    pub offset: FileOff,
    /// Device number, major and minor. On overlayfs and btrfs not what `stat` says.
    pub dev: (u32, u32),
    /// Inode number; 0 = no file.
    pub inode: u64,
    /// The last column without ` (deleted)`: a path or a name like `[heap]`; empty if there is
    /// none.
    pub name: String,
    /// The file was unlinked (or replaced by an upgrade): open it through `/proc/PID/map_files`.
    pub deleted: bool,
}

impl Mapping {
    /// The path of the mapped file, as the process sees it; `None` for anonymous memory, `[stack]`
    /// and the like.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        (self.inode != 0 && self.name.starts_with('/')).then(|| PathBuf::from(&self.name))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> Len {
        Len(self.end.0.saturating_sub(self.start.0))
    }

    /// Whether it has no bytes (never so in what the kernel writes).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Whether a run-time address is in it.
    #[must_use]
    pub fn contains(&self, va: Va) -> bool {
        self.start <= va && va < self.end
    }
}

/// Parses the text of `/proc/PID/maps`. Lines that are not of the kernel's form are left out.
#[must_use]
pub fn parse_maps(text: &str) -> Vec<Mapping> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mapping> {
    // Exactly one blank ends each of the first five columns; the path follows after padding and may
    // have blanks itself.
    let mut columns = line.splitn(6, ' ');
    let (start, end) = columns.next()?.split_once('-')?;
    let perms = columns.next()?.as_bytes();
    let offset = columns.next()?;
    let (major, minor) = columns.next()?.split_once(':')?;
    let inode = columns.next()?;
    let rest = columns.next().unwrap_or("").trim_start_matches(' ');
    let (name, deleted) = match rest.strip_suffix(" (deleted)") {
        Some(name) => (name, true),
        None => (rest, false),
    };
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let hex32 = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let flag = |at: usize, letter: u8| perms.get(at) == Some(&letter);
    Some(Mapping {
        start: Va(hex(start)?),
        end: Va(hex(end)?),
        read: flag(0, b'r'),
        write: flag(1, b'w'),
        execute: flag(2, b'x'),
        shared: flag(3, b's'),
        offset: FileOff(hex(offset)?),
        dev: (hex32(major)?, hex32(minor)?),
        inode: inode.parse().ok()?,
        // The only character that the kernel escapes.
        name: name.replace("\\012", "\n"),
        deleted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_writes_them() {
        let text = "\
55d0c0a00000-55d0c0a21000 r-xp 0002c000 fe:01 1835                       /usr/bin/a b  c (deleted)
7ffd0a1fe000-7ffd0a21f000 rw-p 00000000 00:00 0                          [stack]
7f0000000000-7f0000001000 rw-s 00001000 00:01 42                         /dev/shm/x\\012y
7f0000002000-7f0000003000 ---p 00000000 00:00 0 
not a line
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";
        let maps = parse_maps(text);
        assert_eq!(maps.len(), 5);
        assert_eq!(maps[0].path(), Some("/usr/bin/a b  c".into()));
        assert!(maps[0].deleted && maps[0].execute && maps[0].read && !maps[0].write && !maps[0].shared);
        assert_eq!((maps[0].offset, maps[0].dev, maps[0].inode), (FileOff(0x2c000), (0xfe, 1), 1835));
        assert_eq!(maps[0].len(), Len(0x21000));
        assert_eq!((maps[1].path(), maps[1].name.as_str()), (None, "[stack]"));
        assert_eq!(maps[2].path(), Some("/dev/shm/x\ny".into()));
        assert!(maps[2].shared);
        assert_eq!(maps[3].name, "");
        assert_eq!(maps[4].start, Va(0xffff_ffff_ff60_0000));
    }

    #[test]
    fn this_process_can_be_read() {
        let maps = parse_maps(&std::fs::read_to_string("/proc/self/maps").unwrap());
        let here = Va(this_process_can_be_read as fn() as usize as u64);
        let own = maps.iter().find(|m| m.contains(here)).unwrap();
        assert!(own.execute);
        assert_eq!(own.path().unwrap(), std::env::current_exe().unwrap());
    }
}
