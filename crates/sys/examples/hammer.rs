//! Stops a process and makes remote system calls in it, again and again, until it is killed itself:
//! `hammer PID [die]`. With `die` it kills itself in the middle, with the calling thread far from where it was.

use sidestep_sys::Process;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let pid = args.next().ok_or("usage: hammer PID [die]")?.parse()?;
    let die = args.next().is_some();
    let process = Process::open(pid)?;
    println!("ready");
    for round in 0u64.. {
        let mut stopped = process.stop()?;
        for _ in 0..round % 4 + 1 {
            if stopped.call(libc::SYS_getpid, [0; 6])? != pid as u64 {
                return Err("a remote getpid returned another pid".into());
            }
        }
        if die {
            let status = std::process::Command::new("kill").arg("-9").arg(std::process::id().to_string()).status()?;
            return Err(format!("still alive after kill: {status}").into());
        }
        stopped.resume()?;
    }
    Ok(())
}
