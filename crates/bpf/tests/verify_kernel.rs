//! The kernel's verifier as the judge of ours: what we accept, it accepts, but for a list.
//!
//! As root.

mod cases;
mod kernel;

use cases::accepted::ACCEPTED;
use cases::meetings::MEETINGS;
use cases::random::program;
use cases::refused::REFUSED;
use cases::{lines, maps, rules};
use kernel::say;
use sidestep_bpf::map::Map;
use sidestep_bpf::verify::verify;
use sidestep_bpf::{AluOp, Insn, Operand, Program, assemble};
use sidestep_sys::bpf::{self, ProgramKind, ProgramSpec, ReferenceError};

/// The maps of the tests in the kernel.
struct Kernel {
    maps: Vec<bpf::Map>,
}

impl Kernel {
    /// None, and a line that says so, where the machine does not let us make maps.
    fn new(maps: &[Map]) -> Option<Kernel> {
        match maps.iter().map(kernel::create).collect() {
            Ok(maps) => Some(Kernel { maps }),
            Err(error) => {
                say(&format!("NOT COMPARED with the kernel's verifier, run as root to do so: {error}\n"));
                None
            }
        }
    }

    /// What `then` makes of the program as the kernel takes it. The error: it refers to a map that
    /// is not there.
    fn with<T>(&self, program: &Program, then: impl Fn(&ProgramSpec<'_>) -> T) -> Result<T, ReferenceError> {
        let mut code = kernel::code(program);
        let maps: Vec<&bpf::Map> = self.maps.iter().collect();
        bpf::resolve_maps(&mut code, &maps)?;
        Ok(then(&ProgramSpec { name: "test", kind: ProgramKind::Probe, code: &code, license: "GPL" }))
    }

    fn accepts(&self, program: &Program) -> bool {
        self.with(program, bpf::Program::loads) == Ok(true)
    }

    /// The last lines of what the kernel's verifier says against a program.
    fn reason(&self, program: &Program) -> String {
        match self.with(program, bpf::Program::load) {
            Ok(Ok(_)) => "accepted".to_owned(),
            Ok(Err(error)) => error.reason().join(" / "),
            Err(error) => error.to_string(),
        }
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
