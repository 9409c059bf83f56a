//! The program, with generated code put into it; qemu runs it.

use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use object::{Object, ObjectSection, ObjectSymbol};
use sidestep_isa::{Isa, Len, Va};
use sidestep_plan::detour::{Detour, build};
use sidestep_plan::handler::Handler;
use sidestep_plan::object::{Bytes, Extent, ObjectCode};
use sidestep_plan::thunk::native::{Native, Vectors, Wide, functions};
use sidestep_plan::thunk::{self, Context, Env, Globals, Thunks, globals, interpreted, thunks};
use sidestep_plan::{Exit, Index, Placement, Plan, plan_at, plan_exit};
use sidestep_wire::ProbeDesc;
use sidestep_wire::arch::a64::{Hit, Regs};
use sidestep_wire::lookup::{HASH_MULTIPLIER, HASH_SHIFT, LOOKUP_BUCKETS};

const GENERATED: u64 = 0x3000_0000;
const GLOBALS: u64 = GENERATED + 0x1000;
const INTERPRETED: u64 = GENERATED + 0x1800;
const NATIVE: u64 = GENERATED + 0x1c00;
const DETOURS: u64 = GENERATED + 0x2000;
/// Bytes of a detour at most.
const DETOUR: u64 = 0x200;
/// Sections at addresses of their own. The probed code is 112 MiB from the generated code, the
/// agent is beyond the reach of a jump.
const SECTIONS: [(&str, u64); 10] = [
    (".agent_slot", 0x1000_0000),
    (".agent_hit", 0x1001_0000),
    (".agent_return", 0x1002_0000),
    (".agent_signal", 0x1003_0000),
    (".interpreter", 0x1004_0000),
    (".far", 0x1005_0000),
    (".generated", GENERATED),
    (".probed", 0x3700_0000),
    (".descs", 0x4000_0000),
    (".lookup", 0x5000_0000),
];
const SLOTS: u64 = 0x1234_5678_9abc_def0;

/// Probes that have cells.
pub const PROBES: usize = 8;
const ROUNDS: usize = 4;
/// Bytes that are compared below the stack pointer of calls.
const BELOW: usize = 128;
const STACK: usize = BELOW + 1024;

fn at(section: &str) -> Va {
    Va(SECTIONS.iter().find(|(name, _)| *name == section).map_or(0, |(_, at)| *at))
}

/// A probe, and which of its handlers are switched off.
pub struct Probe {
    pub plan: Plan,
    pub handlers: Vec<Handler>,
    pub off: Vec<usize>,
}

impl Probe {
    pub fn of(plan: &Plan, handlers: &[Handler]) -> Probe {
        Probe { plan: plan.clone(), handlers: handlers.to_vec(), off: Vec::new() }
    }
}

/// What a function was given at a hit.
#[derive(Clone, PartialEq, Debug)]
pub struct Seen {
    pub probe: u64,
    pub state: u64,
    pub private: u64,
    pub regs: [u64; 34],
    pub floats: [u64; 8],
}

/// The state behind a call.
#[derive(Clone, PartialEq, Debug)]
pub struct Round {
    pub x: [u64; 31],
    pub sp: u64,
    pub flags: u64,
    pub fpsr: u64,
    pub q: Vec<u8>,
    pub stack: Vec<u8>,
}

/// What the program has written.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    pub hits: u64,
    pub slots: u64,
    pub returns: u64,
    pub cells: [u64; PROBES],
    pub first: Option<Seen>,
    pub rounds: Vec<Round>,
}

impl Outcome {
    /// The same without the words below the stack pointer to which copies of loads of literals
    /// spill a register ([`sidestep_isa::a64::relocate::SPILL`]). What lies there is nobody's.
    fn without_spills(mut self) -> Outcome {
        let spill = sidestep_isa::a64::relocate::SPILL as usize;
        self.rounds.iter_mut().for_each(|round| round.stack[BELOW - spill..][..8].fill(0));
        self
    }

    fn read(bytes: &[u8]) -> Outcome {
        assert_eq!(bytes.len(), 464 + ROUNDS * 1952, "struct out");
        let words: Vec<u64> = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
        let first = &words[12..58];
        let seen = Seen {
            probe: first[0],
            state: first[1],
            private: first[2],
            regs: first[3..37].try_into().unwrap(),
            floats: first[38..46].try_into().unwrap(),
        };
        let round = |bytes: &[u8]| {
            let word = |i: usize| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap());
            Round {
                x: std::array::from_fn(word),
                sp: word(31),
                flags: word(32),
                fpsr: word(33),
                q: bytes[272..784].to_vec(),
                stack: bytes[792..792 + STACK].to_vec(),
            }
        };
        Outcome {
            hits: words[0],
            slots: words[1],
            returns: words[2],
            cells: words[4..12].try_into().unwrap(),
            first: (seen.regs[31] != 0).then_some(seen),
            rounds: bytes[464..].chunks_exact(1952).map(round).collect(),
        }
    }

    /// What is not as it should be.
    pub fn difference(&self, expected: &Outcome) -> Vec<String> {
        let mut all = Vec::new();
        for (number, (round, expected)) in self.rounds.iter().zip(&expected.rounds).enumerate() {
            for i in (0..31).filter(|i| round.x[*i] != expected.x[*i]) {
                all.push(format!("{number}: x{i} is {:#x}, not {:#x}", round.x[i], expected.x[i]));
            }
            for (name, a, b) in [("sp", round.sp, expected.sp), ("flags", round.flags, expected.flags)] {
                all.extend((a != b).then(|| format!("{number}: {name} is {a:#x}, not {b:#x}")));
            }
            all.extend((round.fpsr != expected.fpsr).then(|| format!("{number}: fpsr")));
            let vectors = |bytes: &[u8]| bytes.chunks(16).map(<[u8]>::to_vec).collect::<Vec<_>>();
            let (a, b) = (vectors(&round.q), vectors(&expected.q));
            all.extend((0..32).filter(|i| a[*i] != b[*i]).map(|i| format!("{number}: q{i}")));
            let stack = (0..STACK).filter(|i| round.stack[*i] != expected.stack[*i]);
            all.extend(stack.map(|i| format!("{number}: sp + {}", i as i64 - BELOW as i64)));
        }
        all
    }
}

/// A directory that is removed in the end.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("sidestep-arm64-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        Scratch(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Whether the compiler and the emulator are there. If not, that is a failure, unless
/// `SIDESTEP_ALLOW_SKIP=1` allows it.
pub fn has_tools(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = |tool: &&&str| !std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    let missing: Vec<_> = tools.iter().filter(missing).collect();
    if !missing.is_empty() {
        let allowed = std::env::var_os("SIDESTEP_ALLOW_SKIP").is_some_and(|v| v == "1");
        assert!(allowed, "no {missing:?}: run `cargo xtask setup`, or set SIDESTEP_ALLOW_SKIP=1 to go on without");
        eprintln!("SKIPPED, NOT TESTED: generated code of arm64, for want of {missing:?}");
    }
    missing.is_empty()
}

/// The program.
pub struct Machine {
    dir: Scratch,
    data: Vec<u8>,
    text: Vec<u8>,
    symbols: Vec<(String, Va)>,
    env: Env,
    thunks: Thunks,
    pub globals: Globals,
    spills: bool,
}

impl Machine {
    /// A program that does this, and then writes what has happened. `None`: tools are missing.
    pub fn new(checks: &str, vectors: u32, context: Context) -> Option<Machine> {
        Machine::changing(checks, vectors, context, Context::default())
    }

    /// The same, with handlers that can be switched.
    pub fn singly(checks: &str, context: Context) -> Option<Machine> {
        Machine::made(checks, Env { context, singly: true, ..Env::default() }, (16, 1))
    }

    /// The same, with programs that may change some words of the context.
    pub fn changing(checks: &str, vectors: u32, context: Context, changes: Context) -> Option<Machine> {
        Machine::made(checks, Env { context, changes, agent_vectors: vectors, ..Env::default() }, (16, 1))
    }

    /// The same, with a program of so many instructions and bytes of stack.
    pub fn interpreting(checks: &str, stack: i32, len: usize) -> Option<Machine> {
        Machine::made(checks, Env::default(), (stack, len))
    }

    fn made(checks: &str, env: Env, (stack, len): (i32, usize)) -> Option<Machine> {
        if !has_tools(&["aarch64-linux-gnu-gcc", "qemu-aarch64"]) {
            return None;
        }
        let env = Env {
            isa: Isa::A64,
            private: Va(0x1234_5678_9abc),
            buckets: at(".lookup"),
            descs: at(".descs"),
            agent_slot: at(".agent_slot"),
            agent_hit: at(".agent_hit"),
            agent_return: at(".agent_return"),
            agent_signal: at(".agent_signal"),
            hash_multiplier: HASH_MULTIPLIER as i32,
            hash_shift: HASH_SHIFT as u8,
            bucket_count: LOOKUP_BUCKETS as u32,
            ..env
        };
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
        let (thunks_code, thunks) = thunks(Va(GENERATED), &env, globals.enter, &[Some(program)], &[], None);
        assert!(thunks_code.len() < 0x1000 && globals_code.len() < 0x800);
        let mut made = interpreted(Isa::A64, stack, len);
        made.bytes[made.slots_at..][..8].copy_from_slice(&SLOTS.to_le_bytes());
        made.bytes[made.interpreter_at..][..8].copy_from_slice(&at(".interpreter").0.to_le_bytes());

        let spills = checks.contains("run_near");
        let dir = Scratch::new();
        let program = compile(&dir, checks, &globals, env.agent_vectors);
        let mut machine =
            Machine { dir, data: program, text: Vec::new(), symbols: Vec::new(), env, thunks, globals, spills };
        let file = object::File::parse(&*machine.data).expect("an ELF file");
        let symbols: Vec<(String, Va)> =
            file.symbols().map(|s| (s.name().unwrap_or_default().to_owned(), Va(s.address()))).collect();
        let text = file.section_by_name(".probed").expect("a section").data().expect("its contents").to_vec();
        (machine.symbols, machine.text) = (symbols, text);
        let vectors = Vectors { wide: Wide::No, components: 0, len: 0, compact: false };
        let native = Native {
            function: machine.symbol("native_function").0,
            data: 0x0123_4567_89ab_cdef,
            vectors: (machine.env.agent_vectors != 0).then_some(vectors),
            redirects: false,
        };
        let (native, inside) = functions(Isa::A64, Va(NATIVE), &native, 16);
        assert!(inside == Va(NATIVE) && native.len() < 0x200);
        let pieces = [(GENERATED, thunks_code), (GLOBALS, globals_code), (INTERPRETED, made.bytes), (NATIVE, native)];
        for (to, bytes) in pieces {
            machine.data = machine.written(machine.data.clone(), Va(to), &bytes);
        }
        Some(machine)
    }

    pub fn symbol(&self, name: &str) -> Va {
        self.symbols.iter().find(|(known, _)| known == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    /// The addresses of the instructions of a function.
    pub fn instructions(&self, function: &str) -> impl Iterator<Item = Va> + use<> {
        (self.symbol(function).0..self.symbol(&format!("end_{function}")).0).step_by(4).map(Va)
    }

    pub fn word(&self, va: Va) -> u32 {
        let offset = va.since(at(".probed")) as usize;
        u32::from_le_bytes(self.text[offset..offset + 4].try_into().expect("a word"))
    }

    /// The analysis of the probed functions.
    pub fn with_index<T>(&self, with: impl FnOnce(&Index<'_>) -> T) -> T {
        let names = ["plain", "leaf", "near", "branches", "calls", "signs", "trapped", "ends", "other"];
        let extents: Vec<Extent> = names
            .map(|name| {
                let start = self.symbol(name);
                Extent { start, len: Len(self.symbol(&format!("end_{name}")).since(start) as u64) }
            })
            .to_vec();
        let labels = extents.iter().map(|extent| extent.start).collect();
        let text = vec![Bytes { name: ".probed", va: at(".probed"), data: &self.text }];
        with(&Index::new(ObjectCode { text, extents, labels, ..ObjectCode::new(Isa::A64) }))
    }

    pub fn plan(&self, va: Va, trap: bool) -> Result<Plan, String> {
        self.with_index(|index| plan_at(index, va, trap, Placement::First).map_err(|refusal| refusal.to_string()))
    }

    pub fn plan_exit(&self, exit: Exit) -> Plan {
        self.with_index(|index| plan_exit(index, exit, false, None).expect("a plan of an exit"))
    }

    fn written(&self, mut data: Vec<u8>, at: Va, bytes: &[u8]) -> Vec<u8> {
        let file = object::File::parse(&*data).expect("an ELF file");
        let section = file.sections().find(|s| (s.address()..s.address() + s.size()).contains(&at.0));
        let section = section.unwrap_or_else(|| panic!("nothing is at {at}"));
        let start = section.file_range().expect("contents").0 + (at.0 - section.address());
        data[start as usize..][..bytes.len()].copy_from_slice(bytes);
        data
    }

    pub fn detour(&self, probe: &Probe, number: usize) -> Detour {
        let to = Va(DETOURS + number as u64 * DETOUR);
        let detour = build(&probe.plan, &probe.handlers, to, 0, &self.thunks, &self.env).expect("a detour");
        assert!(detour.bytes.len() as u64 <= DETOUR, "{} bytes", detour.bytes.len());
        detour
    }

    /// Runs the program with these probes.
    pub fn run(&self, probes: &[Probe]) -> Outcome {
        self.execute(&self.with_probes(probes))
    }

    fn with_probes(&self, probes: &[Probe]) -> Vec<u8> {
        let mut data = self.data.clone();
        for (number, probe) in probes.iter().enumerate() {
            let detour = self.detour(probe, number);
            data = self.written(data, detour.at, &detour.bytes);
            data = self.written(data, detour.site, &detour.patch);
            assert!(detour.switches.is_empty() || detour.switches.len() == probe.handlers.len());
            for (i, (_, switch)) in detour.switches.iter().enumerate() {
                assert_eq!(switch.word % 8, 0, "the word is written at once");
                let there = (switch.word - detour.at.0) as usize;
                assert_eq!(detour.bytes[there..there + 8], switch.on.to_le_bytes(), "it is on");
                if probe.off.contains(&i) {
                    data = self.written(data, Va(switch.word), &switch.off.to_le_bytes());
                }
            }
            for handler in &probe.handlers {
                let desc = at(".descs").0 + u64::from(handler.probe()) * size_of::<ProbeDesc>() as u64;
                if (handler.probe() as usize) < PROBES {
                    let site = desc + offset_of!(ProbeDesc, site) as u64;
                    data = self.written(data, Va(site), &probe.plan.site.0.to_le_bytes());
                }
            }
        }
        data
    }

    /// What the calls of the program are given in a round, and the empty function gives back.
    pub fn given(&self, round: usize) -> Round {
        let nothing = Machine::new("for (int i = 0; i < ROUNDS; i++) round(run_nothing);", 0, Context::default());
        nothing.expect("the tools are there").run(&[]).rounds[round].clone()
    }

    /// Where the emulator looks for signals in front of each instruction.
    pub fn run_slowly(&self, probes: &[Probe]) -> Outcome {
        // Its name has changed with version 8.1.
        self.execute_with(&self.with_probes(probes), &[("QEMU_SINGLESTEP", "1"), ("QEMU_ONE_INSN_PER_TB", "1")])
    }

    /// What the registers are where an instruction is first executed; `None`: it is not.
    pub fn stop_at(&self, va: Va) -> Option<Seen> {
        let data = self.written(self.data.clone(), va, &0xd420_0000_u32.to_le_bytes());
        self.execute(&data).first
    }

    fn execute(&self, data: &[u8]) -> Outcome {
        self.execute_with(data, &[])
    }

    fn execute_with(&self, data: &[u8], environment: &[(&str, &str)]) -> Outcome {
        use std::os::unix::fs::PermissionsExt;
        let path = self.dir.0.join("run");
        std::fs::write(&path, data).expect("the program");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("permissions");
        // Keys of pointer authentication are random numbers.
        let output = Command::new("timeout")
            .args(["20", "qemu-aarch64", "-cpu", "max", "-seed", "1"])
            .envs(environment.iter().copied())
            .arg(&path)
            .output()
            .expect("it runs");
        assert_eq!(output.status.code(), Some(0), "{}: a line of target.c, modulo 256", output.status);
        let outcome = Outcome::read(&output.stdout);
        if self.spills { outcome.without_spills() } else { outcome }
    }
}

fn compile(dir: &Scratch, checks: &str, globals: &Globals, vectors: u32) -> Vec<u8> {
    let path = |name: &str| dir.0.join(name);
    let regs = offset_of!(Hit, regs);
    let mut source = format!("#define TRAMPOLINE {:#x}ul\n", globals.trampoline.0);
    let _ = writeln!(source, "#define CHECKS {}", checks.replace('\n', " "));
    let _ = writeln!(source, "#define SIGNAL {:#x}ul\n#define RESTORER {:#x}ul", globals.signal.0, globals.restorer.0);
    let _ = writeln!(source, "#define INTERPRETED {INTERPRETED:#x}ul\n#define NATIVE {NATIVE:#x}ul");
    let offsets = [
        ("OVERRIDDEN", offset_of!(Hit, overridden)),
        ("COOKIE", offset_of!(Hit, cookie)),
        ("FLOATS", offset_of!(Hit, floats)),
    ];
    for (name, at) in offsets {
        let _ = writeln!(source, "#define {name} {}", at - regs);
    }
    assert_eq!(size_of::<Regs>(), 272);
    let _ = writeln!(source, "#define DESC_LEN {}", size_of::<ProbeDesc>());
    let mut changed: String = (0..32).filter(|i| vectors >> i & 1 == 1).fold(String::new(), |mut all, i| {
        let _ = write!(all, "movi v{i}.16b,#{}\\n ", i + 1);
        all
    });
    if vectors != 0 {
        changed += "mov x1,#1\\n msr fpsr,x1\\n ";
    }
    let _ = writeln!(source, "#define VECTORS \".arch_extension simd\\n {changed}\"");
    source += include_str!("target.c");
    std::fs::write(path("functions.h"), include_str!("functions.h")).expect("a source file");
    std::fs::write(path("target.c"), source).expect("a source file");
    let places = SECTIONS.iter().map(|(name, at)| format!("-Wl,--section-start={name}={at:#x}"));
    let output = Command::new("aarch64-linux-gnu-gcc")
        .args([
            "-O1",
            "-nostdlib",
            "-static",
            "-ffreestanding",
            &format!("-Wa,--defsym,NATIVE_CODE={NATIVE:#x}"),
            "-fno-pic",
            "-no-pie",
            "-mcmodel=large",
        ])
        .args(["-mgeneral-regs-only", "-fno-stack-protector", "-mbranch-protection=none", "-Wno-unused"])
        .args(["-Wl,-z,noexecstack", "-Wl,--no-warn-rwx-segments", "-Wl,--build-id=none"])
        .args(places)
        .arg(path("target.c"))
        .arg("-o")
        .arg(path("target"))
        .output()
        .expect("aarch64-linux-gnu-gcc");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(path("target")).expect("the program")
}
