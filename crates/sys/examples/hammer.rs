//! Stops a process and makes remote system calls in it, again and again, until it is killed itself:
//! `hammer PID [die|batch]`. With `die` it kills itself in the middle, with the calling thread far
//! from where it was. With `batch` it makes several calls at one go, by code that it maps.

use sidestep_isa::{Len, Va};
use sidestep_sys::{Batch, Process, Stopped, arch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let pid = args.next().ok_or("usage: hammer PID [die|batch]")?.parse()?;
    let how = args.next().unwrap_or_default();
    let process = Process::open(pid)?;
    let batch = if how == "batch" { Some(map(&mut process.stop()?)?) } else { None };
    println!("ready");
    for round in 0u64.. {
        let mut stopped = process.stop()?;
        let times = round as usize % 4 + 1;
        let pids = match &batch {
            Some(batch) => stopped.batch(batch, &vec![(libc::SYS_getpid, [0; 6]); times])?,
            None => (0..times).map(|_| stopped.call(libc::SYS_getpid, [0; 6])).collect::<Result<_, _>>()?,
        };
        if pids != vec![pid as u64; times] {
            return Err(format!("remote calls of getpid returned {pids:?}").into());
        }
        if how == "die" {
            let status = std::process::Command::new("kill").arg("-9").arg(std::process::id().to_string()).status()?;
            return Err(format!("still alive after kill: {status}").into());
        }
        stopped.resume()?;
    }
    Ok(())
}

/// What a batch needs.
fn map(stopped: &mut Stopped) -> Result<Batch, Box<dyn std::error::Error>> {
    let len = Len(4096);
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
    let mut map = |prot: i32| stopped.call(arch::MMAP, [0, len.0, prot as u64, flags, u64::MAX, 0]);
    let list = Va(map(libc::PROT_READ | libc::PROT_WRITE)?);
    let code = Va(map(libc::PROT_READ | libc::PROT_EXEC)?);
    stopped.write(code, arch::BATCH_CODE)?;
    Ok(Batch { code, list, len })
}
