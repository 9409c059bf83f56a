//! Arguments and results with their types, in what each compiler of this machine builds, at each
//! level of optimization, however it writes its debug information.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use sidestep_tests::build::{BUILT, installed, target_dir};
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::skip;
use sidestep_tests::tool::{is_32_bit, sidestep};

/// One language: its source, the script, and what that prints.
struct Language {
    source: &'static str,
    /// Those that must be there; all of a machine are used whose names begin with one.
    compilers: &'static [&'static str],
    /// Each of the first with each of the second.
    flags: (&'static [&'static str], &'static [&'static str]),
    /// And these by themselves.
    others: &'static [&'static str],
    script: &'static str,
    prints: &'static str,
}

const C: Language = Language {
    source: "compiled.c",
    compilers: &["gcc", "clang"],
    flags: (&["-O0", "-O1", "-O2", "-O3"], &["-gdwarf-4", "-gdwarf-5"]),
    others: &[
        "-O2 -g -flto -rdynamic",
        "-O2 -gdwarf-4 -gsplit-dwarf",
        "-O2 -gdwarf-5 -gsplit-dwarf",
        "-O2 -g -fdebug-types-section",
        "-O2 -g -gz",
    ],
    script: "u:P:take { printf(\"%s %d %d %d %d %d\\n\", str(args.text), args.p.x, args.p.y, args.c, args.small, \
             args.big->a[2]) } ur:P:give { printf(\"%d %d\\n\", retval.x, retval.y) }",
    prints: "1 -1\ntext 1 -1 0 201 3\n2 -2\ntext 2 -2 5 202 3\n",
};

const CPP: Language = Language {
    source: "compiled.cpp",
    compilers: &["g++", "clang++"],
    flags: (&["-O0", "-O1", "-O2", "-O3"], &["-gdwarf-4", "-gdwarf-5"]),
    others: &["-O2 -g -flto -rdynamic", "-O2 -gdwarf-5 -gsplit-dwarf"],
    script: "u:P:keeper::keep { printf(\"%d %s %d %s %s %d\\n\", args.this->held, str(args.text->_M_dataplus._M_p), \
             args.p->y, str(args.own->_M_dataplus._M_p), \
             str(args.both->of[1]._M_dataplus._M_p), args.list->_M_impl._M_start[1]); \
             printf(\"%s, %s, %s\\n\", args.text, args.own, args.both->of[0]) }",
    prints: "7 text 2 a text of its own right 2\ntext, a text of its own, left\n\
             7 text 2 a text of its own right 2\ntext, a text of its own, left\n",
};

const RUST: Language = Language {
    source: "compiled.rs",
    compilers: &["rustc"],
    flags: (
        &["-Copt-level=0", "-Copt-level=1", "-Copt-level=2", "-Copt-level=3"],
        &["-g", "-g -Csplit-debuginfo=unpacked", "-g -Csplit-debuginfo=packed"],
    ),
    others: &["-Copt-level=3 -g -Clto=fat"],
    script: "u:P:compiled::take { printf(\"%s %d %d %d\\n\", str(args.text.data_ptr, args.text.length + 1), \
             args.list.length, args.owned.vec.len, args.n); printf(\"%s, %s\\n\", args.text, args.owned) } \
             ur:P:compiled::give { printf(\"%s %s\\n\", str(retval.data_ptr, retval.length + 1), retval) }",
    prints: "some of it some of it\nsome of it 3 5 1\nsome of it, owned\n\
             some of it some of it\nsome of it 3 5 2\nsome of it, owned\n",
};

const GO: Language = Language {
    source: "compiled.go",
    compilers: &["go"],
    flags: (&["", "-gcflags=-N -gcflags=-l"], &["", "-ldflags=-compressdwarf=false"]),
    others: &[],
    script: "u:P:main.take { printf(\"%s %s %d %d %d\\n\", str(args.text.str, args.text.len + 1), args.text, \
             args.list.len, args.list.array[1], args.n) }",
    prints: "x x 3 2 0\nx x 3 2 1\n",
};

/// Whether there are no compilers here, which is said, or the tool is for other programs than
/// theirs.
fn has_none() -> bool {
    let is_guest = !is_32_bit() && std::env::var_os(BUILT).is_some();
    if is_guest {
        skip("no compilers in the guest");
    }
    is_guest || is_32_bit()
}

impl Language {
    fn test(&self) {
        if has_none() {
            return;
        }
        let missing = self.compilers.iter().filter(|compiler| !installed(compiler)).count();
        let (each, with) = self.flags;
        let of_both = each.iter().flat_map(|one| with.iter().map(move |other| format!("{one} {other}")));
        let flags: Vec<String> = of_both.chain(self.others.iter().map(|flags| (*flags).to_owned())).collect();
        if missing > 0 {
            skip(&format!("{} builds of {}, for want of a compiler", missing * flags.len(), self.source));
        }
        for compiler in self.installed() {
            for (number, flags) in flags.iter().enumerate() {
                let (program, is_built) = self.build(&compiler, flags, number);
                if !is_built {
                    // That of LLVM needs a plug-in of the linker.
                    assert!(flags.contains("-flto"), "{compiler} {flags}");
                    eprintln!("SKIPPED, NOT TESTED: {compiler} {flags} {}", self.source);
                    continue;
                }
                let script = self.script.replace(":P:", &format!(":{}:", program.display()));
                let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program.to_string_lossy()]), LIMIT);
                assert_eq!(output.stdout.trim_end(), self.prints.trim_end(), "{compiler} {flags}: {}", output.stderr);
            }
        }
    }

    /// Also `clang-19`, `go-1.19` and the like, and the toolchains of rustup.
    fn installed(&self) -> BTreeSet<String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::env::split_paths(&path).filter_map(|folder| folder.read_dir().ok()).flatten().flatten();
        let named =
            |entry: std::fs::DirEntry| Some((entry.path().canonicalize().ok()?, entry.file_name().into_string().ok()?));
        let is_one = |name: &String| {
            let version = |of: &&str| name.strip_prefix(*of).and_then(|rest| rest.strip_prefix('-'));
            let is_version = |text: &str| text.split('.').all(|number| number.parse::<u32>().is_ok());
            self.compilers.contains(&&**name) || self.compilers.iter().filter_map(version).any(is_version)
        };
        // One of several names of the same file.
        let files: BTreeMap<PathBuf, String> = folders.filter_map(named).filter(|(_, name)| is_one(name)).collect();
        let mut found: BTreeSet<String> = files.into_values().collect();
        if self.compilers.contains(&"rustc") && installed("rustup") {
            let list = run(Command::new("rustup").args(["toolchain", "list"]), LIMIT).stdout;
            let names = list.lines().filter_map(|line| line.split_whitespace().next());
            found.extend(names.filter(|name| !name.starts_with("stable")).map(|name| format!("rustc +{name}")));
        }
        found
    }

    fn build(&self, compiler: &str, flags: &str, number: usize) -> (PathBuf, bool) {
        let words: Vec<&str> = compiler.split_whitespace().chain(flags.split_whitespace()).collect();
        let folder = target_dir().join("test-targets/compilers").join(compiler.replace(' ', ""));
        let folder = folder.join(number.to_string());
        std::fs::create_dir_all(&folder).expect("the target directory is writable");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("targets").join(self.source);
        let program = folder.join("program");
        let mut command = Command::new(words[0]);
        if compiler.starts_with("go") {
            command.arg("build");
        }
        command.args(&words[1..]);
        if compiler.starts_with("clang++") && !flags.contains("standalone-debug") {
            // Else the library is taken to describe its own types.
            command.arg("-fstandalone-debug");
        }
        if compiler.starts_with("rustc") {
            command.args(["--edition=2021", "--crate-name=compiled"]);
        }
        command.arg("-o").arg(&program).arg(source).current_dir(&folder);
        let output = run(&mut command, LIMIT);
        if output.code() != 0 {
            eprintln!("{output}");
        }
        (program, output.code() == 0)
    }
}

#[test]
fn c() {
    C.test();
}

#[test]
fn cpp() {
    CPP.test();
}

#[test]
fn rust() {
    RUST.test();
}

#[test]
fn go() {
    GO.test();
}

/// Without `-rdynamic`, all callers are seen: LLVM leaves out a text that is always the same, and
/// what is behind it is in other registers. It was read from those that the ABI has.
#[test]
fn arguments_that_link_time_optimization_left_out_were_read_from_other_registers() {
    if has_none() {
        return;
    }
    let all = C.installed();
    let clangs = || all.iter().filter(|compiler| compiler.starts_with("clang"));
    if clangs().next().is_none() {
        return skip("no clang");
    }
    for compiler in clangs() {
        let (program, is_built) = C.build(compiler, "-O2 -g -flto", 100);
        if !is_built {
            eprintln!("SKIPPED, NOT TESTED: {compiler} -flto: no plug-in of the linker");
            continue;
        }
        let program = program.to_string_lossy();
        let shown = |block: &str| {
            let script = format!("u:{program}:take {{ {block} }}");
            run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT)
        };
        let output = shown("printf(\"%d %d %d\\n\", args.c, args.small, args.big->a[2])");
        assert_eq!(output.stdout.trim_end(), "0 201 3\n5 202 3", "{compiler}: {output}");
        let texts = ("printf(\"%s\\n\", str(args.text))", "text\ntext");
        for (block, right) in [texts, ("printf(\"%d %d\\n\", args.p.x, args.p.y)", "1 -1\n2 -2")] {
            let output = shown(block);
            let is_refused = output.stderr.contains("the compiler has left out the argument");
            assert!(is_refused || output.stdout.trim_end() == right, "{compiler}: {output}");
        }
    }
}

/// The names of a program without symbols come from the table of Go's runtime.
#[test]
fn go_without_symbols() {
    if has_none() {
        return;
    }
    if !installed("go") {
        return skip("no go");
    }
    for compiler in GO.installed() {
        let list = |program: &Path, glob: &str| {
            let what = format!("u:{}:{glob}", program.display());
            let output = run(&mut sidestep(&["-l", &what]), LIMIT).ok();
            let names = output.stdout.lines().filter_map(|line| line.rsplit_once(&*format!("{}:", program.display())));
            names.map(|(_, name)| name.to_owned()).collect::<BTreeSet<String>>()
        };
        let (whole, is_built) = GO.build(&compiler, "", 200);
        assert!(is_built, "{compiler}");
        for (flags, number) in [("-ldflags=-s", 201), ("-ldflags=-s -buildmode=pie", 202)] {
            let (program, is_built) = GO.build(&compiler, flags, number);
            assert!(is_built, "{compiler} {flags}");
            let symbols = run(Command::new("readelf").arg("-SW").arg(&program), LIMIT).ok().stdout;
            assert!(!symbols.contains(".symtab") && !symbols.contains(".debug_"), "{compiler} {flags}: {symbols}");
            for glob in ["main.*", "os.*"] {
                let (named, all) = (list(&program, glob), list(&whole, glob));
                assert!(!all.is_empty() && named == all, "{compiler} {flags}: {named:?} are not {all:?}");
            }
            let program = program.display().to_string();
            let script = format!(
                "u:{program}:main.take {{ @[ustack(3)] = count(); printf(\"%s %d\\n\", func, goid) }} \
                 ur:{program}:main.take {{ @returns = count() }}"
            );
            let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT).ok();
            assert!(output.stdout.starts_with("main.take 1\nmain.take 1\n"), "{compiler} {flags}: {output}");
            assert!(output.stdout.contains("@returns: 2\n"), "{compiler} {flags}: {output}");
            let frames: Vec<&str> =
                output.stdout.lines().filter(|line| line.starts_with("   ")).map(str::trim).collect();
            let functions: Vec<&str> = frames.iter().filter_map(|frame| Some(frame.split_once('+')?.0)).collect();
            assert_eq!(functions, ["main.take", "main.main", "runtime.main"], "{compiler} {flags}: {output}");
        }
    }
}

const LOCATED: Language = Language { source: "located.c", others: &["-O2 -g -flto -rdynamic"], ..C };

/// Those on the stack, and those of which LLVM only says what they are calculated from, were read
/// from the register of an argument in front of them.
#[test]
fn arguments_behind_structures() {
    if has_none() {
        return;
    }
    let shown = [
        ("behind", "args.r.b, args.a, args.b, args.c, args.d, args.e", ["9, 2, 3, 4, 5, 6", "18, 2, 3, 4, 5, 12"]),
        ("beside", "args.a, args.r.b, args.b, args.f", ["1, 9, 2, true", "1, 18, 2, false"]),
        ("stacked", "args.g.a[1], args.a, args.f, args.h", ["2, 1, 6, 7", "2, 1, 6, 14"]),
        ("floats", "args.r.b, args.x, args.m.n, args.y, args.b", ["9, 1.5, 31, 2.5, 11", "18, 1.5, 32, 2.5, 22"]),
        ("full", "args.a, args.e, args.r.a, args.r.b, args.f", ["1, 5, 8, 9, 6", "1, 5, 16, 18, 12"]),
        ("unused", "args.r.b, args.a, args.c", ["9, 1, 3", "18, 1, 6"]),
    ];
    // What a function does not use, its callers need not pass.
    let in_part = [
        ("behind", "args.r"),
        ("behind", "args.r.a"),
        ("unused", "args.gone"),
        ("half", "args.t.a[1]"),
        ("half", "args.t.a[args.a]"),
    ];
    let each = LOCATED.flags.0.iter().flat_map(|one| LOCATED.flags.1.iter().map(move |other| format!("{one} {other}")));
    let flags: Vec<String> = each.chain(LOCATED.others.iter().map(|flags| (*flags).to_owned())).collect();
    for compiler in LOCATED.installed() {
        for (number, flags) in flags.iter().enumerate() {
            let (program, is_built) = LOCATED.build(&compiler, flags, 300 + number);
            if !is_built {
                assert!(flags.contains("-flto"), "{compiler} {flags}");
                eprintln!("SKIPPED, NOT TESTED: {compiler} {flags} {}", LOCATED.source);
                continue;
            }
            let program = program.to_string_lossy();
            let mut script = String::new();
            let mut right = String::new();
            for (function, values, _) in shown {
                script += &format!("u:{program}:{function} {{ print(({values})) }} ");
            }
            for round in 0..2 {
                // In the order of the calls.
                for function in ["behind", "beside", "stacked", "full", "unused", "floats"] {
                    let of = shown.iter().find(|(name, ..)| *name == function);
                    right += &of.map(|(_, _, values)| format!("({})\n", values[round])).unwrap_or_default();
                }
            }
            let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT);
            assert_eq!(output.stdout.trim_end(), right.trim_end(), "{compiler} {flags}: {}", output.stderr);
            if !compiler.starts_with("clang") || flags.contains("-O0") {
                continue;
            }
            for (function, value) in in_part {
                let script = format!("u:{program}:{function} {{ print({value}) }}");
                let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT);
                let messages = [
                    "ERROR: the compiler has left out this part of the argument\n",
                    "ERROR: the compiler has left out the argument gone, or moved it\n",
                ];
                let is_said = messages.iter().any(|message| output.stderr.contains(message));
                assert!(is_said, "{compiler} {flags} {value}: {output}");
                let hint = "HINT: the function does not use it, and callers need not pass it\n";
                assert_eq!(output.stderr.contains(hint), output.stderr.contains(messages[0]), "{output}");
            }
        }
    }
}

/// Whether a compiler of Go has the convention of 1.17 and later.
fn passes_in_registers(compiler: &str) -> bool {
    let said = run(Command::new(compiler).arg("version"), LIMIT).ok().stdout;
    // `go version go1.19.8 linux/amd64`
    let version = said.split_whitespace().find_map(|word| word.strip_prefix("go1."));
    let minor = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
    minor.is_some_and(|minor| minor >= 17)
}

/// A text was a number. Of several results, the first is meant.
#[test]
fn results_of_go() {
    if has_none() {
        return;
    }
    if !installed("go") {
        return skip("no go");
    }
    for compiler in GO.installed() {
        if !passes_in_registers(&compiler) {
            skip(&format!("{compiler} is older than 1.17, and has results on the stack"));
            continue;
        }
        let (program, is_built) = GO.build(&compiler, "", 400);
        assert!(is_built, "{compiler}");
        let program = program.to_string_lossy();
        let script = format!(
            "ur:{program}:main.give {{ printf(\"%s %d\\n\", retval, retval.len) }} \
             ur:{program}:main.half {{ print(retval) }}"
        );
        let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT).ok();
        assert_eq!(output.stdout.trim_end(), "/ 1\n0\n/! 2\n0.5", "{compiler}: {output}");
        // It is on the stack.
        let script = format!("ur:{program}:main.pair {{ print(retval) }}");
        let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT);
        assert!(
            output.stderr.contains("the result of type 'int64[2]' is on the stack, and not seen\n"),
            "{compiler}: {output}"
        );
    }
}

/// They had no members; as an argument, nor as a result.
#[test]
fn numbers_of_16_bytes() {
    if has_none() {
        return;
    }
    let wide = Language { source: "wide.c", ..C };
    for compiler in wide.installed() {
        for (number, flags) in ["-O0 -g", "-O2 -g"].into_iter().enumerate() {
            let (program, is_built) = wide.build(&compiler, flags, 500 + number);
            assert!(is_built, "{compiler} {flags}");
            let program = program.to_string_lossy();
            let script = format!(
                "u:{program}:wide {{ print((args.a, args.x.low, args.x.high, args.b, args.y.high)) }} \
                 ur:{program}:wide {{ print((retval.low, retval.high)) }}"
            );
            let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT).ok();
            assert_eq!(output.stdout.trim_end(), "(1, 2, 3, 4, 6)\n(7, 9)", "{compiler} {flags}: {output}");
        }
    }
}

/// The address was printed: without -fstandalone-debug, clang leaves the description of what a text
/// consists of, or of the pointer in it, to the library.
#[test]
fn texts_that_are_only_declared() {
    if has_none() {
        return;
    }
    let limited = Language { source: "declared.cpp", ..CPP };
    for compiler in limited.installed() {
        let (program, is_built) = limited.build(&compiler, "-O0 -g -fno-standalone-debug", 600);
        if !is_built {
            assert!(!compiler.starts_with("clang"), "{compiler}");
            continue;
        }
        let program = program.to_string_lossy();
        let script = format!("u:{program}:_Z4take* {{ print(args.text) }}");
        let output = run(&mut sidestep(&["-q", "-e", &script, "-c", &program]), LIMIT);
        let class = "struct basic_string<char, std::char_traits<char>, std::allocator<char> >";
        let message = format!("what is in '{class}' is not known: the debug information only declares it\n");
        let hint = "HINT: with -fstandalone-debug, clang++ describes the types of the library, too\n";
        let is_refused = output.stderr.contains(&message) && output.stderr.contains(hint);
        assert!(is_refused || output.stdout.trim_end() == "some text", "{compiler}: {output}");
    }
}
