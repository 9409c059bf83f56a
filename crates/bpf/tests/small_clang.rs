//! What becomes of small programs of clang at a site, in its registers.

mod run;

use std::path::Path;
use std::process::Command;

use run::{Buffer, CELLS, Native, disassemble, run_inline};
use sidestep_bpf::Imm64;
use sidestep_bpf::native::x86_64::{Code, CompileError, Env, Shape, Site, compile};
use sidestep_bpf::object::Object;
use sidestep_bpf::pass::{Link, Values, filter};
use sidestep_bpf::verify::{Rules, Verified, verify};
use sidestep_isa::x86::emit::Reg;

/// Programs by name, linked: the counters are the buffer's first words, the histogram is somewhere
/// behind.
fn programs(cpu: &str) -> Vec<(String, Verified)> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/object/small.c");
    let object = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("small-{cpu}.bpf.o"));
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-g", "-O2", &format!("-mcpu={cpu}"), "-c"]).arg(source).arg("-o").arg(&object);
    let status = clang.status().unwrap_or_else(|e| panic!("clang does not start ({e}): install the package clang"));
    assert!(status.success());
    let object = Object::parse(&std::fs::read(object).unwrap()).unwrap();
    let maps = object.map_shapes();
    let rules = Rules { maps: &maps, ..Rules::default() };
    let links: Vec<Link> = (maps.iter().zip([0, 4096]))
        .map(|(map, at)| Values { base: Imm64::Thread(at), stride: 8, entries: map.max_entries })
        .map(|values| Link { map: 1, values: Some(values) })
        .collect();
    let link = |program| verify(program, &rules).unwrap().link(&links).unwrap();
    object.programs.iter().map(|p| (p.name.clone(), link(&p.program))).collect()
}

fn site() -> Site {
    Site { dead: 1 | Reg::R10.bit() | Reg::R11.bit(), cells: Some(Reg::R9), sp: 0, ip: 0, cookie: None }
}

fn shaped(verified: &Verified, shape: Shape) -> Result<Code, CompileError> {
    compile(&verified.program, &verified.facts, &Env { cells: CELLS, ..Env::default() }, shape)
}

#[test]
fn they_are_as_short_as_by_hand() {
    for cpu in ["v2", "v3"] {
        for (name, verified) in programs(cpu) {
            let inlined = shaped(&verified, Shape::Inline(site())).map(|code| disassemble(&code.bytes));
            let want: &[&str] = match name.as_str() {
                "count" => &["addq $1,8(%r9)"],
                "sum_of_large" => &["cmp $0x41,%rsi", "jb 0x000000000000000A", "add %rsi,0x10(%r9)"],
                "sizes" => {
                    // A few for the bucket, three to count.
                    assert!(inlined.unwrap().len() <= 14);
                    continue;
                }
                "by_low_bits" => {
                    let inlined = inlined.unwrap();
                    assert!(inlined.len() <= 9 && !inlined.iter().any(|i| i.contains("rsp")), "{inlined:#?}");
                    continue;
                }
                "large_calls" => {
                    assert!(inlined.is_err());
                    let filter = shaped(&filter(&verified).unwrap(), Shape::Filter(site())).unwrap();
                    assert_eq!(
                        (filter.go.len(), disassemble(&filter.bytes).len()),
                        (2, 4),
                        "{:#?}",
                        disassemble(&filter.bytes)
                    );
                    continue;
                }
                other => panic!("{other}"),
            };
            assert_eq!(inlined.unwrap(), want, "{cpu} {name}");
            assert!(verified.facts.reentrant && verified.facts.helpers.is_empty());
        }
    }
}

/// In the detour and as a function they do the same.
#[test]
fn they_count_what_they_should() {
    const SIZE: usize = 4096 / 8 + 976;
    for cpu in ["v2", "v3"] {
        for (name, verified) in programs(cpu) {
            let Ok(inlined) = shaped(&verified, Shape::Inline(site())) else { continue };
            let function = Native::new(&shaped(&verified, Shape::Function).unwrap());
            let arguments = [0, 1, 2, 5, 6, 7, 8, 63, 64, 65, 1000, 1 << 31, u64::MAX, u64::MAX << 32 | 6];
            for (di, si) in arguments.into_iter().flat_map(|a| arguments.map(|b| (a, b))) {
                let mut want = vec![0u64; SIZE];
                match name.as_str() {
                    "count" => want[1] = 1,
                    "sum_of_large" => want[2] = if si > 64 { si } else { 0 },
                    "sizes" => want[512 + sidestep_wire::Histogram::bucket(di)] = 1,
                    _ => {
                        let key = (si as i32 >> 1) as usize;
                        if key < 4 {
                            want[key] = 3u64.wrapping_neg();
                        }
                    }
                }
                let mut cells = vec![0u64; SIZE];
                let mut machine = [0; 16];
                (machine[7], machine[6], machine[2], machine[9]) = (di, si, si, cells.as_mut_ptr() as u64);
                run_inline(&inlined.bytes, &mut machine);
                assert_eq!(cells, want, "{cpu} {name} {di:#x} {si:#x}");
                let mut cells = vec![0u64; SIZE];
                let mut context: Buffer = [0; 32];
                (context[14], context[13], context[12]) = (di, si, si);
                function.run_on(&mut context, &mut cells);
                assert_eq!(cells, want, "{cpu} {name} {di:#x} {si:#x}");
            }
        }
    }
}
