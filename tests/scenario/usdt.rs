//! USDT probes: arguments as libbpf's programs find them, and semaphores that are as they were
//! before.

use std::process::Command;

use sidestep_tests::process::{LIMIT, Program, run};
use sidestep_tests::tool::{Tracing, is_32_bit, sidestep, with_command};
use sidestep_tests::{Snapshot, target};

use super::bpf::{Mode, variable, with_object};

const TWICE: [&str; 2] = ["-a", "on_twice=usdt:usdt:demo:twice"];

fn usdt() -> Option<Program> {
    Some(Program::start(&mut Command::new(target("usdt")?)))
}

#[test]
pub fn arguments_are_where_the_notes_say() {
    for mode in [Mode::User, Mode::Trap, Mode::Kernel] {
        let Some(mut program) = usdt() else { return };
        let before = Snapshot::of(program.pid());
        let found = with_object(mode, "usdt.bpf.o", &TWICE, &mut program, |program| {
            (program.ask("fire 100"), program.ask("twice 10"))
        });
        let Some((report, answers)) = found else { continue };
        assert_eq!(answers, (5050 - 300, 55));
        for (name, expected) in [
            ("fires", 100),
            ("sum", 5050),
            ("negatives", -300),
            ("constants", -900),
            ("memory", 30_000),
            ("variables", 7_700),
            ("counts", 500),
            ("failures", 0),
            ("twices", 20),
            ("twice_sum", 55 + 55 + 10_000),
        ] {
            assert_eq!(variable(&report, name), expected, "{mode:?}: {name}");
        }
        // Data were written, and the stack.
        before.assert_same_but_data(&Snapshot::of(program.pid()));
        program.finish().ok();
    }
}

/// A form of operands, what its arguments are, and in 32-bit code.
const OPERANDS: [(&str, &[i64], &[i64]); 10] = [
    (
        "registers",
        &[
            9,
            0x8182_8384_8586_8788_u64 as i64,
            0x8586_8788,
            0x8586_8788_u32 as i32 as i64,
            0x8788,
            0x8788_u16 as i16 as i64,
            0x88,
            -0x78,
            0xc3,
            -0x3d,
            -9,
            -9,
        ],
        &[9, 0x8586_8788, 0x8586_8788_u32 as i32 as i64, 0x8788, 0x8788_u16 as i16 as i64, 0x88, -0x78, 0xc3, -0x3d],
    ),
    ("halves", &[-30840, 136, -120, 0x8586_8788, 0x1_0000 - 9, 9, 0x8182_8384_8586_8788_u64 as i64], &[]),
    ("constants", &[42, -7, 0xffff_fff9, -1, 255, i64::MIN, 16], &[42, -7, 0xffff_fff9, -1, 255, i64::MIN, 16]),
    (
        "memory",
        &[-2, 0x5566_7788, 0x1122_3344_5566_7788, -50, -70, 0x1_0000 - 70, -90, 256 - 90],
        &[-2, 0x5566_7788, 0x1122_3344_5566_7788, -50, -70, 0x1_0000 - 70, -90, 256 - 90],
    ),
    ("stack", &[9, -5, 0xffff_fffb], &[9, -5, 0xffff_fffb]),
    ("indices", &[30, -50, 60, -70, 100, -2], &[30, 60, -70, 100, -2]),
    ("symbols", &[-2, 0x5566_7788, 30, -2, 100], &[-2, 0x5566_7788, -2, 0x5566_7788]),
    (
        "floats",
        &[0x4008_0000_0000_0000, 0x3fc0_0000, 0x4008_0000_0000_0000, 0x3fc0_0000, 0x4008_0000_0000_0000],
        &[0x4008_0000_0000_0000, 0x3fc0_0000, 0x4008_0000_0000_0000, 0x3fc0_0000],
    ),
    // What cannot be read is 0.
    ("unreadable", &[0, 0, 9], &[0, 0, 9]),
    ("twelve", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, -5], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, -5]),
];

#[test]
pub fn operands_of_every_form() {
    let Some(program) = target("operands") else { return };
    let path = program.to_str().expect("UTF-8");
    let mut script = String::new();
    let mut expected = Vec::new();
    for (name, long, short) in OPERANDS {
        let values = if is_32_bit() { short } else { long };
        if !values.is_empty() {
            let format = vec!["%ld"; values.len()].join(" ");
            let arguments: Vec<String> = (0..values.len()).map(|number| format!("arg{number}")).collect();
            let arguments = arguments.join(", ");
            script += &format!("usdt:{path}:forms:{name} {{ printf(\"{name} {format}\\n\", {arguments}) }}\n");
            expected.push(values.iter().fold(name.to_owned(), |line, value| format!("{line} {value}")));
        }
    }
    for flags in ["-v", "--no-optimize", "--interpret"] {
        let args = [flags, "-e", &script];
        let (output, report) = with_command(&args, &[path, "operands", "9"]);
        assert_eq!((output.code(), output.stdout.as_str()), (0, "9\n"), "{output}");
        let mut seen: Vec<&str> = report.0.stdout.lines().filter(|line| line.contains(' ')).collect();
        seen.retain(|line| OPERANDS.iter().any(|(name, ..)| line.starts_with(name)));
        assert_eq!(seen, expected, "{flags}: {}", report.0);
    }
}

/// Arguments in the frame that the unwind information describes and in the red zone are read by the
/// detour itself, or by a program that a trap runs.
#[test]
pub fn memory_of_frames_and_below_the_stack_pointer() {
    let Some(path) = target("bench") else { return };
    let forms = [("f_usdt_frame", "frame"), ("f_usdt_stack", "stack")];
    // 32-bit code has no red zone.
    for (function, probe) in &forms[..if is_32_bit() { 1 } else { 2 }] {
        for flags in [&["-q"][..], &["-q", "--no-optimize"]] {
            let path = path.to_str().expect("UTF-8");
            let script = format!("usdt:{path}:bench:{probe} {{ @[arg0, (int32)arg1] = count() }}");
            let (_, report) = with_command(&[flags, &["-e", &script]].concat(), &[path, function, "1000"]);
            assert!(report.0.stdout.contains("\n@[1, 2]: 1001\n"), "{flags:?}: {}", report.0);
        }
    }
}

#[test]
fn fifty_thousand_sites() {
    let Some(path) = target("usdt-50000") else { return };
    let script = format!("usdt:{}:many:* {{ @n = count(); @s = sum(arg2) }}", path.display());
    let mut program = Program::start(&mut Command::new(&path));
    assert_eq!(program.ask("run 3"), 150_000);
    let before = Snapshot::of(program.pid());
    let tracing = Tracing::start(&["-f", "json", "-p", &program.pid().to_string(), "-e", &script]);
    assert_eq!(program.ask("run 3"), 150_000);
    let report = tracing.stop();
    // Two of ten probes have a third argument.
    for value in ["{\"@n\": 150000}", "{\"@s\": 90000}"] {
        assert!(report.0.stdout.contains(value), "{value}: {}", report.0);
    }
    before.assert_same_but_data(&Snapshot::of(program.pid()));
    program.finish().ok();
}

/// An argument that a program does not ask for may be anything.
#[test]
pub fn only_what_is_asked_for_must_be_understood() {
    let Some(program) = target("operands") else { return };
    let path = program.to_str().expect("UTF-8");
    let script = format!("usdt:{path}:forms:only {{ @ = sum(arg2 + arg3) }}");
    let (_, report) = with_command(&["-v", "-e", &script], &[path, "operands", "9"]);
    assert!(report.0.stdout.contains("@: 9\n"), "{}", report.0);
    let script = format!("usdt:{path}:forms:only {{ @ = sum(arg1) }}");
    let output = run(&mut sidestep(&["-e", &script, "--", path, "operands", "9"]), LIMIT);
    assert!(output.stderr.contains("argument 1 has 12 bytes"), "{output}");
}

#[test]
pub fn programs_know_that_somebody_listens() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(mut program) = usdt() else { return };
        assert_eq!(program.ask("listeners 0"), 0);
        let found = with_object(mode, "usdt.bpf.o", &TWICE, &mut program, |program| {
            // Somebody else begins to listen, and stays.
            [program.ask("listeners 0"), program.ask("listen 1"), program.ask("child 3")]
        });
        let Some((_, listeners)) = found else { continue };
        // A child keeps what its memory is a copy of; the kernel has its probe only in this
        // process.
        assert_eq!(listeners, [1, 2, if mode == Mode::User { 2 } else { 1 }], "{mode:?}");
        assert_eq!(program.ask("listeners 0"), 1, "{mode:?}");
        program.finish().ok();
    }
}

#[test]
pub fn somebody_who_ceases_to_listen_is_no_matter() {
    let Some(mut program) = usdt() else { return };
    assert_eq!(program.ask("listen 1"), 1);
    let found = with_object(Mode::User, "usdt.bpf.o", &TWICE, &mut program, |program| {
        [program.ask("listeners 0"), program.ask("listen -1")]
    });
    let Some((_, listeners)) = found else { return };
    assert_eq!(listeners, [2, 1]);
    assert_eq!(program.ask("listeners 0"), 0);
}

#[test]
pub fn killed_controllers_listen_no_more_after_the_next() {
    let Some(mut program) = usdt() else { return };
    let Some(object) = target("usdt.bpf.o") else { return };
    let pid = program.pid().to_string();
    let args = [&["bpf", object.to_str().expect("UTF-8"), "-p", &pid][..], &TWICE].concat();
    for _ in 0..3 {
        Tracing::start(&args).kill();
        assert_eq!(program.ask("listeners 0"), 1);
        assert_eq!(program.ask("fire 10"), 25);
    }
    let tracing = Tracing::start(&args);
    assert_eq!(program.ask("listeners 0"), 1);
    assert_eq!(program.ask("fire 10"), 25);
    assert_eq!(variable(&tracing.stop(), "fires"), 10);
    assert_eq!(program.ask("listeners 0"), 0);
    program.finish().ok();
}

#[test]
pub fn children_are_cleaned_up_by_who_attaches_to_them() {
    let Some(mut program) = usdt() else { return };
    let Some(object) = target("usdt.bpf.o") else { return };
    let found = with_object(Mode::User, "usdt.bpf.o", &TWICE, &mut program, |program| {
        [program.ask("stay 0"), program.ask("stay 0")]
    });
    let Some((_, [one, other])) = found else { return };
    let child = one.to_string();
    let args = [&["bpf", object.to_str().expect("UTF-8"), "-p", &child][..], &TWICE].concat();
    drop(Tracing::start(&args).stop());
    assert_eq!(program.ask(&format!("reap {one}")), 0);
    assert_eq!(program.ask(&format!("reap {other}")), 1);
    assert_eq!(program.ask("listeners 0"), 0);
}

#[test]
pub fn commands_are_listened_to_from_their_start() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), target("usdt")) else { return };
    let args = [&["bpf", object.to_str().expect("UTF-8")][..], &TWICE].concat();
    let program = program.to_str().expect("UTF-8");
    let (output, report) = with_command(&args, &[program, "fire", "10"]);
    assert_eq!((output.code(), output.stdout.as_str()), (0, "25\n"), "{output}");
    assert_eq!((variable(&report, "fires"), variable(&report, "sum")), (10, 55));
    assert_eq!(with_command(&args, &[program, "listeners", "0"]).0.stdout, "1\n");
}

#[test]
pub fn what_a_command_does_not_have_is_said() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), target("usdt")) else { return };
    let (object, program) = (object.to_str().expect("UTF-8"), program.to_str().expect("UTF-8"));
    let args = ["bpf", "-v", object, "-a", "on_twice=usdt:usdt:demo:once", "--", program, "fire", "10"];
    let output = run(&mut sidestep(&args), LIMIT).ok();
    assert!(output.stderr.contains("usdt:usdt:demo:once cannot be probed: no USDT probe `demo:once`"), "{output}");
    assert!(output.stdout.contains("fires: 10\n"), "{output}");
}

#[test]
fn probes_of_a_library() {
    for mode in [Mode::User, Mode::Kernel] {
        let Some(path) = target("throw") else { return };
        let mut program = Program::start(&mut Command::new(path));
        let found = with_object(mode, "thrown.bpf.o", &[], &mut program, |program| program.ask("run 300"));
        let Some((report, answer)) = found else { continue };
        assert_eq!(answer, -150);
        // Odd values are thrown again, which is another probe.
        assert_eq!((variable(&report, "throws"), variable(&report, "objects")), (300, 300), "{mode:?}");
    }
}

#[test]
pub fn what_is_no_probe_is_said() {
    let (Some(object), Some(program)) = (target("usdt.bpf.o"), usdt()) else { return };
    let (object, pid) = (object.to_str().expect("UTF-8"), program.pid().to_string());
    let before = Snapshot::of(program.pid());
    for (place, code, message) in [
        ("usdt:usdt:demo:once", 1, "no USDT probe `demo:once`"),
        ("usdt:libc:demo:twice", 1, "no USDT probe `demo:twice`"),
        ("usdt:demo:twice", 2, "\"usdt:demo:twice\" is not usdt:OBJECT:PROVIDER:NAME"),
    ] {
        let attach = format!("on_twice={place}");
        let output = run(&mut sidestep(&["bpf", object, "-a", &attach, "-p", &pid]), LIMIT);
        assert_eq!(output.code(), code, "{output}");
        assert!(output.stderr.contains(message), "{output}");
        before.assert_same(&Snapshot::of(program.pid()));
    }
}
