//! Go programs without symbols, judged by what the same programs are with them.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use sidestep_isa::Len;
use sidestep_symbols::{Function, Object, Source};
use support::{has, scratch, str};

const PROGRAM: &str = r#"package main

import "fmt"

type number interface{ ~int | ~float64 }

//go:noinline
func sum[T number](all []T) T {
	var s T
	for _, x := range all {
		s += x
	}
	return s
}

type shape struct{ side int }

//go:noinline
func (s *shape) area() int { return s.side * s.side }

func main() { fmt.Println(sum([]int{1, 2}), sum([]float64{1, 2}), (&shape{3}).area()) }
"#;

/// All Go commands of the machine, each file once.
fn compilers() -> BTreeSet<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter_map(|dir| dir.join("go").canonicalize().ok()).collect()
}

/// What the linker shortens or decorates is left out: `sum[...]` is `sum[go.shape.int]`.
fn plain(name: &str) -> String {
    let name = name.strip_suffix(".abi0").unwrap_or(name).replace('·', ".");
    match (name.find('['), name.rfind(']')) {
        (Some(open), Some(close)) if open < close => format!("{}[]{}", &name[..open], &name[close + 1..]),
        _ => name,
    }
}

/// Files and lines of all instructions of the functions that have a name of their own, by name and
/// offset.
fn lines(object: &Object) -> BTreeMap<(String, u64), (String, u32)> {
    let lines = object.lines().unwrap();
    let mut all = BTreeMap::new();
    let named = |f: &&Function| {
        ["fmt.", "strconv.", "os."].iter().any(|package| f.name.starts_with(package))
            && !f.name.contains('[')
            && f.name.matches('.').count() == 1
    };
    for f in object.functions().iter().filter(named) {
        for offset in 0..f.size.0 {
            // The innermost function is the one whose code it is.
            let found = lines.at(f.va.plus(Len(offset))).into_iter().next();
            all.extend(found.and_then(|place| place.line).map(|(file, line)| {
                // DWARF has a folder for what has no file.
                ((plain(&f.name), offset), (file.trim_start_matches("./").to_owned(), line))
            }));
        }
    }
    assert!(all.len() > 1000, "{}", all.len());
    all
}

#[test]
fn functions_without_symbols_are_those_with_symbols() {
    if !has("go") {
        return;
    }
    let dir = scratch("go");
    std::fs::write(dir.join("main.go"), PROGRAM).unwrap();
    for compiler in compilers() {
        for mode in ["exe", "pie"] {
            let build = |name: &str, more: &[&str]| {
                let mode = format!("-buildmode={mode}");
                let mut command = Command::new(&compiler);
                command.args(["build", &mode, "-o", name]).args(more).arg("main.go");
                command.env("CGO_ENABLED", "0").current_dir(&dir);
                assert!(command.status().unwrap().success(), "{command:?}");
                Object::open(&dir.join(name), &[]).unwrap()
            };
            let (whole, stripped) = (build("whole", &[]), build("stripped", &["-ldflags=-s"]));
            let what = format!("{} {mode}", compiler.display());
            assert!(stripped.functions().iter().any(|f| f.source == Source::Pclntab), "{what}");
            let find = |object: &Object, name: &str| -> Vec<Function> {
                object.functions().iter().filter(|f| plain(&f.name) == name).cloned().collect()
            };
            for (name, count) in [("main.main", 1), ("main.sum[]", 2), ("main.(*shape).area", 1)] {
                assert_eq!(find(&stripped, name).len(), count, "{what}: {name}");
            }
            // The code lies elsewhere, but is in the same order, and each function is as long.
            let own = |object: &Object| {
                let mut all: BTreeMap<String, Vec<u64>> = BTreeMap::new();
                for f in object.functions().iter().filter(|f| f.name.starts_with("main.") || f.name.starts_with("fmt."))
                {
                    all.entry(plain(&f.name)).or_default().push(f.size.0);
                }
                all
            };
            assert!(own(&whole).len() > 20, "{what}: {:?}", own(&whole));
            assert_eq!(own(&stripped), own(&whole), "{what}: {}", str(&dir));
            let (known, right) = (lines(&stripped), lines(&whole));
            let wrong: Vec<_> = right.iter().filter(|(at, line)| known.get(at) != Some(line)).collect();
            assert!(wrong.is_empty(), "{what}: {} of {}: {:?}", wrong.len(), right.len(), &wrong[..wrong.len().min(9)]);
        }
    }
}
