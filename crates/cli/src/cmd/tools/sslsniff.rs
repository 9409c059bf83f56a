//! `sslsniff`: what goes through TLS, as plain text.

use super::{Tool, quoted};
use crate::flags::Output;
use crate::flags::tools::{Run, Sslsniff};
use crate::out::script::{Layout, Shown};

/// Functions with (connection, buffer, length, …) that return how many bytes it was, or a negative number: their objects,
/// names, and what they are called.
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

/// The same with a place for the number of bytes as fourth argument; they return 1 if there were any.
const CALLS_EX: &[(&str, &str, &str)] =
    &[("libssl", "SSL_write_ex", "WRITE/SEND"), ("libssl", "SSL_read_ex", "READ/RECV")];

/// What NSPR reads and writes (`prio.h`). A file or socket itself has nothing below; TLS is a layer on top of one.
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

    fn wants(&self, object: &str) -> bool {
        !match object {
            "libssl" => self.no_openssl,
            "libgnutls" => self.no_gnutls,
            _ => self.no_nss,
        }
    }

    /// A call: when it returns `len` bytes.
    fn call(&self, (object, function, name): (&str, &str, &str), is_ex: bool) -> String {
        let comm = self.comm.as_ref().map(|comm| format!(" && comm == {}", quoted(comm))).unwrap_or_default();
        let (size, len) = match is_ex {
            true => ("; self.size = arg3", "*(uint64 *)self.size"),
            false => ("", "retval"),
        };
        let is_tls = if object == "libnspr4" { format!("/{}/ ", NSPR.1) } else { String::new() };
        let values: Vec<String> = self
            .columns()
            .iter()
            .map(|column| match *column {
                "func" => format!("\"{name}\""),
                "elapsed_ns" => "elapsed".to_owned(),
                "len" => "$len".to_owned(),
                "latency_ns" => "latency()".to_owned(),
                "data" => "buf(self.buffer, $len)".to_owned(),
                other => other.to_owned(),
            })
            .collect();
        let formats: Vec<&str> = values
            .iter()
            .map(|value| match value.as_str() {
                "comm" => "%s",
                value if value.starts_with('"') => "%s",
                value if value.starts_with("buf") => "%r",
                _ => "%d",
            })
            .collect();
        let print = format!("printf(\"{}\\n\", {})", formats.join(" "), values.join(", "));
        format!(
            "u:{object}:{function} {is_tls}{{ self.buffer = arg1{size} }}\n\
             ur:{object}:{function} /self.buffer != 0 && (int32)retval > 0{comm}/ {{ $len = {len}; {print} }}\n"
        )
    }
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
        let calls = CALLS.iter().map(|call| (call, false)).chain(CALLS_EX.iter().map(|call| (call, true)));
        let blocks: String =
            calls.filter(|(call, _)| self.wants(call.0)).map(|(call, is_ex)| self.call(*call, is_ex)).collect();
        if blocks.is_empty() {
            return Err("no library is left: one of OpenSSL, GnuTLS and NSS is needed".to_owned());
        }
        let config =
            format!("print_maps_on_exit = false, missing_probes = \"ignore\", max_strlen = {}", self.max_buffer_size);
        let structs = if self.wants("libnspr4") { NSPR.0 } else { "" };
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
    fn heading(&self, _probes: usize) -> String {
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

    fn line(&self, values: &[Shown]) -> Option<String> {
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
                    let text =
                        if self.hexdump { hexadecimal(bytes) } else { String::from_utf8_lossy(bytes).into_owned() };
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
