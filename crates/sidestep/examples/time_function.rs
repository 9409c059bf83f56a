//! How long do the calls of a function take, from entry to return?
#![allow(unsafe_code, reason = "handlers are promises")]

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

use sidestep::{Error, Probe, Session};

#[inline(never)]
extern "C" fn work(milliseconds: u64) -> u64 {
    sleep(Duration::from_millis(milliseconds));
    milliseconds + 1
}

/// Nanoseconds since its first call.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

fn main() -> Result<(), Error> {
    let spent = Arc::new(AtomicU64::new(0));
    let sum = Arc::clone(&spent);
    now();
    // SAFETY: the handlers read the clock and add; the program's registers stay what they are.
    let probe = unsafe {
        Probe::function(work as *const ())?.on_entry(|context| context.cookie = now()).on_return(move |context| {
            sum.fetch_add(now() - context.cookie, Relaxed);
        })
    };
    let session = Session::own().probe(probe).start()?;
    for milliseconds in [1, 2, 3] {
        assert_eq!(work(milliseconds), milliseconds + 1);
    }
    let calls = session.list()?.iter().map(|probe| probe.hits).sum::<u64>();
    session.detach()?;
    println!("{calls} calls, {} milliseconds", spent.load(Relaxed) / 1_000_000);
    Ok(())
}
