//! The kernel's verifier as the judge of ours: what we accept, it accepts, but for a list.
//!
//! As root. Numbers and layouts: `include/uapi/linux/bpf.h`.
#![allow(unsafe_code)]

mod cases;

use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use cases::accepted::ACCEPTED;
use cases::meetings::MEETINGS;
use cases::random::program;
use cases::refused::REFUSED;
use cases::{lines, maps, rules};
use sidestep_bpf::map::Map;
use sidestep_bpf::verify::verify;
use sidestep_bpf::{AluOp, Insn, Operand, Program, assemble};

const MAP_CREATE: i32 = 0;
const MAP_UPDATE_ELEM: i32 = 2;
const PROG_LOAD: i32 = 5;
const MAP_FREEZE: i32 = 22;
const PROG_TYPE_KPROBE: u32 = 2;
const F_RDONLY_PROG: u32 = 1 << 7;

fn bpf<T>(command: i32, attr: &mut T) -> Result<i32, Error> {
    // SAFETY: an attribute of this command, with pointers that live during the call.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr as *mut T, size_of::<T>()) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(result as i32) }
}

/// Says something that is seen although the test passes.
fn say(line: &str) {
    // SAFETY: writes that line.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attach_type: u32,
    btf: u32,
    function_size: u32,
    functions: u64,
    function_count: u32,
    line_size: u32,
    lines: u64,
    line_count: u32,
    attach_btf: u32,
    attach_program: u32,
    core_count: u32,
    /// Descriptors by index.
    maps: u64,
}

#[repr(C)]
struct Element {
    map: u64,
    key: u64,
    value: u64,
    flags: u64,
}

/// The maps of the tests in the kernel.
struct Kernel {
    maps: Vec<OwnedFd>,
}

impl Kernel {
    /// None, and a line that says so, where the machine does not let us make maps.
    fn new(maps: &[Map]) -> Option<Kernel> {
        let fds: Result<Vec<OwnedFd>, Error> = maps.iter().map(Self::map).collect();
        match fds {
            Ok(maps) => Some(Kernel { maps }),
            Err(error) => {
                say(&format!("NOT COMPARED with the kernel's verifier, run as root to do so: {error}\n"));
                None
            }
        }
    }

    fn map(map: &Map) -> Result<OwnedFd, Error> {
        let flags = if map.readonly { F_RDONLY_PROG } else { 0 };
        let mut attr = [map.kind.number(), map.key_size, map.value_size, map.max_entries, flags];
        // SAFETY: a new descriptor that nobody else has.
        let fd = unsafe { OwnedFd::from_raw_fd(bpf(MAP_CREATE, &mut attr)?) };
        if !map.initial.is_empty() {
            let key = 0u32;
            let (key, value) = (&raw const key as u64, map.initial.as_ptr() as u64);
            bpf(MAP_UPDATE_ELEM, &mut Element { map: fd.as_raw_fd() as u64, key, value, flags: 0 })?;
            bpf(MAP_FREEZE, &mut [fd.as_raw_fd() as u32])?;
        }
        Ok(fd)
    }

    fn load(&self, program: &Program, log: &mut [u8]) -> Result<(), Error> {
        let fds: Vec<i32> = self.maps.iter().map(AsRawFd::as_raw_fd).collect();
        let mut load = Load {
            kind: PROG_TYPE_KPROBE,
            count: program.slots.len() as u32,
            insns: program.slots.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            maps: fds.as_ptr() as u64,
            ..Load::default()
        };
        if !log.is_empty() {
            (load.log_level, load.log_size, load.log) = (1, log.len() as u32, log.as_mut_ptr() as u64);
        }
        let fd = bpf(PROG_LOAD, &mut load)?;
        // SAFETY: a new descriptor that nobody else has.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(())
    }

    fn accepts(&self, program: &Program) -> bool {
        self.load(program, &mut []).is_ok()
    }

    /// The last lines of what the kernel's verifier says against a program.
    fn reason(&self, program: &Program) -> String {
        let mut log = vec![0; 1 << 22];
        let error = self.load(program, &mut log).map_or_else(|e| e.to_string(), |()| "accepted".to_owned());
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
        let log = String::from_utf8_lossy(&log[..end]);
        let said = log.lines().rev().filter(|l| !l.starts_with("processed") && !l.is_empty());
        let last: Vec<&str> = said.take(3).collect();
        format!("{error}: {}", last.into_iter().rev().collect::<Vec<_>>().join(" / "))
    }
}

/// What we accept and kernels may not, and why.
const ONLY_OURS: &[(&str, &str)] = &[
    ("index by a remainder", "kernels before 7.0 forget what is known of a number when it is divided"),
    ("index from the end", "a negative offset in a register, made good by one that is known"),
    ("arguments", "the kernel has get_func_arg for tracing programs only"),
    ("callback", "the kernel wants BTF of functions"),
    ("callback that counts in its context", "the kernel wants BTF of functions"),
    ("callback with branches", "the kernel wants BTF of functions"),
    ("signed load", "version 4 of the instructions came with Linux 6.6"),
    ("signed division", "version 4 of the instructions came with Linux 6.6"),
    ("halves", "version 4 of the instructions came with Linux 6.6"),
    ("far jump", "version 4 of the instructions came with Linux 6.6"),
];

/// What kernels may accept from root and we do not, and why.
const ONLY_THE_KERNELS: &[(&str, &str)] = &[
    ("stacks together", "newer kernels give probes a stack per function"),
    ("stack never written", "root may read what others left on the stack"),
    ("stack written in part", "root may read what others left on the stack"),
    ("callee's stack is not the caller's", "root may read what others left on the stack"),
    ("atomic on what has no value", "root may read what others left on the stack"),
    ("key not written", "root may read what others left on the stack"),
    ("up to so many bytes into what was not written", "root may read what others left on the stack"),
    ("paths meet: a slot that was not written", "root may read what others left on the stack"),
    ("atomic with a pointer", "root may see addresses"),
    ("half of a pointer moved", "root may see addresses"),
    ("pointer turned around", "root may see addresses"),
    ("null after all", "nothing of the kernel lies so low"),
    ("map by descriptor", "the descriptor may happen to be a map"),
    ("map accessed directly", "the kernel's struct bpf_map is there"),
];

#[test]
fn the_kernel_agrees_about_the_cases() {
    let maps = maps();
    let Some(kernel) = Kernel::new(&maps) else { return };
    let listed = |list: &[(&str, &str)], name: &str| list.iter().any(|(n, _)| *n == name);
    let mut wrong = Vec::new();
    for (name, text) in ACCEPTED {
        let program = assemble(&lines(text)).unwrap();
        if !kernel.accepts(&program) && !listed(ONLY_OURS, name) {
            wrong.push(format!("{name}: the kernel refuses: {}", kernel.reason(&program)));
        }
    }
    for (name, text, message) in REFUSED.iter().chain(MEETINGS) {
        let program = assemble(&lines(text)).unwrap();
        if kernel.accepts(&program) && !listed(ONLY_THE_KERNELS, name) {
            wrong.push(format!("{name}: the kernel accepts; we say: {message}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let cases = || ACCEPTED.iter().map(|c| c.0).chain(REFUSED.iter().chain(MEETINGS).map(|c| c.0));
    for (name, _) in ONLY_OURS.iter().chain(ONLY_THE_KERNELS) {
        assert!(cases().any(|n| n == *name), "{name} is no case");
    }
}

/// The kernel forgets all about quotients, remainders and results of shifts by a register.
fn knows_more(program: &Program) -> bool {
    program.iter().map(Result::unwrap).any(|(_, insn)| match insn {
        Insn::Alu { op: AluOp::Div | AluOp::Sdiv | AluOp::Mod | AluOp::Smod, .. } => true,
        Insn::Alu { op: AluOp::Lsh | AluOp::Rsh | AluOp::Arsh, src, .. } => matches!(src, Operand::Reg(_)),
        _ => false,
    })
}

#[test]
fn the_kernel_accepts_random_programs_that_we_accept() {
    let maps = maps();
    let Some(kernel) = Kernel::new(&maps) else { return };
    if !kernel.accepts(&assemble("gotol out\nout:\nr0 = 0\nexit").unwrap()) {
        say("NOT COMPARED with the kernel's verifier: it does not know version 4 of the instructions\n");
        return;
    }
    let (mut both, mut ours, mut theirs) = (0, Vec::new(), Vec::new());
    for seed in 0..3000 {
        let program = program(seed);
        match (verify(&program, &rules(&maps)), kernel.accepts(&program)) {
            (Ok(_), true) => both += 1,
            (Ok(_), false) if !knows_more(&program) => {
                ours.push(format!("seed {seed}: the kernel refuses: {}", kernel.reason(&program)));
            }
            (Err(e), true) => theirs.push(format!("seed {seed}: we refuse: {e}")),
            _ => {}
        }
    }
    assert!(both > 400, "too few programs are accepted to say anything: {both}");
    assert!(ours.is_empty(), "{}", ours.join("\n"));
    // Root reads stack that was not written, and addresses as numbers; see above.
    theirs.retain(|said| !said.contains("has no value yet") && !said.contains("work on pointers"));
    assert!(theirs.len() < 3, "the kernel knows more:\n{}", theirs.join("\n"));
}
