//! Lines of source files, as the compiler wrote them down.

mod support;

use std::collections::BTreeSet;

use sidestep_isa::Va;
use sidestep_symbols::Object;
use support::{compile, hex, run, scratch, str};

/// A line of one function, one that is inlined into two, and some without code.
const LINES: &str = "\
int use(int x) { __asm__ volatile(\"\" : \"+r\"(x)); return x; }
static inline int twice(int x)
{
    return use(x) * 2;
}

int one(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += twice(i);
    return sum;
}
int two(int n) { return twice(n) + 1; }
int main(int argc, char **argv) { (void)argv; return one(argc) + two(argc); }
";

/// binutils is the oracle: readelf shows the addresses of a line, and addr2line the function of an
/// address.
#[test]
fn lines_are_where_readelf_says() {
    let dir = scratch("lines");
    for flags in
        [&["-g", "-O0"][..], &["-g", "-O2"], &["-gdwarf-4", "-O1"], &["-gdwarf-2", "-O1"], &["-g", "-gz", "-O1"]]
    {
        let program = compile(&dir, "lines.c", LINES, &[flags, &["-fno-ipa-icf"]].concat());
        let table = run("readelf", &["--debug-dump=decodedline", str(&program)]);
        let object = Object::open(&program, &[]).unwrap();
        for line in [1, 4, 9, 11, 14, 15] {
            // File, line, address, and for statements an x.
            let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
            let shown: BTreeSet<u64> = rows
                .filter(|row| row.len() >= 4 && row[0] == "lines.c" && row[1] == line.to_string())
                .filter(|row| row.last() == Some(&"x"))
                .map(|row| hex(row[2]))
                .collect();
            let name_of = |va: u64| object.function_at(Va(va)).unwrap().0.name.to_string();
            let mut wanted: Vec<(String, u64)> = Vec::new();
            for va in &shown {
                if !wanted.iter().any(|(name, _)| *name == name_of(*va)) {
                    wanted.push((name_of(*va), *va));
                }
            }
            match object.line("lines.c", line, None) {
                Ok(found) => {
                    let found: Vec<u64> = found.iter().map(|va| va.0).collect();
                    assert_eq!(found, wanted.iter().map(|(_, va)| *va).collect::<Vec<_>>(), "{flags:?} line {line}");
                }
                Err(error) => assert!(shown.is_empty(), "{flags:?} line {line}: {error}\n{table}"),
            }
        }
        assert!(
            object.line("lines.c", 4, None).unwrap().len() >= if flags.contains(&"-O0") { 1 } else { 2 },
            "{flags:?}"
        );
        let error = |file: &str, line| object.line(file, line, None).unwrap_err().to_string();
        assert!(
            error("lines.c", 6).ends_with("; the next line with code is 7") || error("lines.c", 6).contains("is 8")
        );
        assert!(error("line.c", 4).contains("did you mean `lines.c`?"), "{}", error("line.c", 4));
    }
}

#[test]
fn columns_of_a_line() {
    let dir = scratch("columns");
    let text = "int g;\nint f(int a) { g += a; return g * 2; }\nint main(void) { return f(1); }\n";
    let program = compile(&dir, "columns.c", text, &["-g", "-O0"]);
    let object = Object::open(&program, &[]).unwrap();
    let row = text.lines().nth(1).unwrap();
    let begins_at = |word: &str| object.line("columns.c", 2, Some(row.find(word).unwrap() as u64 + 1)).unwrap();
    let (function, sum, result) = (begins_at("{"), begins_at("+="), begins_at("* 2"));
    assert_eq!(function, object.line("columns.c", 2, None).unwrap());
    assert!(function < sum && sum < result, "{function:?} {sum:?} {result:?}");
    assert_eq!(object.function_at(result[0]).unwrap().0.name.to_string(), "f");
    let error = object.line("columns.c", 2, Some(99)).unwrap_err().to_string();
    let (message, columns) = error.split_once("; columns with code are ").unwrap();
    assert!(message.starts_with("no code at columns.c:2:99 in "), "{error}");
    for column in columns.split(", ") {
        assert!(object.line("columns.c", 2, column.parse().ok()).is_ok(), "{error}");
    }
}

#[test]
fn lines_are_found_in_the_debug_file() {
    let dir = scratch("debuglines");
    let program = compile(&dir, "lines.c", LINES, &["-g", "-O1"]);
    let before = Object::open(&program, &[]).unwrap().line("lines.c", 4, None).unwrap();
    let debug = dir.join("lines.debug");
    run("objcopy", &["--only-keep-debug", "--compress-debug-sections", str(&program), str(&debug)]);
    run("strip", &[str(&program)]);
    let error = Object::open(&program, &[]).unwrap().line("lines.c", 4, None).unwrap_err().to_string();
    assert!(error.contains("compile it with -g"), "{error}");
    // By the object's name, where the user says to look: `llvm-objcopy` sets no debug link.
    let named = dir.join("lines-debug/below");
    std::fs::create_dir_all(&named).unwrap();
    let mut name = program.file_name().unwrap().to_owned();
    name.push(".debug");
    std::fs::copy(&debug, named.join(name)).unwrap();
    for given in [named, "lines-debug/below".into()] {
        let object = Object::open(&program, std::slice::from_ref(&given)).unwrap();
        assert_eq!(object.line("lines.c", 4, None).unwrap(), before, "{}", given.display());
    }
    run("objcopy", &[&format!("--add-gnu-debuglink={}", str(&debug)), str(&program)]);
    assert_eq!(Object::open(&program, &[]).unwrap().line("lines.c", 4, None).unwrap(), before);
}
