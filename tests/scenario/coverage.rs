//! `sidestep coverage`: its numbers are those of nm, readelf and objdump.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::process::{LIMIT, Output, run};
use sidestep_tests::tool::sidestep;
use sidestep_tests::{build, skip, target};

fn coverage(args: &[&str]) -> Output {
    run(&mut sidestep(&[&["coverage"], args].concat()), LIMIT).ok()
}

/// The numbers of a row of the table, by its name: the first is the count of sites.
#[track_caller]
fn row(output: &Output, name: &str) -> u64 {
    let row = output.stdout.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix("  "));
    let number = row.and_then(|row| row.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no row {name:?}: {output}"))
}

fn output_of(program: &str, args: &[&str], file: &Path) -> String {
    run(Command::new(program).args(args).arg(file), LIMIT).ok().stdout
}

fn hex(word: &str) -> u64 {
    u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{word} is no address"))
}

/// The starts of the functions that readelf finds, in symbols, unwind information and what the
/// linker is told to call. Where no symbol is, nobody calls, and there is a frame from the first
/// instruction on, or others branch to, there is only a part of a function.
fn functions(file: &Path) -> BTreeSet<u64> {
    let symbols = output_of("readelf", &["-sW"], file);
    let symbols = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let symbols = symbols.filter(|w| w.len() > 7 && matches!(w[3], "FUNC" | "IFUNC") && w[6] != "UND");
    let mut all: BTreeSet<u64> = symbols.filter(|w| !w[7].ends_with(".cold")).map(|w| hex(w[1])).collect();
    let frames = output_of("readelf", &["-W", "--debug-dump=frames"], file);
    let code = output_of("objdump", &["-d", "--no-show-raw-insn"], file);
    let called = code.lines().filter_map(|line| line.split_once("call ")?.1.split_whitespace().next());
    let called: BTreeSet<u64> = called.filter_map(|to| u64::from_str_radix(to, 16).ok()).collect();
    let branches: Vec<(u64, u64)> = code.lines().filter_map(branch).collect();
    let mut described: Vec<(u64, u64)> = Vec::new();
    for entry in frames.split(" FDE ").skip(1) {
        let (start, end) = entry.split_once("pc=").and_then(|(_, range)| range.split_once("..")).expect("a range");
        let (start, end) = (hex(start), hex(end.split_whitespace().next().unwrap_or("")));
        described.push((start, end));
        let branched = branches.iter().any(|(from, to)| *to == start && !(start..end).contains(from));
        // An empty line ends it; what describes others may follow.
        let entry = entry.split("\n\n").next().unwrap_or(entry);
        let first = entry.split("DW_CFA_advance_loc").next().unwrap_or(entry);
        if !(first.contains("DW_CFA_def_cfa") || branched) || called.contains(&start) {
            all.insert(start);
        }
    }
    // What nothing describes, but the first code of the program and of its parts, and what is
    // called.
    let is_described = |va: &u64| described.iter().any(|(start, end)| (*start..*end).contains(va));
    all.extend(first_code(file));
    // A weak function that is not there is called at 0.
    all.extend(called.into_iter().filter(|va| *va != 0 && !is_described(va)));
    all
}

/// What the dynamic linker calls: the functions of `DT_INIT` and `DT_FINI`, and those of the
/// arrays.
fn first_code(file: &Path) -> BTreeSet<u64> {
    let dynamic = output_of("readelf", &["-dW"], file);
    let tags = dynamic.lines().filter(|line| line.contains("(INIT)") || line.contains("(FINI)"));
    let mut all: BTreeSet<u64> = tags.map(|line| hex(line.split_whitespace().last().unwrap_or(""))).collect();
    let arrays = output_of("readelf", &["-x", ".init_array", "-x", ".fini_array"], file);
    for line in arrays.lines().filter(|line| line.starts_with("  0x")) {
        // An address, up to four groups of four bytes, and their text.
        let groups: Vec<&str> = line[..line.len().min(48)].split_whitespace().skip(1).collect();
        all.extend(groups.chunks_exact(2).map(|word| hex(&word.concat()).swap_bytes()));
    }
    all
}

/// From where to where a conditional branch goes, of a line of objdump.
fn branch(line: &str) -> Option<(u64, u64)> {
    let (from, insn) = line.trim().split_once(":\t")?;
    let mut words = insn.split_whitespace();
    words.next().filter(|mnemonic| mnemonic.starts_with('j') && *mnemonic != "jmp")?;
    let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
    Some((number(from)?, number(words.next()?)?))
}

/// Addresses and instructions of a function, as objdump prints them.
fn instructions(file: &Path, function: &str) -> usize {
    let text = output_of("objdump", &["-d", "--no-show-raw-insn", &format!("--disassemble={function}")], file);
    text.lines().filter(|line| line.starts_with("  ") && line.contains(":\t")).count()
}

fn stripped(file: &Path, name: &str) -> PathBuf {
    let copy = build::target_dir().join("test-targets").join(format!("{name}.{}", std::process::id()));
    run(Command::new("strip").arg("-o").arg(&copy).arg(file), LIMIT).ok();
    copy
}

#[test]
fn numbers_of_a_small_program() {
    let Some(file) = target("coverage") else { return };
    let name = file.to_str().expect("UTF-8");
    let all = coverage(&["--all-instructions", name]);
    // `breakpoint` has an `int3`, and of `holds_data` only the first instruction is certain.
    let known: usize = ["_start", "jump", "several", "breakpoint"].map(|f| instructions(&file, f)).iter().sum();
    let unnamed = 2;
    assert_eq!(row(&all, "instructions"), (known + unnamed + 1) as u64, "{all}");
    // At the entry that begins with a nop the site is behind that.
    assert_eq!(row(&all, "nop site"), 0, "{all}");
    // `mov $…,%eax` seven times, and the `ret`s that padding follows; that of `unnamed` has nothing
    // behind it.
    assert_eq!(row(&all, "jump"), 7 + 4 + 1, "{all}");
    assert_eq!(row(&all, "refused"), 1, "{all}");
    assert_eq!(row(&all, "data in text"), 1, "{all}");
    assert!(all.stdout.contains(" and 16 bytes between functions"), "{all}");
    assert!(all.stdout.contains("there is a breakpoint already; first at breakpoint+0x5"), "{all}");

    let entries = coverage(&[name]);
    assert_eq!(row(&entries, "entries"), functions(&file).len() as u64, "{entries}");
    assert_eq!(row(&entries, "entries"), 6, "{entries}");
    assert_eq!((row(&entries, "nop site"), row(&entries, "jump over several")), (0, 1), "{entries}");
    assert_eq!(row(&entries, "without a trap"), 6, "{entries}");
}

#[test]
fn entries_are_those_of_readelf() {
    for name in ["counts", "counts-static", "comparator-stripped"] {
        let Some(file) = target(name) else { continue };
        let output = coverage(&[file.to_str().expect("UTF-8")]);
        assert_eq!(row(&output, "entries"), functions(&file).len() as u64, "{name}: {output}");
    }
}

/// Without a symbol table, unwind information tells where functions are.
#[test]
fn stripped_program() {
    let Some(file) = target("coverage") else { return };
    let copy = stripped(&file, "coverage-stripped");
    assert_eq!(output_of("readelf", &["-sW"], &copy).trim(), "");
    let args = ["--all-instructions", copy.to_str().expect("UTF-8")];
    let (output, entries) = (coverage(&args), coverage(&args[1..]));
    let whole = coverage(&["--all-instructions", file.to_str().expect("UTF-8")]);
    std::fs::remove_file(&copy).expect("own file");
    assert_eq!(row(&entries, "entries"), 6, "{entries}");
    for name in ["instructions", "jump", "refused", "without a trap"] {
        assert_eq!(row(&output, name), row(&whole, name), "{name}: {output}");
    }
    // An example has no symbol, but is in a function.
    assert!(output.stdout.contains("there is a breakpoint already; first at sub_"), "{output}");
}

#[test]
fn several_programs_and_their_sum() {
    let (Some(a), Some(b)) = (target("coverage"), target("counts")) else { return };
    let (a, b) = (a.to_str().expect("UTF-8"), b.to_str().expect("UTF-8"));
    let both = coverage(&[a, b]).stdout;
    let (blocks, total) = both.split_once("\nall together\n").expect("a total");
    assert_eq!(blocks.split("\n\n").map(|block| block.lines().next()).collect::<Vec<_>>(), [Some(a), Some(b)]);
    let sum = total.lines().next().and_then(|line| line.split_whitespace().last()?.parse().ok());
    assert_eq!(sum, Some(row(&coverage(&[a]), "entries") + row(&coverage(&[b]), "entries")));
}

/// Python is the judge of the JSON.
#[test]
fn json_says_the_same() {
    const SCRIPT: &str = "
import json, sys
for line in open(sys.argv[1]):
    item = json.loads(line)
    data = item['data']
    assert sum(data['techniques'].values()) + data['refused'] == data['sites']
    assert data['without_trap'] == data['sites'] - data['refused'] - data['techniques']['trap']
    for reason in data.get('reasons', []):
        assert reason['reason'] and reason['example'] and int(reason['address'], 16)
        assert ('rejected' in reason) == (reason['technique'] == 'trap')
    refused = [r['sites'] for r in data.get('reasons', []) if r['technique'] == 'refused']
    assert 'reasons' not in data or sum(refused) == data['refused']
    print(item['type'], data.get('binary'), data['kind'], data['sites'], data['data_in_text']['instructions'])";
    let (Some(a), Some(b)) = (target("coverage"), target("counts")) else { return };
    if !build::installed("python3") {
        return skip("no python3");
    }
    let (a, b) = (a.to_str().expect("UTF-8"), b.to_str().expect("UTF-8"));
    let file = build::target_dir().join("test-targets").join(format!("coverage.json.{}", std::process::id()));
    let name = file.to_str().expect("UTF-8");
    let silent = coverage(&["--all-instructions", "-f", "json", "-o", name, a, b]);
    assert_eq!(silent.stdout, "");
    let said = run(Command::new("python3").args(["-c", SCRIPT, name]), LIMIT).ok().stdout;
    std::fs::remove_file(&file).expect("own file");
    let table = |name| coverage(&["--all-instructions", name]);
    let (of_a, of_b) = (row(&table(a), "instructions"), row(&table(b), "instructions"));
    let data = row(&table(b), "data in text");
    let expected = [
        format!("coverage {a} instructions {of_a} 1"),
        format!("coverage {b} instructions {of_b} {data}"),
        format!("coverage_total None instructions {} {}", of_a + of_b, data + 1),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected);
}

/// A short name means what it means to `list`.
#[test]
fn libraries_by_their_names() {
    let list = run(&mut sidestep(&["list", "libc:malloc"]), LIMIT).ok().stdout;
    let path = list.lines().next().and_then(|line| line.strip_suffix(":malloc")).expect("libc has malloc");
    assert_eq!(coverage(&["c"]).stdout.lines().next(), Some(path));
    assert_eq!(coverage(&["libc"]).stdout, coverage(&[path]).stdout);
}

/// Either class of file, whatever this program was built for.
#[test]
fn a_program_of_32_bits_is_covered() {
    let dir = build::target_dir().join("test-targets");
    std::fs::create_dir_all(&dir).expect("target directory is writable");
    let path = |name: &str| dir.join(format!("{name}.{}", std::process::id()));
    let (source, object, program) = (path("i386.s"), path("i386.o"), path("i386"));
    std::fs::write(
        &source,
        ".globl _start\n.type _start,@function\n_start: inc %eax; pusha; int $0x80; ret\n.size _start,.-_start\n",
    )
    .expect("writable");
    run(Command::new("as").arg("--32").arg(&source).arg("-o").arg(&object), LIMIT).ok();
    run(Command::new("ld").args(["-m", "elf_i386"]).arg(&object).arg("-o").arg(&program), LIMIT).ok();
    let name = program.to_str().expect("UTF-8");
    let lines = coverage(&["--all-instructions", name]).stdout;
    let numbers = |wanted: &str| lines.lines().any(|line| line.split_whitespace().eq(wanted.split(' ')));
    assert!(numbers("instructions 4") && numbers("refused 0 0.000%"), "{lines}");
    for file in [source, object, program] {
        std::fs::remove_file(file).expect("own file");
    }
}

/// Files of arm64 are read on this host, too.
#[test]
fn every_function_of_a_library_of_arm64_gets_a_jump() {
    let library = Path::new("/usr/aarch64-linux-gnu/lib/libc.so.6");
    if !library.exists() {
        skip("no libc6-arm64-cross");
        return;
    }
    let file = library.to_str().expect("text");
    let symbols = output_of("readelf", &["-W", "--dyn-syms"], library);
    let symbols = symbols.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let functions: BTreeSet<u64> = symbols
        .filter(|w| w.len() > 7 && matches!(w[3], "FUNC" | "IFUNC") && w[6] != "UND")
        .map(|w| hex(w[1]))
        .collect();
    let entries = coverage(&[file]);
    assert!(row(&entries, "entries") >= functions.len() as u64, "{} functions: {entries}", functions.len());
    assert_eq!((row(&entries, "trap"), row(&entries, "refused")), (0, 0), "{entries}");
    let all = coverage(&["--all-instructions", file]);
    let (instructions, free) = (row(&all, "instructions"), row(&all, "without a trap"));
    assert!(free * 1000 >= instructions * 995 && instructions > 200_000, "{all}");
    assert!(all.stdout.contains("is in an exclusive sequence, whose store at"), "{all}");
    let explained = run(&mut sidestep(&["explain", &format!("{file}:malloc")]), LIMIT).ok();
    for part in ["stp x29, x30, [sp, #-", "b detour", "returns     at its"] {
        assert!(explained.stdout.contains(part), "{explained}");
    }
    let listed = run(&mut sidestep(&["list", &format!("{file}:mallo?")]), LIMIT).ok();
    assert_eq!(listed.stdout, format!("{file}:malloc\n"));
}
