//! A PostgreSQL of one's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{LIMIT, eventually, run};

/// postgres does not run as root.
pub const NOBODY: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Where the programs of postgres are.
pub fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    versions.map(|entry| entry.path().join("bin")).find(|bin| bin.join("postgres").is_file())
}

/// Makes an empty database; gives its folder.
///
/// # Panics
/// If it cannot be made.
pub fn database(bin: &Path, name: &str) -> String {
    let data = format!("/tmp/sidestep-postgres-{name}-{}", std::process::id());
    let make = ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-U", "nobody", "-D", &data];
    run(Command::new(NOBODY[0]).args(&NOBODY[1..]).arg(bin.join("initdb")).args(make), LIMIT).ok();
    data
}

/// A command that runs the server of a database, which listens at a socket in its folder.
pub fn server(bin: &Path, data: &str) -> Command {
    let mut server = Command::new(NOBODY[0]);
    server.args(&NOBODY[1..]).arg(bin.join("postgres")).args(["-D", data, "-k", data, "-c", "listen_addresses="]);
    server
}

/// Waits until the server of a database takes clients: it refuses them for some time after its
/// socket is there.
pub fn is_up(data: &str) -> bool {
    let asks = ["-XAtq", "-h", data, "-U", "nobody", "-c", "select 1", "postgres"];
    eventually(LIMIT, || run(Command::new("psql").args(asks), LIMIT).code() == 0)
}

/// A command that runs a client, which says that it is ready and takes queries.
pub fn client(data: &str) -> Command {
    let mut client = Command::new("/bin/sh");
    client.args(["-c", &format!("echo ready; exec psql -XAtq -h {data} -U nobody postgres")]);
    client
}
