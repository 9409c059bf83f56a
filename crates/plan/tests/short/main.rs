//! Generated 32-bit code, run: a 32-bit program plays the agent's part, and says by its exit status
//! which of its lines was wrong.

#[path = "../handlers/mod.rs"]
mod handlers;
mod tables;

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use handlers::{adding, nothing};
use object::{Object, ObjectSection, ObjectSymbol};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::detour::{Detour, build};
use sidestep_plan::handler::Handler;
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::thunk::{self, Context, Env, Globals, globals, thunks};
use sidestep_plan::{Fixed, Index, Placement, Plan, Reason, Room, Technique, plan_in};
use sidestep_wire::lookup::{HASH_MULTIPLIER, HASH_SHIFT, LOOKUP_BUCKETS};
use sidestep_wire::{Hit, ProbeDesc, Regs};

const THUNKS: u64 = 0x3000_0000;
const GLOBALS: u64 = THUNKS + 0x1000;
const DETOURS: u64 = THUNKS + 0x2000;
const DESCS: u64 = 0x4100_0000;
/// Sections at addresses of their own, beyond 2 GiB from each other.
const SECTIONS: [(&str, u64); 8] = [
    (".agent_slot", 0x2000_0000),
    (".agent_hit", 0x2001_0000),
    (".agent_return", 0x2002_0000),
    (".agent_signal", 0x2003_0000),
    (".generated", THUNKS),
    (".lookup", 0x4000_0000),
    (".descs", DESCS),
    (".probed", 0xd000_1000),
];

fn at(section: &str) -> Va {
    Va(SECTIONS.iter().find(|(name, _)| *name == section).map_or(0, |(_, at)| *at))
}

fn word(offset: usize) -> u64 {
    1 << (offset / 8)
}

fn env(self_pointer: bool) -> Env {
    Env {
        isa: Isa::X86,
        private: Va(0x1234_5678),
        buckets: at(".lookup"),
        descs: Va(DESCS),
        agent_slot: at(".agent_slot"),
        agent_hit: at(".agent_hit"),
        agent_return: at(".agent_return"),
        agent_signal: at(".agent_signal"),
        context: Context::ALL,
        changes: Context(word(offset_of!(Regs, rip))),
        agent_vectors: 0b101,
        self_pointer,
        hash_multiplier: HASH_MULTIPLIER as i32,
        hash_shift: HASH_SHIFT as u8,
        bucket_count: LOOKUP_BUCKETS as u32,
        ..Env::default()
    }
}

/// A directory that is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sidestep-{name}-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn compile(dir: &Path, checks: &str, globals: &Globals) -> PathBuf {
    let path = |name: &str| dir.join(name);
    let site = offset_of!(ProbeDesc, site);
    let mut source = format!("#define TRAMPOLINE {:#x}\n", globals.trampoline.0);
    let _ = writeln!(source, "#define CHECKS {}", checks.replace('\n', " "));
    let _ = writeln!(source, "#define SIGNAL {:#x}\n#define RESTORER {:#x}", globals.signal.0, globals.restorer.0);
    let overridden = offset_of!(Hit, overridden) - offset_of!(Hit, regs);
    let _ = writeln!(source, "#define OVERRIDDEN {overridden}");
    let _ = writeln!(source, "#define DESC_LEN {}\n#define DESC_SITE {site}", size_of::<ProbeDesc>());
    source += include_str!("target.c");
    std::fs::write(path("target.c"), source).expect("a source file");
    let places = SECTIONS.iter().map(|(name, at)| format!("-Wl,--section-start={name}={at:#x}"));
    let status = Command::new("i686-linux-gnu-gcc")
        .args(["-O1", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-stack-protector", "-fcf-protection=none"])
        .args(["-mno-sse", "-Wl,-z,noexecstack", "-Wl,--no-warn-rwx-segments", "-Wl,--build-id=none"])
        .args(places)
        .arg(path("target.c"))
        .arg("-o")
        .arg(path("target"))
        .status()
        .expect("i686-linux-gnu-gcc");
    assert!(status.success());
    path("target")
}

/// The end of the generated code, as the room of a plan.
struct Generated;

impl Room for Generated {
    fn is_free(&self, _site: Va, _range: Range<Va>) -> Result<(), Reason> {
        Ok(())
    }

    fn claim(&mut self, _site: Va, _range: Range<Va>) {}

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        (THUNKS + 0x3000..THUNKS + 0xff00).map(Va).find(|at| {
            let distance = (at.since(end) as i32).to_le_bytes();
            distance.iter().zip(fixed.0).all(|(byte, fixed)| fixed.is_none_or(|fixed| fixed == *byte))
        })
    }
}

/// Puts a detour in front of the function `site`, and all that it needs into the program, which
/// then checks itself.
fn run(site: &str, handlers: &[Handler], self_pointer: bool, checks: &str) -> (Plan, Detour) {
    let dir = Scratch::new("short");
    let env = env(self_pointer);
    let program = thunk::Program {
        code: Va(0),
        inside: Va(0),
        context: Context::default(),
        changes: Context::default(),
        exclusive: false,
        overrides: false,
        goroutine: None,
    };
    let (globals_code, globals) = globals(Va(GLOBALS), &env);
    let (thunks_code, thunks) = thunks(Va(THUNKS), &env, globals.enter, &[Some(program)], &[], None);
    assert!(thunks_code.len() < 0x1000 && globals_code.len() < 0x1000);
    let target = compile(&dir.0, checks, &globals);

    let mut data = std::fs::read(&target).expect("the program");
    let file = object::File::parse(&*data).expect("an ELF file");
    let offset = |name: &str| {
        let section = file.section_by_name(name).unwrap_or_else(|| panic!("no {name}"));
        section.file_range().map_or(0, |(at, _)| at as usize)
    };
    let symbol = |name: &str| file.symbols().find(|s| s.name() == Ok(name)).map_or(Va(0), |s| Va(s.address()));
    let section = file.section_by_name(".probed").expect("a section");
    let text = section.data().expect("its contents").to_vec();
    let code = ObjectCode {
        text: vec![Bytes { name: ".probed", va: at(".probed"), data: &text }],
        extents: [("probed", "probed_ret4"), ("probed_ret4", "trapped"), ("trapped", "punned"), ("punned", "other")]
            .map(|(name, next)| Extent { start: symbol(name), len: Len(symbol(next).since(symbol(name)) as u64) })
            .to_vec(),
        frames: vec![symbol("probed"), symbol("probed_ret4"), symbol("trapped"), symbol("punned")],
        ..ObjectCode::new(Isa::X86)
    };
    let index = Index::new(code);
    let plan = plan_in(&index, symbol(site), &mut Generated, Placement::First).expect("a plan");
    let detour = build(&plan, handlers, Va(DETOURS), 0, &thunks, &env).expect("a detour");
    let (generated, probed) = (offset(".generated"), offset(".probed"));
    let patch_at = probed + detour.site.since(at(".probed")) as usize;
    for (to, bytes) in [
        (generated, &thunks_code),
        (generated + 0x1000, &globals_code),
        (generated + 0x2000, &detour.bytes),
        (patch_at, &detour.patch),
    ]
    .into_iter()
    .chain(detour.stub.iter().map(|(at, bytes)| (generated + at.since(Va(THUNKS)) as usize, bytes)))
    {
        data[to..to + bytes.len()].copy_from_slice(bytes);
    }
    std::fs::write(&target, data).expect("the program");
    let status = Command::new("timeout").arg("10").arg(&target).status().expect("it runs");
    let why = std::fs::read_to_string(dir.0.join("target.c")).ok().and_then(|source| {
        let line = usize::try_from(status.code()?).ok()?.checked_sub(1)?;
        source.lines().nth(line).map(str::to_owned)
    });
    assert_eq!(status.code(), Some(0), "{status}: {why:?}");
    (plan, detour)
}

#[test]
fn a_hit_shows_all_registers_and_leaves_them() {
    for self_pointer in [false, true] {
        let checks = "
            run(); check_kept(sum, registers[6]); check_context(1); CHECK(hits == 1 && slots == 1);
            run(); check_kept(sum, registers[6]); check_context(1); CHECK(hits == 2 && slots == 1);";
        let (plan, _) = run("probed", &[Handler::Agent { probe: 1 }], self_pointer, checks);
        assert!(plan.displaced.len() > 1);
    }
}

#[test]
fn hits_without_a_program_are_counted_in_the_detour() {
    // The first one finds no cells, and goes to the agent.
    let checks = "
        run(); check_kept(sum, registers[6]); check_context(6); CHECK(hits == 1 && slots == 1 && cells[6] == 0);
        cells[6] = 0xfffffffful;
        run(); run(); check_kept(sum, registers[6]); CHECK(hits == 1 && cells[6] == 0x100000001ull);";
    for self_pointer in [false, true] {
        run("probed", &[nothing(6)], self_pointer, checks);
    }
}

/// As many scripts do. A word of 64 bits is written by two instructions.
#[test]
fn programs_that_add_to_cells_are_parts_of_the_detour() {
    let checks = "
        run(); check_kept(sum, registers[6]); CHECK(hits == 1 && slots == 1 && cells[6] == 0 && cells[3] == 0);
        cells[3] = 0xffffffffull - 127; cells[7] = 0xfffffffful;
        run(); run(); check_kept(sum, registers[6]);
        CHECK(hits == 1 && cells[6] == 2 && cells[3] == 0x10000007eull && cells[7] == 0x100000001ull && cells[5] == 0);";
    for self_pointer in [false, true] {
        run("probed", &[adding(6, &[(7, 1), (3, 127)])], self_pointer, checks);
    }
}

/// The jump goes over the end of the address space: from 0xd0001… by 0x6000b8….
#[test]
fn distances_of_puns_wrap() {
    let checks = "
        target = (u32)&punned; run();
        CHECK(results[0] == 0x6000 && results[1] == registers[1] && results[2] == 3 && hits == 1);
        CHECK(seen.rax == registers[0] && seen.rdx == registers[2]);";
    let (plan, detour) = run("punned", &[Handler::Agent { probe: 1 }], true, checks);
    assert_eq!((plan.technique, plan.region.0), (Technique::Pun, 2));
    assert!(detour.stub.is_some() && detour.relies_on == [0xb8, 0, 0x60]);
}

#[test]
fn several_handlers_run_in_order() {
    let checks =
        "run(); run(); check_kept(1000 + registers[1] + 3, 77); CHECK(hits == 3 && last_probe == 3 && cells[6] == 1);";
    run("probed", &[nothing(6), Handler::Agent { probe: 3 }], true, checks);
}

#[test]
fn programs_change_registers_and_where_it_goes_on() {
    run("probed", &[Handler::Agent { probe: 3 }], true, "run(); check_kept(1000 + registers[1] + 3, 77);");
    run("probed", &[Handler::Agent { probe: 4 }], true, "run(); check_kept(5, registers[6]);");
    let checks = "replacement = other; run(); check_kept(4242, registers[6]);";
    run("probed", &[Handler::Agent { probe: 5 }], true, checks);
}

#[test]
fn returns_are_seen() {
    let checks = "
        run(); check_kept(sum, registers[6]); CHECK(hits == 1 && returns == 1);
        CHECK(seen.rax == sum && seen.rsp == results[4] && seen.rsi == registers[6]);";
    let (plan, _) = run("probed", &[Handler::Return { probe: 2 }], true, checks);
    assert_eq!(plan.returns, Ok(0));
    // The function has taken an argument off the stack, and the words below the stack pointer are
    // as it left them.
    let checks = "
        target = (u32)&probed_ret4; run(); CHECK(hits == 1 && returns == 1);
        CHECK(results[0] == registers[0] && results[2] == registers[0] - registers[1]);
        CHECK(seen.rsp == results[4] && slot == results[4] - 8 && kept == TRAMPOLINE);";
    let (plan, _) = run("probed_ret4", &[Handler::Return { probe: 2 }], true, checks);
    assert_eq!(plan.returns, Ok(4));
}

#[test]
fn signals_go_to_the_agent_and_on_to_the_program() {
    let checks = "
        struct { void *handler; u32 flags; void *restorer; u64 mask; } __attribute__((packed))
            action = {(void *)SIGNAL, 4 | 0x04000000, (void *)RESTORER, 0};
        CHECK(call(174, 5, (int)&action, 0, 8) == 0);
        target = (u32)&trapped;
        run(); CHECK(results[0] == 9 && signals == 1);
        wanted = (u32)&handler;
        run(); CHECK(results[0] == 9 && signals == 102);
        for (int i = 1; i < 8; i++) CHECK(i == 4 || results[i] == registers[i]);";
    run("probed", &[Handler::Agent { probe: 1 }], true, checks);
}

#[test]
fn go_programs_are_refused() {
    let text = [0xb8, 1, 0, 0, 0, 0xc3]; // mov $1,%eax; ret
    let refused = |go| {
        let index = Index::new(ObjectCode {
            text: vec![Bytes { name: ".text", va: Va(0x1000), data: &text }],
            extents: vec![Extent { start: Va(0x1000), len: Len(6) }],
            go,
            ..ObjectCode::new(Isa::X86)
        });
        sidestep_plan::plan(&index, Va(0x1000), true).map(|plan| plan.technique).map_err(|refusal| refusal.reason)
    };
    assert_eq!(refused(false), Ok(Technique::Trap));
    assert!(refused(true).is_err_and(|reason| reason == Reason::GoStacks));
}
