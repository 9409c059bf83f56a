//! Functions that are passed less than they take: the compiler sees all of their callers.

use std::hint::black_box;

/// Nobody looks at the first argument, and all callers agree about the second.
#[inline(never)]
fn shrunk(_unused: &u64, factor: u64, n: u64) -> u64 {
    black_box(n) * factor
}

/// As its type says it.
#[inline(never)]
fn whole(n: u64, factor: u64) -> u64 {
    black_box(n) * black_box(factor)
}

fn main() {
    let unused = black_box(1);
    let sum: u64 = (1..4).map(|n| shrunk(&unused, 3, n) + whole(n, n + 1)).sum();
    println!("{sum}");
}
