// The probes of provider.c, by our own macros.
use sidestep_probe::{lazy_probe, probe};
use std::sync::atomic::{AtomicU32, Ordering};

static COMPUTED: AtomicU32 = AtomicU32::new(0);

fn expensive(n: isize) -> isize {
    COMPUTED.fetch_add(1, Ordering::Relaxed);
    n * 2
}

#[inline(never)]
fn hit(a: isize, b: i32, c: u16, text: *const u8, d: f64, e: f32, k: i32) {
    let array = *b"array\0";
    probe!(provider, none);
    probe!(provider, two, a, b);
    probe!(provider, kinds, c, text, k, b as i8, array.as_ptr(), 5);
    probe!(provider, floats, d, e);
    probe!(provider, twelve, a, b, a + 1, b + 2, c, a * 3, b * 4, a - 5, 8, a ^ 9, b | 10, text);
    lazy_probe!(provider, lazy, expensive(a));
}

fn main() {
    let n: i32 = std::env::args().nth(1).map_or(1, |n| n.parse().unwrap());
    for i in 0..n {
        hit(i as isize, -i, i as u16, c"text".as_ptr().cast(), f64::from(i) * 1.5, i as f32 * 0.25, -7);
    }
    println!("{}", COMPUTED.load(Ordering::Relaxed));
}
