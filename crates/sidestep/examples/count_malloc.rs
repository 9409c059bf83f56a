//! How often does a piece of this program allocate memory?

use std::collections::BTreeMap;

use sidestep::{Error, Probe, Session};

fn main() -> Result<(), Error> {
    let session = Session::own().start()?;
    let malloc = session.register(Probe::at("libc:malloc")?)?;

    let before = session.counts(malloc)?.0;
    let numbers: BTreeMap<u32, String> = (0..1000).map(|n| (n, n.to_string())).collect();
    let after = session.counts(malloc)?.0;

    println!("{} strings in a map: {} allocations", numbers.len(), after - before);
    session.detach()
}
