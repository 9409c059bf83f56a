//! Two handlers at one place, switched one by one.
#![allow(unsafe_code)]

use std::hint::black_box;

use sidestep::{Context, Error, Probe, Session};

#[inline(never)]
extern "C" fn double(number: usize) -> usize {
    black_box(number * 2)
}

fn main() -> Result<(), Error> {
    let at = || Probe::function(double as *const ());
    let change = |change: fn(usize) -> usize| {
        move |context: &mut Context| {
            let number = context.word_argument(0);
            // SAFETY: the only argument of `double` is a number.
            unsafe { *number = change(*number) };
        }
    };
    // SAFETY: `double` takes any number.
    let (add, square) = unsafe { (at()?.on_entry(change(|n| n + 1)), at()?.on_entry(change(|n| n * n))) };
    let session = Session::own().start()?;
    let both = session.register_all([add, square])?;
    let call = || black_box(double as extern "C" fn(usize) -> usize)(3);
    println!("both: {}", call());
    session.disable(both[0])?;
    println!("the second: {}", call());
    session.disable(both[1])?;
    println!("none: {}", call());
    session.enable(both[0])?;
    println!("the first: {}", call());
    session.unregister(both[0])?;
    println!("none: {}", call());
    session.detach()
}
