//! Targets that overwrite what they share with the controller: it ends, and says what is wrong.

use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use sidestep_tests::process::{LIMIT, Program, Running};
use sidestep_tests::target;
use sidestep_tests::tool::sidestep;

/// Address space of the controller in bytes: what a target makes up must not take memory.
const MOST: u64 = 8 << 30;
/// For so long a target attacks.
const ATTACK: Duration = Duration::from_millis(700);

/// Commands that read each kind of memory: `F` is a function of the target.
const COMMANDS: [&[&str]; 6] = [
    &[
        "-e",
        r#"u:F { @[arg0] = count(); @h = hist(arg0); @s[ustack] = count(); @last[tid] = arg0;
            printf("%d %s %s\n", arg0, str(arg1), ustack(3)) }
        interval:ms:50 { print(@); clear(@h); for ($kv : @last) { @seen = count() } }"#,
    ],
    &["funccount", "-i", "1", "F"],
    &["funclatency", "F"],
    &["trace", "F \"%d %s\", arg0, arg1"],
    &["stackcount", "F"],
    &["-f", "json", "-e", "u:F { @[str(arg1), arg0] = stats(arg0) } interval:ms:30 { print(@) }"],
];

fn attack(part: &str, seed: usize) {
    let Some(path) = target("hostile") else { return };
    let function = format!("{}:worked", path.display());
    let program = Program::start(Command::new(&path).args([part, &seed.to_string()]));
    let pid = program.pid().to_string();
    let args: Vec<String> = COMMANDS[seed % COMMANDS.len()].iter().map(|arg| arg.replace('F', &function)).collect();
    let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
    // Behind the command.
    let at = usize::from(!args[0].starts_with('-'));
    args.splice(at..at, ["-p", &pid]);
    let tool = sidestep(&args);
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--as={MOST}")).arg(tool.get_program()).args(tool.get_args());
    let mut controller = Running::start(&mut limited);
    let end = Instant::now() + 2 * ATTACK;
    while Instant::now() < end && controller.is_running() {
        sleep(Duration::from_millis(10));
    }
    controller.signal(libc::SIGINT);
    let output = controller.finish(LIMIT);
    assert!([0, 1].contains(&output.code()), "{part} {seed}: {output}");
    assert!(!output.stderr.contains("panicked"), "{part} {seed}: {output}");
}

#[test]
fn a_target_that_scribbles_ended_the_controller() {
    for (seed, part) in ["header", "journal", "list", "common", "desc", "slots", "maps", "rings"].iter().enumerate() {
        attack(part, seed);
        attack(part, seed + 100);
    }
}

#[test]
fn everything_at_once_is_overwritten() {
    (0..12).for_each(|seed| attack("all", seed));
}

#[test]
fn a_chain_of_a_map_that_led_to_itself_never_ended() {
    [0, 5].into_iter().for_each(|seed| attack("cycle", seed));
}

#[test]
fn a_record_longer_than_its_ring_took_all_memory() {
    [0, 3].into_iter().for_each(|seed| attack("records", seed));
}

#[test]
fn lengths_that_the_target_made_up_took_all_memory() {
    (0..6).for_each(|seed| attack("lengths", seed));
}
