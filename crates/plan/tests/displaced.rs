//! Every instruction of every function of real programs has a copy elsewhere.

mod elf;

use std::collections::BTreeMap;

use sidestep_isa::emulate::prepare;
use sidestep_isa::{RelocateError, Va, relocated_len, sweep};

struct Sweep {
    instructions: usize,
    /// Reasons, how often, and an example.
    refused: BTreeMap<String, (usize, String)>,
    may_fault: usize,
    /// A trap handler needs no copy of them.
    emulated: usize,
    /// Bytes of functions, and those behind the first that is no instruction.
    bytes: usize,
    data: usize,
}

/// What has no copy in the functions of a program: `None` if it is not installed.
fn swept(path: &str) -> Option<Sweep> {
    let data = elf::installed(path)?;
    let elf = elf::parse(&data);
    let mut extents = elf.code.extents.clone();
    extents.retain(|extent| extent.len.0 > 0);
    extents.sort_by_key(|extent| (extent.start, std::cmp::Reverse(extent.len)));
    let mut all = Sweep { instructions: 0, refused: BTreeMap::new(), may_fault: 0, emulated: 0, bytes: 0, data: 0 };
    let mut done = Va(0);
    for extent in extents {
        let start = extent.start.max(done);
        let end = extent.start.plus(extent.len);
        let Some(code) = elf.code.text_from(start) else { continue };
        let len = usize::try_from(end.since(start)).unwrap_or(0).min(code.len());
        done = done.max(end);
        // Data between instructions does not decode for long: what follows the first error is
        // another's matter.
        all.bytes += len;
        all.data += len;
        for insn in sweep(elf.code.isa, &code[..len], start).map_while(Result::ok) {
            all.data -= insn.len();
            all.instructions += 1;
            all.may_fault += usize::from(insn.may_fault());
            let bytes = &code[insn.va().since(start) as usize..][..insn.len()];
            all.emulated += usize::from(prepare(elf.code.isa, bytes).is_some());
            match relocated_len(elf.code.isa, bytes, insn.va()) {
                Ok(_) => {}
                Err(RelocateError::Unsupported { at, why }) => {
                    let (count, example) = all.refused.entry(why.to_string()).or_default();
                    *count += 1;
                    *example = format!("{at}: {insn}");
                }
                Err(error) => panic!("{path}: {error}"),
            }
        }
    }
    Some(all)
}

#[test]
fn nothing_is_refused_in_real_programs() {
    for path in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/lib/x86_64-linux-gnu/libstdc++.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/usr/bin/redis-server",
        "/usr/bin/python3",
        "/bin/bash",
        "/usr/bin/git",
        "/usr/bin/perf",
        "/bin/busybox",
        "/usr/i686-linux-gnu/lib/libc.so.6",
        "/usr/i686-linux-gnu/lib/libm.so.6",
        "/usr/i686-linux-gnu/lib/libstdc++.so.6",
        "/usr/i686-linux-gnu/lib/ld-linux.so.2",
    ] {
        let Some(sweep) = swept(path) else {
            eprintln!("{path}: not installed");
            continue;
        };
        let Sweep { instructions, refused, may_fault, emulated, bytes, data } = sweep;
        println!(
            "{path}: {instructions} instructions, {may_fault} may fault, {emulated} can be emulated, refused: {refused:?}; {data} of {bytes} bytes are data"
        );
        assert!(refused.is_empty(), "{path}: {refused:?}");
        assert!(instructions > 10_000, "{path}: the test found {instructions} instructions");
        assert!(data * 20 < bytes, "{path}: {data} of {bytes} bytes were not looked at");
    }
}
