//! The same values as bpftool prints them, from maps that libbpf made of the same object.

use std::path::Path;
use std::process::{Command, Output};

use sidestep_bpf::dump::{MapForm, Style, placed_types};
use sidestep_bpf::object::Object;

use super::kernel::say;
use super::{map, types};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!(" {b:02x}")).collect()
}

/// Runs a script with a file system for maps that ends with it: in a mount namespace of its own.
fn run(script: &str, object: &Path) -> std::io::Result<Output> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dump-bpffs");
    std::fs::create_dir_all(&dir)?;
    let script = format!("set -e; PATH=$PATH:/usr/sbin; mount -t bpf bpf \"$DIR\"; cd \"$DIR\"; mkdir maps\n{script}");
    let mut unshare = Command::new("unshare");
    unshare.args(["-m", "sh", "-c", &script]).env("DIR", dir).env("OBJECT", object);
    unshare.output()
}

/// `["0x01",…]`
fn bytes(list: &str) -> Vec<u8> {
    let digits = |part: &str| u8::from_str_radix(part.trim_matches('"').trim_start_matches("0x"), 16).unwrap();
    list.split(',').map(digits).collect()
}

/// What lies between the first `start` and the next `end`, and what follows.
fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(start)?.1.split_once(end)
}

/// Values for `struct all`: bits of all kinds, and names and texts that bpftool knows.
fn values(len: usize) -> Vec<Vec<u8>> {
    let mut state = 7u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let mut values = vec![vec![0; len], vec![0xff; len], vec![0x80; len], vec![1; len], vec![b'a'; len]];
    values.extend((0..20).map(|_| (0..len).map(|_| random()).collect()));
    values.extend((0..20).map(|n| (0..len).map(|i| if i % 8 < n % 8 { b'a' + (i % 8) as u8 } else { 0 }).collect()));
    values.push((0..len).map(|i| if i % 4 == 0 { 5 } else { 0 }).collect());
    values.push(vec![100; len]);
    // bpftool reads the bool at the end as four bytes; what is behind it is padding.
    for value in &mut values {
        let last = len - 16;
        value[last] &= 1;
        value[last + 1..].fill(0);
    }
    values
}

#[test]
fn bpftool_prints_the_same() {
    let path = types("bpftool");
    let file = std::fs::read(&path).unwrap();
    let (object, btf) = (Object::parse(&file).unwrap(), placed_types(&file).unwrap());
    let len = map(&object, "all").map.value_size as usize;
    let mut script = "bpftool prog load \"$OBJECT\" prog pinmaps maps >&2\n".to_owned();
    for (n, value) in values(len).iter().enumerate() {
        let key = [n as u8, 0, 0xff, n as u8];
        script += &format!("bpftool map update pinned maps/all key hex{} value hex{}\n", hex(&key), hex(value));
    }
    script += "bpftool map update pinned maps/plain key hex 01 02 03 04 value hex 0a 0b 0c\n";
    script += "for m in all each plain; do echo \"== $m\"; bpftool -j map dump pinned maps/$m; done\n";
    // libbpf puts the name of the object before theirs, and pins no dots.
    script += "for m in data bss rodata; do echo \"== .$m\"; bpftool -j map dump pinned maps/*_$m; done\n";
    let unprepared = match run("bpftool version", &path) {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    };
    if let Some(why) = unprepared {
        say(&format!("NOT COMPARED with bpftool: install the package bpftool and run as root: {why}\n"));
        return;
    }
    let output = run(&script, &path).unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{said}");
    let mut compared = Vec::new();
    for part in out.split("== ").skip(1) {
        let (name, dump) = part.split_once('\n').unwrap();
        let form = MapForm::of(map(&object, name), btf.as_ref());
        let entries: Vec<&str> = dump.split("{\"key\":[").skip(1).collect();
        for entry in &entries {
            let entry = entry.trim_end().trim_end_matches([',', ']']);
            let (key, rest) = entry.split_once(']').unwrap();
            let (key, typed) = (bytes(key), rest.split_once("\"formatted\":"));
            // An entry without types is closed by one brace; one with types ends with that of what
            // is formatted.
            let theirs = typed.map(|(_, typed)| typed.strip_suffix('}').unwrap());
            let ours = if rest.starts_with(",\"values\"") {
                let mut values = Vec::new();
                let mut rest = typed.map_or(rest, |(raw, _)| raw);
                while let Some((list, after)) = between(rest, "\"value\":[", "]") {
                    values.push(bytes(list));
                    rest = after;
                }
                let numbered = values.iter().enumerate().map(|(cpu, value)| (cpu as u64, value.as_slice()));
                form.entry_by(Style::Json, &key, "cpu", numbered).unwrap()
            } else {
                let (value, _) = between(rest, "\"value\":[", "]").unwrap();
                form.entry(Style::Json, &key, &bytes(value)).unwrap()
            };
            match theirs {
                Some(theirs) => assert_eq!(ours, theirs, "{name}"),
                None => assert_eq!(ours, format!("{{\"key\":[{entry}"), "{name}"),
            }
        }
        compared.push((name, entries.len()));
    }
    let expected = [("all", values(len).len()), ("each", 2), ("plain", 1), (".data", 1), (".bss", 1), (".rodata", 1)];
    assert_eq!(compared, expected, "{out}");
}
