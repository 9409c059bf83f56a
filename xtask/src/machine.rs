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

/// Writes a file of `docs`.
pub fn write_doc(name: &str, text: &str) -> Result<()> {
    let dir = checkout().join("docs");
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}
