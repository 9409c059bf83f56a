//! Where figures come from, and where they go.

use std::process::Command;

use anyhow::{Context, Result};
use sidestep_tests::process::{LIMIT, run};

use crate::test::checkout;

/// The command, commit, machine and system of a run: two lines without the last newline.
pub fn made_by(command: &str) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let cpu = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("x86-64", |l| l.1);
    let cpus = cpuinfo.matches("processor\t").count();
    let virtual_machine = if cpuinfo.contains(" hypervisor") { " in a virtual machine" } else { "" };
    let os = read("/etc/os-release");
    let os = os.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux").trim_matches('"');
    let git = |args: &[&str]| run(Command::new("git").args(args).current_dir(checkout()), LIMIT).stdout;
    let changed = if git(&["status", "--porcelain", "--untracked-files=no"]).is_empty() { "" } else { " with changes" };
    format!(
        "`cargo xtask {command}`, commit {}{changed}, on {cpus} × {cpu}{virtual_machine},\nLinux {}, {os}.",
        git(&["rev-parse", "--short", "HEAD"]).trim(),
        read("/proc/sys/kernel/osrelease").trim()
    )
}

/// A file of the checkout; empty if it is not there.
pub fn read_doc(path: &str) -> String {
    std::fs::read_to_string(checkout().join(path)).unwrap_or_default()
}

/// Writes a file of the checkout.
pub fn write_doc(path: &str, text: &str) -> Result<()> {
    let path = checkout().join(path);
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}
