//! Every function of real programs: nothing panics, and most entries need no trap.

mod elf;

use std::collections::BTreeMap;
use std::time::Instant;

use sidestep_plan::{Index, Technique, plan, render};

fn share(path: &str, least: usize) {
    let Some(data) = elf::installed(path) else {
        eprintln!("{path}: not installed");
        return;
    };
    let elf = elf::parse(&data);
    let mut entries: Vec<_> = elf.functions.iter().map(|f| f.1).collect();
    if entries.len() < 2000 {
        // Stripped: unwind information tells where functions are.
        entries.extend(elf.code.extents.iter().map(|e| e.start));
    }
    entries.sort_unstable();
    entries.dedup();

    let start = Instant::now();
    let index = Index::new(elf.code.clone());
    let indexed = start.elapsed();
    let plans: Vec<_> = entries.iter().map(|va| plan(&index, *va, false)).collect();
    let planned = start.elapsed() - indexed;

    let mut techniques: BTreeMap<String, usize> = BTreeMap::new();
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let mut traps = 0;
    let (mut returns, mut inside, mut dead, mut flags) = (0, 0, 0, 0);
    for result in &plans {
        match result {
            Ok(plan) => {
                *techniques.entry(plan.technique.to_string()).or_default() += 1;
                returns += usize::from(plan.returns.is_ok());
                inside += usize::from(plan.kind == sidestep_plan::SiteKind::Inside);
                dead += plan.dead_regs.count_ones();
                flags += usize::from(plan.dead_flags);
                assert!(render(plan, "f").ends_with('\n'));
                if plan.technique == Technique::Trap {
                    traps += 1;
                    let reason = plan.rejected.last().map_or("", |r| &r.reason);
                    *reasons.entry(general(reason)).or_default() += 1;
                }
            }
            Err(refusal) => *reasons.entry(format!("REFUSED {}", general(&refusal.reason))).or_default() += 1,
        }
    }
    println!("{path}: {} entries, index {indexed:?}, plans {planned:?}", entries.len());
    println!("  {techniques:?} returns {returns} inside {inside} dead {dead} flags {flags}");
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|r| std::cmp::Reverse(r.1));
    for (reason, count) in reasons.iter().take(14) {
        println!("  {count:6} {reason}");
    }
    assert!(entries.len() > 100, "{path}: the test found no functions");
    let good = techniques.values().sum::<usize>() - traps;
    assert!(good * 100 >= entries.len() * least, "{path}: {good} of {} without a trap", entries.len());
}

/// A reason without its addresses.
fn general(reason: &str) -> String {
    let words: Vec<_> = reason.split(' ').map(|w| if w.contains("0x") { "X" } else { w }).collect();
    let text = words.join(" ");
    text.split('`').enumerate().map(|(i, part)| if i % 2 == 1 { "…" } else { part }).collect()
}

#[test]
fn libc() {
    share("/lib/x86_64-linux-gnu/libc.so.6", 90);
}

#[test]
fn libcrypto() {
    share("/lib/x86_64-linux-gnu/libcrypto.so.3", 90);
}

#[test]
fn bash() {
    share("/bin/bash", 90);
}

#[test]
fn redis() {
    share("/usr/bin/redis-server", 90);
}

#[test]
fn python() {
    share("/usr/bin/python3.11", 90);
}
