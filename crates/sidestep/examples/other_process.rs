//! What does another program call? Probes are there before its first instruction.

use sidestep::{Error, Probe, Session};

fn main() -> Result<(), Error> {
    let session = Session::command(["bash", "-c", "for i in 1 2 3; do echo $i; done >/dev/null; printf ."])
        .probe(Probe::at("bash:echo_builtin")?)
        .probe(Probe::at("bash:printf_builtin")?)
        .start()?;
    println!(" {:?}", session.wait()?);
    for probe in session.list()? {
        println!("{} {} {:?}", probe.name, probe.hits, probe.state);
    }
    session.detach()
}
