//! Functions of Debian's C library, probed at each of their instructions while a program uses them.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::Command;

use object::{Object as _, ObjectSection, ObjectSymbol};
use sidestep_isa::{Isa, Va, sweep};
use sidestep_plan::detour::build;
use sidestep_plan::handler::Handler;
use sidestep_plan::thunk::{self, Context, Env, thunks};
use sidestep_plan::{Index, Placement, Plan, Technique, plan_at};
use sidestep_symbols::Object;
use sidestep_wire::ProbeDesc;
use sidestep_wire::lookup::{HASH_MULTIPLIER, HASH_SHIFT, LOOKUP_BUCKETS};

use super::handlers::nothing;
use super::machine::{Scratch, has_tools};

/// Parts of the names of functions that are probed.
const FUNCTIONS: [&str; 24] = [
    "_int_malloc",
    "_int_free",
    "malloc",
    "free",
    "realloc",
    "qsort_r",
    "__qsort_r",
    "msort_with_tmp",
    "strtol",
    "strtod",
    "____strtol_l_internal",
    "____strtod_l_internal",
    "__strtod_internal",
    "strlen",
    "strcmp",
    "memcpy",
    "memchr",
    "strrchr",
    "strstr",
    "memset",
    "snprintf",
    "__vsnprintf_internal",
    "__printf_buffer",
    "__printf_fp_buffer_1",
];
/// Probes that the program counts.
const PROBES: usize = 4096;
const GENERATED: u64 = 0x200_0000;

fn compile(dir: &Path) -> Vec<u8> {
    let path = |name: &str| dir.join(name);
    std::fs::write(path("agent.c"), include_str!("agent.c")).expect("a source file");
    std::fs::write(path("libc.c"), include_str!("libc.c")).expect("a source file");
    let gcc = |args: &[&str]| {
        let output = Command::new("aarch64-linux-gnu-gcc").current_dir(dir).args(args).output().expect("gcc");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let desc = format!("-DDESC_LEN={}", size_of::<ProbeDesc>());
    gcc(&["-O1", "-c", "-mgeneral-regs-only", "-fno-stack-protector", "-ffreestanding", "-w", &desc, "agent.c"]);
    let at = format!("-Wl,--section-start=.generated={GENERATED:#x}");
    let link = ["-Wl,--no-warn-rwx-segments", "-Wl,-z,noexecstack", at.as_str()];
    gcc(&[&["-O1", "-static", "-w", "libc.c", "agent.o", "-o", "target"], &link[..]].concat());
    std::fs::read(path("target")).expect("the program")
}

/// Output of the program: its text, the hits that the agent has counted, and the cells.
fn run(dir: &Path, data: &[u8]) -> (String, Vec<u64>, Vec<u64>) {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("run");
    std::fs::write(&path, data).expect("the program");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).expect("permissions");
    let output = Command::new("timeout")
        .args(["60", "qemu-aarch64", "-cpu", "max", "-seed", "1"])
        .arg(&path)
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", output.status);
    let (counts, text) = output.stdout.split_at(2 * 8 * PROBES);
    let counts: Vec<u64> = counts.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
    let (hits, cells) = counts.split_at(PROBES);
    (String::from_utf8_lossy(text).into_owned(), hits.to_vec(), cells.to_vec())
}

#[test]
fn each_instruction_of_the_c_library_is_probed() {
    if !has_tools(&["aarch64-linux-gnu-gcc", "qemu-aarch64"]) {
        return;
    }
    let dir = Scratch::new();
    let program = compile(&dir.0);
    let (expected, hits, _) = run(&dir.0, &program);
    assert!(expected.len() > 20 && hits.iter().all(|hits| *hits == 0), "{expected}");

    let object = Object::open(&dir.0.join("target"), &[]).expect("an object");
    let code = object.code().expect("its code");
    let mut functions: Vec<(Va, u64, String)> = object
        .functions()
        .iter()
        .filter(|f| {
            FUNCTIONS.iter().any(|name| f.name.trim_start_matches("__").starts_with(name.trim_start_matches("__")))
        })
        .map(|f| (f.va, f.size.0, f.name.to_string()))
        .collect();
    functions.sort();
    functions.dedup_by_key(|(va, ..)| *va);
    let index = Index::new(code.clone());
    let (mut plans, mut refused) = (Vec::<Plan>::new(), BTreeMap::<String, usize>::new());
    for (start, len, name) in &functions {
        let text = code.text_at(*start, Va(start.0 + len)).expect("its text");
        for insn in sweep(Isa::A64, text, *start).map_while(Result::ok) {
            match plan_at(&index, insn.va(), false, Placement::First) {
                Ok(plan) if plan.site == insn.va() && plan.technique <= Technique::Jump => plans.push(plan),
                Ok(_) => {}
                Err(refusal) => *refused.entry(format!("{name}: {}", refusal.reason)).or_default() += 1,
            }
        }
    }
    plans.truncate(PROBES - 1);
    println!("{} functions, {} sites, refused: {refused:#?}", functions.len(), plans.len());

    let file = object::File::parse(&*program).expect("an ELF file");
    let symbol = |name: &str| Va(file.symbols().find(|s| s.name() == Ok(name)).expect("a symbol").address());
    let env = Env {
        isa: Isa::A64,
        private: Va(0x1234),
        buckets: symbol("buckets"),
        descs: symbol("descs"),
        agent_slot: symbol("agent_slot"),
        agent_hit: symbol("agent_hit"),
        context: Context(u64::MAX),
        hash_multiplier: HASH_MULTIPLIER as i32,
        hash_shift: HASH_SHIFT as u8,
        bucket_count: LOOKUP_BUCKETS as u32,
        ..Env::default()
    };
    let program_of = thunk::Program {
        code: Va(0),
        inside: Va(0),
        context: Context::default(),
        changes: Context::default(),
        exclusive: false,
        overrides: false,
        goroutine: None,
    };
    let (thunks_code, thunks) = thunks(Va(GENERATED), &env, Va(GENERATED), &[Some(program_of)], &[], None);
    let sections: Vec<(u64, u64, u64)> =
        file.sections().filter_map(|s| Some((s.address(), s.size(), s.file_range()?.0))).filter(|s| s.0 != 0).collect();
    let write = |data: &mut Vec<u8>, at: Va, bytes: &[u8]| {
        let (va, _, start) = sections.iter().find(|(va, len, _)| (*va..va + len).contains(&at.0)).expect("a section");
        data[(start + at.0 - va) as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    assert!(offset_of!(ProbeDesc, site) < size_of::<ProbeDesc>());
    let probed = |handler: &dyn Fn(u32) -> Vec<Handler>| {
        let (mut data, mut at) = (program.clone(), Va(GENERATED + 0x1000));
        write(&mut data, Va(GENERATED), &thunks_code);
        for (number, plan) in (1..).zip(&plans) {
            let detour = build(plan, &handler(number), at, 0, &thunks, &env).expect("a detour");
            write(&mut data, at, &detour.bytes);
            write(&mut data, detour.site, &detour.patch);
            at = Va((at.0 + detour.bytes.len() as u64).next_multiple_of(16));
        }
        run(&dir.0, &data)
    };
    let (text, hits, cells) = probed(&|probe| vec![Handler::Agent { probe }]);
    assert_eq!((text, cells.iter().sum::<u64>()), (expected.clone(), 0));
    let (text, slow, counted) = probed(&|probe| vec![nothing(probe)]);
    assert_eq!(text, expected);
    let all: Vec<u64> = slow.iter().zip(&counted).map(|(slow, counted)| slow + counted).collect();
    assert_eq!(all, hits, "the counts of both");
    let used = hits.iter().filter(|hits| **hits > 0).count();
    println!("{used} sites were hit, {} hits", hits.iter().sum::<u64>());
    assert!(
        plans.len() > 2000 && used > 1000 && counted.iter().sum::<u64>() > 100_000,
        "{} sites, {used} used",
        plans.len()
    );
}
