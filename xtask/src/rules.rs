//! The plans for installed objects, compared with what binutils say of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use sidestep_tests::rules::{Compared, compare};

/// So many objects of this machine, if none are named.
const OBJECTS: usize = 300;
/// Larger ones take too long.
const LARGEST: u64 = 4 << 20;
/// Smaller ones have hardly any code.
const SMALLEST: u64 = 12 << 10;
/// Instructions inside functions, of each object.
const INSIDE: usize = 12;
/// Where they are.
const FOLDERS: [&str; 3] = ["/usr/bin", "/usr/sbin", "/usr/lib/x86_64-linux-gnu"];

/// Compares, and prints what breaks a rule. True if nothing does.
pub fn rules(objects: &[&str]) -> Result<bool> {
    let named: Vec<PathBuf> = objects.iter().map(PathBuf::from).collect();
    let candidates = if named.is_empty() { installed() } else { named };
    let wanted = if objects.is_empty() { OBJECTS } else { objects.len() };
    let mut total = Compared::default();
    let mut count = 0;
    for object in candidates {
        if count == wanted {
            break;
        }
        let Some(compared) = compare(&object, INSIDE) else { continue };
        if compared.plans == 0 {
            continue;
        }
        count += 1;
        for broken in &compared.broken {
            println!("{}: {broken}", object.display());
        }
        total.plans += compared.plans;
        total.several += compared.several;
        total.returns += compared.returns;
        total.exits += compared.exits;
        total.arrivals += compared.arrivals;
        total.broken.extend(compared.broken);
        if count % 20 == 0 {
            print(count, &total);
        }
    }
    print(count, &total);
    if count == 0 {
        bail!("nothing was compared");
    }
    Ok(total.broken.is_empty())
}

fn print(count: usize, total: &Compared) {
    println!(
        "{count} objects, {} plans ({} jumps over several instructions), {} functions with {} exits, {} addresses that \
         somebody comes to; {} rules broken",
        total.plans,
        total.several,
        total.returns,
        total.exits,
        total.arrivals,
        total.broken.len()
    );
}

/// Objects of this machine, each once, evenly chosen from all.
fn installed() -> Vec<PathBuf> {
    let mut all = BTreeSet::new();
    for folder in FOLDERS {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(path) = entry.path().canonicalize() else { continue };
            let fits = path.metadata().is_ok_and(|data| (SMALLEST..LARGEST).contains(&data.len()));
            if fits && is_elf(&path) {
                all.insert(path);
            }
        }
    }
    // Some have no code, or nothing that can be probed.
    let all: Vec<PathBuf> = all.into_iter().collect();
    let step = (all.len() * 8 / 10 / OBJECTS).max(1);
    let (first, rest): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(index, _)| index % step == 0);
    first.into_iter().chain(rest).map(|(_, path)| path).collect()
}

fn is_elf(path: &Path) -> bool {
    let mut head = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| std::io::Read::read_exact(&mut file, &mut head));
    read.is_ok() && head == *b"\x7fELF"
}
