//! `sslsniff`: what goes through TLS, as plain text.

use super::{Tool, quoted, spec};
use crate::flags::Output;
use crate::flags::tools::{Run, Sslsniff};
use crate::out::escape;
use crate::out::script::{Layout, Shown};

/// Functions with (connection, buffer, length, …) that return how many bytes it was, or a negative
/// number: their objects, names, and what they are called.
const CALLS: &[(&str, &str, &str)] = &[
    ("libssl", "SSL_write", "WRITE/SEND"),
    ("libssl", "SSL_read", "READ/RECV"),
    ("libgnutls", "gnutls_record_send", "WRITE/SEND"),
    ("libgnutls", "gnutls_record_recv", "READ/RECV"),
    ("libnspr4", "PR_Write", "WRITE/SEND"),
    ("libnspr4", "PR_Send", "WRITE/SEND"),
    ("libnspr4", "PR_Read", "READ/RECV"),
    ("libnspr4", "PR_Recv", "READ/RECV"),
];

/// The same with a place for the number of bytes as fourth argument; they return 1 if there were
/// any.
const CALLS_EX: &[(&str, &str, &str)] =
    &[("libssl", "SSL_write_ex", "WRITE/SEND"), ("libssl", "SSL_read_ex", "READ/RECV")];

/// What NSPR reads and writes (`prio.h`). A file or socket itself has nothing below; TLS is a layer
/// on top of one.
const NSPR: (&str, &str) =
    ("struct PRFileDesc { void *methods; void *secret; void *lower; };", "((struct PRFileDesc *)arg0)->lower != 0");

impl Sslsniff {
    fn columns(&self) -> Vec<&'static str> {
        let mut columns = vec!["func", "elapsed_ns", "comm", "pid", "len"];
        if self.extra {
            columns.extend(["uid", "tid"]);
        }
        if self.latency {
            columns.push("latency_ns");
        }
        columns.push("data");
        columns
    }

    /// Where the functions of a library are: in what `--extra-lib` names, or (not `extra`) in what
    /// the process has mapped.
    fn objects(&self, library: &str, extra: bool) -> Result<Vec<String>, String> {
        let (kind, unwanted) = match library {
            "libssl" => ("openssl", self.no_openssl),
            "libgnutls" => ("gnutls", self.no_gnutls),
            _ => ("nss", self.no_nss),
        };
        if !extra {
            return Ok(if unwanted { Vec::new() } else { vec![library.to_owned()] });
        }
        let mut objects = Vec::new();
        for extra in &self.extra_lib {
            match extra.split_once(':') {
                Some((of, file)) if of == kind && !file.is_empty() => objects.push(file.to_owned()),
                Some(("openssl" | "gnutls" | "nss", file)) if !file.is_empty() => {}
                _ => return Err(format!("--extra-lib {extra}: expected openssl:FILE, gnutls:FILE or nss:FILE")),
            }
        }
        Ok(objects)
    }

    /// Handshakes: their calls have no data.
    fn handshake(&self, object: &str) -> Result<String, String> {
        let values = self.values("HANDSHAKE", "0", "buf(self.connection, 0)");
        let (entry, exit) = points(object, "SSL_do_handshake")?;
        let filter = self.filter("retval == 1");
        Ok(format!("{entry} {{ self.connection = arg0 }}\n{exit} /{filter}/ {{ {} }}\n", print(&values)))
    }

    fn filter(&self, of: &str) -> String {
        let comm = self.comm.as_ref().map(|comm| format!(" && comm == {}", quoted(comm))).unwrap_or_default();
        let uid = self.uid.map(|uid| format!(" && uid == {uid}")).unwrap_or_default();
        format!("(int32){of}{comm}{uid}")
    }

    /// Of the columns.
    fn values(&self, name: &str, len: &str, data: &str) -> Vec<String> {
        let value = |column: &&str| match *column {
            "func" => format!("\"{name}\""),
            "elapsed_ns" => "elapsed".to_owned(),
            "len" => len.to_owned(),
            "latency_ns" => "latency()".to_owned(),
            "data" => data.to_owned(),
            other => other.to_owned(),
        };
        self.columns().iter().map(value).collect()
    }

    /// A call: when it returns `len` bytes.
    fn call(&self, object: &str, function: &str, name: &str, is_ex: bool) -> Result<String, String> {
        let (size, len) = match is_ex {
            true => ("; self.size = arg3", "*(uint64 *)self.size"),
            false => ("", "retval"),
        };
        // Of NSPR, connections with TLS only.
        let is_tls = if function.starts_with("PR_") { format!("/{}/ ", NSPR.1) } else { String::new() };
        let values = self.values(name, "$len", "buf(self.buffer, $len)");
        let (entry, exit) = points(object, function)?;
        let (filter, print) = (self.filter("retval > 0"), print(&values));
        Ok(format!(
            "{entry} {is_tls}{{ self.buffer = arg1{size} }}\n\
             {exit} /self.buffer != 0 && {filter}/ {{ $len = {len}; {print} }}\n"
        ))
    }
}

/// Entry and return of a function.
fn points(object: &str, function: &str) -> Result<(String, String), String> {
    let point = |provider| spec::point(provider, object, function, false);
    Ok((point("uprobe")?, point("uretprobe")?))
}

/// A line of values.
fn print(values: &[String]) -> String {
    let format = |value: &String| match value.as_str() {
        "comm" => "%s",
        value if value.starts_with('"') => "%s",
        value if value.starts_with("buf") => "%r",
        _ => "%d",
    };
    let formats: Vec<&str> = values.iter().map(format).collect();
    format!("printf(\"{}\\n\", {})", formats.join(" "), values.join(", "))
}

impl Tool for Sslsniff {
    const NAME: &'static str = "sslsniff";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        let mut blocks = String::new();
        // What the user has named comes first: if nothing is found at all, it is what the message
        // is about.
        for extra in [true, false] {
            let calls = CALLS.iter().map(|call| (call, false)).chain(CALLS_EX.iter().map(|call| (call, true)));
            for ((library, function, name), is_ex) in calls {
                for object in self.objects(library, extra)? {
                    blocks += &self.call(&object, function, name, is_ex)?;
                }
            }
            if self.handshake {
                for object in self.objects("libssl", extra)? {
                    blocks += &self.handshake(&object)?;
                }
            }
        }
        if blocks.is_empty() {
            return Err("no library is left: one of OpenSSL, GnuTLS and NSS is needed".to_owned());
        }
        let config =
            format!("print_maps_on_exit = false, missing_probes = \"ignore\", max_strlen = {}", self.max_buffer_size);
        let structs = if blocks.contains(NSPR.1) { NSPR.0 } else { "" };
        Ok(format!("{structs}\nconfig = {{ {} }}\n{blocks}", config.replace(", ", "; ")))
    }

    fn layout(&self) -> Box<dyn Layout> {
        Box::new(Calls { columns: self.columns(), hexdump: self.hexdump })
    }
}

struct Calls {
    columns: Vec<&'static str>,
    hexdump: bool,
}

impl Layout for Calls {
    fn heading(&self) -> String {
        let mut line = format!("{:<12} {:<18} {:<16} {:<7} {:<6}", "FUNC", "TIME(s)", "COMM", "PID", "LEN");
        for (column, text) in [("uid", "UID"), ("tid", "TID"), ("latency_ns", "LAT(ms)")] {
            if self.columns.contains(&column) {
                line.push_str(&format!(" {text:<7}"));
            }
        }
        line
    }

    fn columns(&self) -> &[&str] {
        &self.columns
    }

    fn line(&mut self, values: &[Shown], _json: bool) -> Option<String> {
        let mut out = String::new();
        let mut len = 0;
        for (name, value) in self.columns.iter().zip(values) {
            match (*name, value) {
                ("func", value) => out.push_str(&format!("{:<12}", value.text())),
                ("elapsed_ns", Shown::Int(ns)) => out.push_str(&format!(" {:<18.9}", *ns as f64 / 1e9)),
                ("comm", value) => out.push_str(&format!(" {:<16}", value.text())),
                ("len", Shown::Int(bytes)) => {
                    len = usize::try_from(*bytes).ok()?;
                    out.push_str(&format!(" {len:<6}"));
                }
                ("latency_ns", Shown::Int(ns)) => out.push_str(&format!(" {:<7.3}", *ns as f64 / 1e6)),
                ("data", Shown::Bytes(bytes)) => {
                    let lost = len.saturating_sub(bytes.len());
                    let end = if lost > 0 { format!(" (TRUNCATED, {lost} bytes lost)") } else { String::new() };
                    let text = if self.hexdump { hexadecimal(bytes) } else { escape::block(bytes) };
                    out.push_str(&format!("\n----- DATA -----\n{text}\n----- END DATA{end} -----\n\n"));
                }
                (_, value) => out.push_str(&format!(" {:<7}", value.text())),
            }
        }
        Some(out)
    }
}

/// Lines of 16 bytes.
fn hexadecimal(bytes: &[u8]) -> String {
    let line = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(16).map(line).collect::<Vec<_>>().join("\n")
}
