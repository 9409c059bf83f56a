//! What is said where something is not possible.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use sidestep_sys::bpf::{self, AttachError, Map, MapSpec, ProgramKind, Site};

use crate::code::{NOTHING, load, say};
use crate::permitted;

const CHILD: &str = "SIDESTEP_TEST_REFUSED";

#[test]
fn without_the_right_the_reason_is_said() {
    if std::env::var_os(CHILD).is_some() {
        say(&format!("refused: {:?}\n", bpf::permitted().map_err(|e| e.to_string())));
        return;
    }
    if !permitted() {
        return;
    }
    let mut child = Command::new("/proc/self/exe");
    child.args(["--exact", "refused::without_the_right_the_reason_is_said"]).env(CHILD, "1").uid(65534).gid(65534);
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("refused: Err(\"the kernel lets us "), "{said}");
    assert!(said.contains("run as root, or with CAP_"), "{said}");
}

#[test]
fn a_place_that_is_not_there() {
    if !permitted() {
        return;
    }
    let program = load(ProgramKind::Probe, NOTHING.to_vec(), &[]);
    let site = Site { path: Path::new("/nowhere"), offset: 0x40, ..Site::default() };
    let error = bpf::attach(&program, &site).unwrap_err();
    assert!(error.to_string().starts_with("the kernel refuses a uprobe at /nowhere+0x40: No such file"), "{error}");
    let site = Site { path: Path::new("/proc/self/exe"), pid: Some(i32::MAX), ..Site::default() };
    let error = bpf::attach(&program, &site).unwrap_err();
    assert!(matches!(error, AttachError::Open { .. }) && error.to_string().contains("No such process"), "{error}");
}

#[test]
fn a_program_of_another_kind_and_a_map_that_cannot_be() {
    if !permitted() {
        return;
    }
    let program = load(ProgramKind::SocketFilter, NOTHING.to_vec(), &[]);
    let exe = std::fs::read_link("/proc/self/exe").unwrap();
    let site = Site { path: &exe, offset: 0, ..Site::default() };
    let error = bpf::attach(&program, &site).unwrap_err();
    assert!(matches!(error, AttachError::Bind { .. }), "{error}");
    let spec = MapSpec { name: "odd", kind: 2, key_size: 8, value_size: 8, max_entries: 1, ..MapSpec::default() };
    let error = Map::create(&spec).unwrap_err().to_string();
    assert!(error.starts_with("the kernel refuses map 'odd' (kind 2, 8 + 8 bytes, 1 entries): Invalid"), "{error}");
}
