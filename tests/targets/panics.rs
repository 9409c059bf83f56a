//! Panics through probed frames, caught further up.

use std::io::BufRead;
use std::panic::{catch_unwind, resume_unwind};

mod app {
    #[inline(never)]
    pub fn leaf(value: i64) -> i64 {
        std::hint::black_box(value) * 3 + 1
    }

    #[inline(never)]
    pub fn panics(depth: i64, value: i64) -> i64 {
        if std::hint::black_box(depth) == 0 {
            super::resume_unwind(Box::new(value));
        }
        panics(depth - 1, value) + leaf(depth)
    }
}

/// Each round unwinds four frames of `panics`; the answer is the sum of what was thrown and of
/// `leaf`.
fn run(n: i64) -> i64 {
    (0..n)
        .map(|i| {
            let thrown = catch_unwind(|| app::panics(3, i)).err().and_then(|e| e.downcast::<i64>().ok());
            thrown.map_or(i64::MIN / 2, |v| *v) + app::leaf(i)
        })
        .sum()
}

fn main() {
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let n = line.ok().and_then(|l| l.split_whitespace().nth(1).and_then(|n| n.parse().ok())).unwrap_or(0);
        println!("{}", run(n));
    }
}
