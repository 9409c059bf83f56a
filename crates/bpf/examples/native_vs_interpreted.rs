//! The same programs interpreted and as native code: nanoseconds per run, the best of several
//! rounds. Each interpreted run clears a stack first.
//!
//! `cargo run --release -p sidestep-bpf --example native_vs_interpreted`

#[path = "../tests/run/mod.rs"]
mod run;

use std::time::Instant;

use run::{Buffer, Native, function, interpret};
use sidestep_bpf::{Program, assemble};

/// Name, program, and how often it runs in a round.
const PROGRAMS: [(&str, &str, u32); 4] = [
    ("count, locked", "r1 = thread(8) ll\n r2 = 1\n lock *(u64 *)(r1 + 0) += r2\n r0 = 0\n exit", 50_000),
    ("loop of 100", "r0 = 0\n r1 = 0\n again: r0 += r1\n r1 += 1\n if r1 < 100 goto again\n exit", 5_000),
    (
        "hash of 16 words",
        "r0 = 0xcbf29ce484222325 ll\n r4 = 0x100000001b3 ll\n r2 = 0\n again: r3 = *(u64 *)(r1 + 0)\n r0 ^= r3\n r0 *= r4\n
         r1 += 8\n r2 += 1\n if r2 < 16 goto again\n exit",
        10_000,
    ),
    ("helper call", "r2 = 2\n r3 = 3\n r4 = 4\n r5 = 5\n call 4\n exit", 20_000),
];

const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("{:20}{:>14}{:>10}{:>8}", "ns per run", "interpreted", "native", "ratio");
    for (name, text, times) in PROGRAMS {
        let program = assemble(text)?;
        let native = Native::new(&function(&program)?);
        let fast = best(times, |buffer| native.run(buffer).0);
        let slow = best(times / 10, |buffer| interpreted(&program, buffer));
        println!("{name:20}{slow:14.1}{fast:10.2}{:8.1}", slow / fast);
    }
    Ok(())
}

fn interpreted(program: &Program, buffer: &mut Buffer) -> u64 {
    interpret(program, buffer, 1 << 20).unwrap_or_default()
}

/// Nanoseconds of one run in the best round.
fn best(times: u32, mut run: impl FnMut(&mut Buffer) -> u64) -> f64 {
    let mut buffer = [1; 32];
    let mut round = || {
        let start = Instant::now();
        for _ in 0..times {
            std::hint::black_box(run(&mut buffer));
        }
        start.elapsed().as_nanos() as f64 / f64::from(times)
    };
    (0..ROUNDS).map(|_| round()).fold(f64::INFINITY, f64::min)
}
