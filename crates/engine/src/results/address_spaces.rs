//! What addresses mean in the processes of a session. Where two have different code at one address,
//! stacks and symbols are kept apart by a number ([`sidestep_wire::Private::space`]); where they
//! have not, as workers of one server, they are one.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_symbols::MappedObject;
use sidestep_wire::private::SPACES;

/// Code of a file: which, and where its first byte would be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Code {
    path: PathBuf,
    dev: (u32, u32),
    inode: u64,
    base: i128,
}

/// What is known of the code in processes with one number, by its start: its end, and which it is.
type Space = BTreeMap<Va, (Va, Code)>;

/// The numbers so far.
#[derive(Default)]
pub(crate) struct Meanings(Vec<Space>);

impl Meanings {
    /// The number of a process that has these objects: the one that it has, if that is still right.
    /// What cannot be told apart any more has the last one.
    pub fn number(&mut self, current: Option<u32>, mapped: &[MappedObject]) -> u32 {
        let code = || mapped.iter().flat_map(|object| object.executable().map(|m| (m.start, m.end, code(object, m))));
        let last = (SPACES - 1) as usize;
        let fits = |space: &Space| code().all(|(start, end, code)| fits(space, start, end, &code));
        let current = current.map(|number| number as usize);
        let found = current.into_iter().chain(0..self.0.len()).find(|number| self.0.get(*number).is_some_and(fits));
        let number = found.unwrap_or(self.0.len()).min(last);
        if number == self.0.len() {
            self.0.push(Space::new());
        }
        for (start, end, code) in code() {
            add(&mut self.0[number], start, end, code);
        }
        number as u32
    }
}

fn code(object: &MappedObject, m: &sidestep_symbols::Mapping) -> Code {
    let base = i128::from(m.start.0) - i128::from(m.offset.0);
    Code { path: object.path.clone(), dev: m.dev, inode: m.inode, base }
}

/// What is known to overlap a range.
fn overlapping(space: &Space, start: Va, end: Va) -> impl Iterator<Item = (Va, Va, &Code)> {
    let known = space.range(..end).rev().map(|(at, (end, code))| (*at, *end, code));
    known.take_while(move |(_, end, _)| *end > start)
}

/// Is nothing else known to be there?
fn fits(space: &Space, start: Va, end: Va, code: &Code) -> bool {
    overlapping(space, start, end).all(|(.., other)| other == code)
}

fn add(space: &mut Space, mut start: Va, mut end: Va, code: Code) {
    let same: Vec<(Va, Va)> = overlapping(space, start, end).map(|(from, to, _)| (from, to)).collect();
    for (from, to) in same {
        space.remove(&from);
        (start, end) = (start.min(from), end.max(to));
    }
    space.insert(start, (end, code));
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_symbols::{mapped_objects, parse_maps};

    fn objects(maps: &str) -> Vec<MappedObject> {
        mapped_objects(&parse_maps(maps), None)
    }

    const SERVER: &str = "1000-2000 r-xp 00001000 08:01 7 /bin/server\n5000-6000 r-xp 00000000 08:01 8 /lib/a.so\n";

    #[test]
    fn workers_are_one_and_other_programs_are_not() {
        let mut meanings = Meanings::default();
        assert_eq!(meanings.number(None, &objects(SERVER)), 0);
        assert_eq!(meanings.number(None, &objects(SERVER)), 0);
        // Elsewhere: nothing can be mistaken.
        assert_eq!(meanings.number(None, &objects("9000-a000 r-xp 00001000 08:01 7 /bin/server\n")), 0);
        // The same addresses, another file; another part of the same file.
        assert_eq!(meanings.number(None, &objects("1000-2000 r-xp 00001000 08:01 9 /bin/other\n")), 1);
        assert_eq!(meanings.number(None, &objects("1800-2800 r-xp 00001000 08:01 7 /bin/server\n")), 2);
        assert_eq!(meanings.number(None, &objects("1800-2000 r-xp 00001800 08:01 7 /bin/server\n")), 0);
        // Data is no code.
        assert_eq!(meanings.number(None, &objects("1000-2000 r--p 00001000 08:01 9 /bin/other\n")), 0);
    }

    #[test]
    fn a_library_at_the_place_of_another_one() {
        let mut meanings = Meanings::default();
        assert_eq!(meanings.number(None, &objects(SERVER)), 0);
        let [a, b] = [10, 11].map(|inode| format!("{SERVER}7000-8000 r-xp 00000000 08:01 {inode} /lib/{inode}.so\n"));
        assert_eq!(meanings.number(Some(0), &objects(&a)), 0);
        assert_eq!(meanings.number(Some(0), &objects(&b)), 1);
        // It keeps its number as long as that is right.
        assert_eq!(meanings.number(Some(1), &objects(SERVER)), 1);
        assert_eq!(meanings.number(Some(0), &objects(SERVER)), 0);
    }
}
