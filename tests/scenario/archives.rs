//! Libraries in zip archives, which are mapped as they lie there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{during, is_32_bit, sidestep};
use sidestep_tests::{Snapshot, target};

use super::counts::work;

/// Where the library begins.
const AT: usize = 0x3000;
const NAME: &[u8] = b"lib/leaf.so";

/// An archive with one member, by APPNOTE.TXT of PKWARE: a local header, the member, the directory,
/// and its end. `method`: 0 is stored, 8 is compressed.
fn archive(member: &[u8], method: u16, at: usize) -> Vec<u8> {
    let size = (member.len() as u32).to_le_bytes();
    // Flags, method, time, checksum, sizes.
    let facts = [&[0, 0][..], &method.to_le_bytes(), &[0; 8], &size, &size].concat();
    let name_len = (NAME.len() as u16).to_le_bytes();
    let padding = at - 30 - NAME.len();
    let mut file = [b"PK\x03\x04\x0a\0", &facts[..], &name_len, &(padding as u16).to_le_bytes(), NAME].concat();
    file.resize(at, 0);
    file.extend(member);
    let directory = file.len() as u32;
    let entry = [b"PK\x01\x02\x0a\0\x0a\0", &facts[..], &name_len, &[0; 12], &[0; 4], NAME].concat();
    file.extend(&entry);
    let (count, len) = (1_u16.to_le_bytes(), (entry.len() as u32).to_le_bytes());
    file.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &directory.to_le_bytes(), &[0, 0]].concat());
    file
}

struct Scrap(PathBuf);

impl Scrap {
    fn new(name: &str, method: u16, at: usize) -> Option<Scrap> {
        let library = fs::read(target("leaf.so")?).expect("the library was built");
        let file = format!("sidestep-{name}-{}-{}.apk", std::process::id(), is_32_bit());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, archive(&library, method, at)).expect("the folder is writable");
        Some(Scrap(path))
    }

    /// The library as attach points name it.
    fn library(&self) -> String {
        format!("{}!/lib/leaf.so", self.0.display())
    }
}

impl Drop for Scrap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn start(program: &Path, archive: &Scrap) -> Program {
    Program::start(Command::new(program).env("ARCHIVE", &archive.0).env("AT", AT.to_string()))
}

#[test]
fn a_library_in_an_archive_is_listed_and_explained() {
    let Some(archive) = Scrap::new("listed", 0, AT) else { return };
    let library = archive.library();
    let output = run(&mut sidestep(&["-l", &format!("uprobe:{library}:*")]), LIMIT).ok();
    assert_eq!(output.stdout, format!("uprobe:{library}:leaf\n"));
    let output = run(&mut sidestep(&["explain", &format!("{library}:leaf")]), LIMIT).ok();
    assert!(output.stdout.contains("leaf") && output.stdout.contains(&library), "{output}");
}

#[test]
fn a_library_that_was_mapped_from_an_archive_is_probed() {
    let (Some(program), Some(archive)) = (target("archived"), Scrap::new("probed", 0, AT)) else { return };
    let library = archive.library();
    let mut program = start(&program, &archive);
    let pid = program.pid().to_string();
    let before = Snapshot::of(program.pid());
    let (report, answer) = during(&["funccount", "-p", &pid, &format!("{library}:leaf")], || program.ask("work 100"));
    assert_eq!(answer, work(100));
    report.assert_count("leaf", 100);
    before.assert_same(&Snapshot::of(program.pid()));
    // The short name of the library, as of any other one.
    let (report, _) = during(&["funccount", "-p", &pid, "leaf:leaf"], || program.ask("work 7"));
    report.assert_count("leaf", 7);
    // By a script, in quotes, with the argument and the path that was typed.
    let script = format!("u:\"{library}\":leaf {{ @[probe] = sum(arg0); }}");
    let (report, _) = during(&["-f", "json", "-p", &pid, "-e", &script], || program.ask("work 5"));
    assert!(report.0.stdout.contains(&format!("{library}:leaf\": {}", 1 + 2 + 3 + 4)), "{}", report.0);
    program.finish().ok();
}

#[test]
fn what_no_process_can_map_is_refused_with_the_reason() {
    for (name, method, at, reason) in [
        ("compressed", 8, AT, "compressed in the archive"),
        ("misplaced", 0, AT + 16, "does not begin at a page of the archive"),
    ] {
        let Some(archive) = Scrap::new(name, method, at) else { return };
        let output = run(&mut sidestep(&["-l", &format!("uprobe:{}:*", archive.library())]), LIMIT);
        assert!(output.code() == 1 && output.stderr.contains(reason), "{output}");
    }
    let Some(archive) = Scrap::new("other", 0, AT) else { return };
    let output = run(&mut sidestep(&["-l", &format!("uprobe:{}!/lib/no.so:*", archive.0.display())]), LIMIT);
    assert!(output.code() == 1 && output.stderr.contains("no such member"), "{output}");
}
