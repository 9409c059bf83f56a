//! A real kernel of another architecture under qemu-system, in which a command runs: `cargo xtask
//! guest arm64`, `cargo xtask guest arm32`.
//!
//! The whole file system of the guest is in its memory, and made anew for each run: busybox, the C
//! library, what is added, and `init.sh`. Nothing comes back but the output and the status.

mod archive;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};

use crate::setup;
use archive::Archive;

/// What differs between the machines.
pub struct Architecture {
    /// As Debian calls it.
    pub name: &'static str,
    /// The name of its folders of libraries and of the programs of its compiler.
    triplet: &'static str,
    /// The program that loads libraries, in `/lib`.
    loader: &'static str,
    /// The emulator of a machine, and the arguments that say which.
    qemu: &'static str,
    machine: &'static [&'static str],
}

/// Keys of pointers by a simple function: qemu is slow with that of the architecture.
pub static ARM64: Architecture = Architecture {
    name: "arm64",
    triplet: "aarch64-linux-gnu",
    loader: "ld-linux-aarch64.so.1",
    qemu: "qemu-system-aarch64",
    machine: &["-M", "virt", "-cpu", "max,pauth-impdef=on"],
};

/// All devices have addresses of 32 bits: the kernel reaches no others without a larger page table.
pub static ARM32: Architecture = Architecture {
    name: "armhf",
    triplet: "arm-linux-gnueabihf",
    loader: "ld-linux-armhf.so.3",
    qemu: "qemu-system-arm",
    machine: &["-M", "virt,highmem=off", "-cpu", "cortex-a15"],
};

/// Libraries that programs load.
const LOADED: [&str; 10] = [
    "libatomic.so.1",
    "libc.so.6",
    "libdl.so.2",
    "libgcc_s.so.1",
    "libm.so.6",
    "libpthread.so.0",
    "libresolv.so.2",
    "librt.so.1",
    "libstdc++.so.6",
    "libthread_db.so.1",
];

/// Accounts that programs look up.
const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\nnogroup:x:65534:\n";
const HOSTS: &str = "127.0.0.1 localhost guest\n::1 localhost\n";

/// A guest, and what it is to run.
pub struct Guest {
    pub architecture: &'static Architecture,
    pub cpus: u32,
    /// MiB. The file system takes part of it.
    pub memory: u32,
    /// For everything, from the start of qemu on.
    pub timeout: Duration,
    /// Files and folders of this machine, and their paths in the guest.
    pub added: Vec<(PathBuf, PathBuf)>,
    /// Parts of `setup-guest.sh` besides the system.
    pub parts: Vec<&'static str>,
    /// A line for `sh`, run in `/root` as root.
    pub command: String,
}

/// How a command in the guest ended.
pub struct Ended {
    /// As `sh` has it: 128 and more are signals.
    pub status: u8,
    /// From the start of qemu to that of the command.
    pub boot: Duration,
}

impl Default for Guest {
    fn default() -> Guest {
        Guest {
            architecture: &ARM64,
            cpus: 1,
            memory: 1024,
            timeout: Duration::from_secs(300),
            added: Vec::new(),
            parts: Vec::new(),
            command: String::new(),
        }
    }
}

impl Guest {
    /// Reads the architecture, `--cpus N`, `--memory MIB`, `--timeout S`, `--programs`,
    /// `--tests` and `--add HOSTPATH[:GUESTPATH]`, and the command behind `--`.
    pub fn parse(words: &[&str]) -> Option<Guest> {
        let mut words = words.iter();
        let architecture = match *words.next()? {
            "arm64" => &ARM64,
            "arm32" => &ARM32,
            _ => return None,
        };
        let mut guest = Guest { architecture, ..Guest::default() };
        loop {
            match *words.next()? {
                "--" => break,
                "--cpus" => guest.cpus = words.next()?.parse().ok().filter(|cpus| (1..=8).contains(cpus))?,
                "--memory" => guest.memory = words.next()?.parse().ok()?,
                "--timeout" => guest.timeout = Duration::from_secs(words.next()?.parse().ok()?),
                "--programs" => guest.parts.push("programs"),
                "--tests" => guest.parts.push("tests"),
                "--add" => guest.added.push(added(words.next()?)?),
                _ => return None,
            }
        }
        // As ssh does: the shell of the guest splits it again.
        guest.command = words.as_slice().join(" ");
        Some(guest).filter(|guest| !guest.command.is_empty())
    }

    /// Boots the guest, runs the command, and writes what it prints while it runs, standard error
    /// and output as one. An error says why the command did not end.
    pub fn run(&self, output: &mut dyn Write) -> Result<Ended> {
        let folder = setup::guest(self.architecture.name, "system")?;
        let files = Temporary::new()?;
        self.write_files(&folder, &files.0)?;
        let begin = Instant::now();
        let mut machine = Machine(self.boot(&folder.join("vmlinuz"), &files.0)?);
        let mut files = Some(files);
        let mut serial = machine.0.stdout.take().context("no pipe")?;
        let (to, from) = channel();
        // Ends with qemu, or with the first chunk that nobody wants.
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(size @ 1..) = serial.read(&mut chunk) {
                if to.send(chunk[..size].to_vec()).is_err() {
                    break;
                }
            }
        });
        let mut scanner = Scanner::default();
        let mut boot = None;
        loop {
            let rest = self.timeout.saturating_sub(begin.elapsed());
            let why = match from.recv_timeout(rest) {
                Ok(chunk) => {
                    // qemu has read it.
                    drop(files.take());
                    output.write_all(&scanner.add(&chunk)).and_then(|()| output.flush()).context("output")?;
                    if scanner.has_begun && boot.is_none() {
                        boot = Some(begin.elapsed());
                    }
                    match (scanner.status, boot) {
                        (Some(status), Some(boot)) => return Ok(Ended { status, boot }),
                        _ => continue,
                    }
                }
                Err(RecvTimeoutError::Timeout) => format!("not at its end after {} s", self.timeout.as_secs()),
                Err(RecvTimeoutError::Disconnected) => format!("the guest is gone: qemu: {}", machine.0.wait()?),
            };
            match boot {
                Some(_) => bail!("guest: `{}`: {why}", self.command),
                None => bail!("guest: booting: {why}\n{}", String::from_utf8_lossy(&scanner.before)),
            }
        }
    }

    /// The initial file system.
    fn write_files(&self, folder: &Path, to: &Path) -> Result<()> {
        let mut files = Archive::create(to)?;
        for path in ["dev", "etc", "proc", "root", "run", "sys", "tmp", "usr/bin", "usr/sbin", "usr/lib", "var/tmp"] {
            files.folder(path)?;
        }
        files.text("init", 0o755, include_str!("init.sh"))?;
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        files.text("guest/time", 0o644, &time.as_secs().to_string())?;
        files.text("guest/command", 0o644, &format!("{}\n", self.command))?;
        files.text("etc/passwd", 0o644, PASSWD)?;
        files.text("etc/group", 0o644, GROUP)?;
        files.text("etc/hosts", 0o644, HOSTS)?;
        files.add(&folder.join("busybox"), Path::new("/bin/busybox"))?;
        files.add(&folder.join("dash"), Path::new("/bin/dash"))?;
        files.add(&folder.join("dash"), Path::new("/bin/sh"))?;
        // From where the cross compiler has them to where Debian has them; the loader itself has a
        // name of its own in /lib.
        let Architecture { triplet, loader, .. } = self.architecture;
        let (from, to) = (Path::new("/usr").join(triplet).join("lib"), Path::new("/lib"));
        files.add(&from.join(loader), &to.join(loader))?;
        for name in LOADED {
            files.add(&from.join(name), &to.join(triplet).join(name))?;
        }
        for part in &self.parts {
            // Those programs come with libraries of their own, which take the place of others.
            let part = setup::guest(self.architecture.name, part)?.join(part);
            for folder in ["bin", "etc", "lib", "sbin", "usr"].into_iter().filter(|folder| part.join(folder).exists()) {
                files.add(&part.join(folder), Path::new(folder))?;
            }
        }
        for (from, to) in &self.added {
            files.add(from, to)?;
        }
        files.finish()
    }

    /// Starts qemu; its output is the serial line of the guest.
    fn boot(&self, kernel: &Path, initrd: &Path) -> Result<Child> {
        ensure!(self.timeout > Duration::ZERO, "guest: no time to boot");
        let Architecture { qemu, machine, .. } = self.architecture;
        // qemu must not stay when this process is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", qemu]).args(*machine);
        command.args(["-accel", if self.cpus > 1 { "tcg,thread=multi" } else { "tcg" }]);
        command.args(["-smp", &self.cpus.to_string(), "-m", &self.memory.to_string()]);
        command.args(["-nodefaults", "-nic", "none", "-display", "none", "-monitor", "none"]);
        command.args(["-serial", "stdio", "-no-reboot"]);
        command.arg("-kernel").arg(kernel).arg("-initrd").arg(initrd);
        // Messages of the kernel are in the output if they are errors. It reboots after a panic,
        // which ends qemu.
        command.args(["-append", "console=ttyAMA0 rdinit=/init panic=-1 loglevel=4"]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        child.with_context(|| format!("setpriv {qemu}: cargo xtask setup installs it"))
    }
}

/// A path of this machine with one of the guest, or alone: then it is put into `/root`.
fn added(word: &str) -> Option<(PathBuf, PathBuf)> {
    if let Some((from, to)) = word.split_once(':') {
        return Some((from.into(), to.into()));
    }
    let name = std::path::absolute(word).ok()?.file_name()?.to_owned();
    Some((word.into(), Path::new("/root").join(name)))
}

/// Qemu, killed at the end: nothing of the guest is kept.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A file that goes away.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Result<Temporary> {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = sidestep_tests::build::target_dir().join("guest");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Temporary(folder.join(format!("{}-{number}.cpio", std::process::id()))))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Finds the output of the command on the serial line: `init.sh` puts markers around it.
#[derive(Default)]
struct Scanner {
    has_begun: bool,
    /// What came before the command: messages of the kernel.
    before: Vec<u8>,
    /// Bytes that may be the beginning of a marker.
    kept: Vec<u8>,
    status: Option<u8>,
}

/// The byte at both ends of a marker: ASCII's separator of records, which programs hardly print.
const MARK: u8 = 0x1e;
const BEGIN: &[u8] = b"\x1eguest: begin\x1e";
const END: &[u8] = b"\x1eguest: end ";

impl Scanner {
    /// Takes bytes of the serial line, and gives those of the command.
    fn add(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        for byte in chunk {
            if self.status.is_some() {
                break;
            }
            self.kept.push(*byte);
            let marker = if self.has_begun { END } else { BEGIN };
            if self.kept == BEGIN && !self.has_begun {
                self.has_begun = true;
                self.kept.clear();
                continue;
            }
            let number = self.kept.strip_prefix(END).filter(|_| self.has_begun);
            if let Some([digits @ .., MARK]) = number {
                self.status = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
            }
            let is_number = number.is_some_and(|number| number.len() < 4 && number.iter().all(u8::is_ascii_digit));
            if self.status.is_some() || is_number || marker.starts_with(&self.kept) {
                continue;
            }
            // No marker. The last byte may begin one.
            let again = self.kept.len() > 1 && *byte == MARK;
            let end = self.kept.len() - usize::from(again);
            let target = if self.has_begun { &mut output } else { &mut self.before };
            target.extend(self.kept.drain(..end));
        }
        output
    }
}

#[cfg(test)]
mod tests {
    use super::{Guest, Scanner};

    #[test]
    fn the_output_of_the_command_is_between_the_markers() {
        let line = b"[    0.1] kernel\n\x1eguest: begin\x1eone\n\x1e\x1eguest: e two\x1eguest: end 137\x1erest";
        for size in 1..line.len() {
            let mut scanner = Scanner::default();
            let output: Vec<u8> = line.chunks(size).flat_map(|chunk| scanner.add(chunk)).collect();
            assert_eq!(output, b"one\n\x1e\x1eguest: e two", "in pieces of {size}");
            assert_eq!(scanner.before, b"[    0.1] kernel\n");
            assert_eq!(scanner.status, Some(137));
        }
    }

    #[test]
    fn flags_are_read() {
        let words = ["arm32", "--cpus", "2", "--add", "/a/b", "--add", "c:/d", "--", "ls", "-l"];
        let guest = Guest::parse(&words).unwrap();
        assert_eq!((guest.architecture.name, guest.cpus, guest.command.as_str()), ("armhf", 2, "ls -l"));
        assert_eq!(guest.added[0].1.to_str(), Some("/root/b"));
        assert_eq!(guest.added[1].1.to_str(), Some("/d"));
        assert!(Guest::parse(&["--", "ls"]).is_none());
        assert!(Guest::parse(&["arm64", "ls"]).is_none());
        assert!(Guest::parse(&["arm64", "--"]).is_none());
        assert!(Guest::parse(&["arm64", "--cpus", "0", "--", "ls"]).is_none());
    }
}
