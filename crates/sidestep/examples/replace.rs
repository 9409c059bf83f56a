//! Another function runs instead of one, and calls the original.
#![allow(unsafe_code, reason = "another function runs")]

use std::hint::black_box;
use std::sync::OnceLock;

use sidestep::{Error, Original, Probe, Session};

#[inline(never)]
extern "C" fn price(items: u64, each: u64) -> u64 {
    black_box(items * each + 5)
}

static ORIGINAL: OnceLock<Original> = OnceLock::new();

/// Ten and more are cheaper.
extern "C" fn discounted(items: u64, each: u64) -> u64 {
    let Some(original) = ORIGINAL.get() else { return 0 };
    // SAFETY: the type of `price`.
    let original: extern "C" fn(u64, u64) -> u64 = unsafe { original.function() };
    if items < 10 { original(items, each) } else { original(items, each) * 9 / 10 }
}

fn main() -> Result<(), Error> {
    let original = Original::new()?;
    ORIGINAL.get_or_init(|| original);
    // SAFETY: both have the same type.
    let probe = unsafe { Probe::function(price as *const ())?.replace(discounted as *const (), &original) };
    println!("before: {} {}", price(1, 10), price(10, 10));
    let session = Session::own().probe(probe).start()?;
    println!("replaced: {} {}", price(1, 10), price(10, 10));
    session.detach()?;
    println!("after: {} {}", price(1, 10), price(10, 10));
    Ok(())
}
