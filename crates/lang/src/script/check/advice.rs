//! What to do about a name that is not known, or stands where it means nothing.

use super::super::ast::Provider;
use super::super::near::near;
use super::super::types::Type;

/// All functions, to find what a misspelled one was meant to be.
const FUNCTIONS: &[&str] = &[
    "assert",
    "avg",
    "bswap",
    "buf",
    "cat",
    "clear",
    "comptime",
    "container_of",
    "count",
    "delete",
    "errorf",
    "exit",
    "fail",
    "find",
    "getopt",
    "globmatch",
    "has_key",
    "hist",
    "join",
    "latency",
    "len",
    "lhist",
    "macaddr",
    "max",
    "memcmp",
    "min",
    "ntop",
    "offsetof",
    "override",
    "print",
    "printf",
    "pton",
    "reg",
    "signal",
    "signal_name",
    "sizeof",
    "stats",
    "str",
    "str_concat",
    "strcap",
    "strcontains",
    "strerror",
    "strftime",
    "strlen",
    "strncmp",
    "strstr",
    "sum",
    "syscall_name",
    "system",
    "time",
    "tseries",
    "uaddr",
    "ustack",
    "usym",
    "warnf",
    "write_user",
    "zero",
];

/// All names with a value, the same way.
const VALUES: &[&str] = &[
    "arg0",
    "args",
    "caller",
    "comm",
    "cpid",
    "cpu",
    "numaid",
    "elapsed",
    "func",
    "gid",
    "goid",
    "has_cpid",
    "leader_comm",
    "leader_tid",
    "ncpus",
    "nsecs",
    "pcomm",
    "pid",
    "ppid",
    "probe",
    "probetype",
    "rand",
    "retval",
    "self",
    "tid",
    "uid",
    "usermode",
    "username",
    "ustack",
];

/// Is it the name of a value that takes no arguments and has no members, so that it may be written
/// as a call?
pub(super) fn is_plain_value(name: &str) -> bool {
    VALUES.contains(&name) && !["arg0", "args", "self", "ustack"].contains(&name)
}

/// Whether the language has a function or value of this name.
pub(super) fn is_known(name: &str) -> bool {
    FUNCTIONS.contains(&name) || VALUES.contains(&name)
}

/// What to write instead of a function that is not there.
pub(super) fn function(name: &str) -> Option<String> {
    if VALUES.contains(&name) {
        return Some(format!("{name} is a value, without parentheses"));
    }
    match name {
        "quantize" => Some(String::from("hist() is what DTrace calls quantize()")),
        "lquantize" => Some(String::from("lhist() is what DTrace calls lquantize()")),
        "copyinstr" | "user_string" => Some(String::from("str() reads a text from the program's memory")),
        "print_ubacktrace" | "backtrace" => Some(String::from("print(ustack) prints the call stack")),
        "exec" => Some(String::from("system(…) runs a command")),
        "strcmp" => Some(String::from("texts are compared with == and !=")),
        _ => near(name, FUNCTIONS).map(|near| format!("did you mean {near}()?")),
    }
}

/// What to write instead of a name that is not there.
pub(super) fn value(name: &str) -> Option<String> {
    if FUNCTIONS.contains(&name) {
        return Some(format!("{name} is a function: {name}(…)"));
    }
    if name.strip_prefix("sarg").is_some_and(|n| n.parse::<u32>().is_ok()) {
        return Some(String::from("arguments on the stack are arg6 to arg9"));
    }
    match name {
        "timestamp" => Some(String::from("nsecs is the time, in nanoseconds")),
        "execname" => Some(String::from("comm is the name of the thread")),
        _ => match near(name, VALUES) {
            Some(near) => Some(format!("did you mean '{near}'?")),
            None => Some(String::from("variables begin with $, maps with @")),
        },
    }
}

/// What to do where `argN` is wanted and there are none.
pub(super) fn argument(name: &str, at: &[Provider]) -> Option<String> {
    at.contains(&Provider::Uretprobe)
        .then(|| format!("keep it at the uprobe of the same function: self.x = {name}; here it is self.x then"))
}

/// What to do where a number is and a text is wanted.
pub(super) fn text(ty: &Type) -> Option<String> {
    ty.is_int().then(|| String::from("str(…) is the text at an address, str($1) an argument of the script"))
}

#[cfg(test)]
mod tests {
    use super::super::super::{check, parser};
    use super::*;

    #[test]
    fn what_is_proposed_is_there() {
        for name in FUNCTIONS {
            let Ok(script) = parser::parse(&format!("BEGIN {{ $x = {name}(); }}"), &[]) else { continue };
            let said = format!("{:?}", check::check(&script, &[]).err());
            assert!(!said.contains("Unknown"), "{name}: {said}");
        }
        for name in VALUES {
            let script = parser::parse(&format!("BEGIN {{ $x = {name}; }}"), &[]).expect("it is a name");
            let said = format!("{:?}", check::check(&script, &[]).err());
            assert!(!said.contains("Unknown"), "{name}: {said}");
        }
    }

    /// The reference for users.
    fn reference() -> String {
        let guide = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide"));
        let files = std::fs::read_dir(guide.join("language")).expect("docs/guide/language").flatten();
        files.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect()
    }

    /// Whether the reference has an entry with an example, which `tests/documents` runs.
    fn has_entry(reference: &str, title: &str, name: &str) -> bool {
        let entry = reference.split_once(&format!("\n### `{title}`\n")).map(|(_, rest)| rest);
        let entry = entry.and_then(|rest| rest.split("\n### ").next()).unwrap_or_default();
        let example = entry.split_once("```console\n").map(|(_, rest)| rest);
        example.and_then(|rest| rest.split("```").next()).is_some_and(|example| example.contains(name))
    }

    #[test]
    fn the_reference_has_all_names() {
        let reference = reference();
        let functions = FUNCTIONS.iter().map(|name| (format!("{name}()"), *name));
        let values = VALUES.iter().map(|name| ((*name).to_owned(), *name));
        let settings = super::super::super::config::SETTINGS.map(|setting| (setting.name.to_owned(), setting.name));
        // `ustack` is a value that takes arguments.
        let all = functions.filter(|(_, name)| !VALUES.contains(name)).chain(values).chain(settings);
        let missing: Vec<String> =
            all.filter(|(title, name)| !has_entry(&reference, title, name)).map(|(title, _)| title).collect();
        assert!(missing.is_empty(), "docs/guide/language has no entry with an example for {missing:?}");
        assert!(!has_entry(&reference, "no_such()", "no_such"));
    }

    #[test]
    fn misspelled_names() {
        assert_eq!(function("prinft").as_deref(), Some("did you mean printf()?"));
        assert_eq!(function("args").as_deref(), Some("args is a value, without parentheses"));
        assert_eq!(value("nsec").as_deref(), Some("did you mean 'nsecs'?"));
        assert_eq!(value("whatever").as_deref(), Some("variables begin with $, maps with @"));
    }
}
