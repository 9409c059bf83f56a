//! Scripts that take in files, and scripts about themselves.

use std::path::PathBuf;

use sidestep_tests::process::{LIMIT, Output, run};
use sidestep_tests::tool::sidestep;

/// A folder of files that goes at the end.
struct Folder(PathBuf);

impl Folder {
    fn of(name: &str, files: &[(&str, &str)]) -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("sidestep-{name}-{}", std::process::id())));
        std::fs::create_dir_all(folder.0.join("below")).expect("a directory");
        for (file, text) in files {
            std::fs::write(folder.0.join(file), text).expect("a file");
        }
        folder
    }

    fn run(&self, file: &str, flags: &[&str]) -> Output {
        let path = self.0.join(file).display().to_string();
        run(&mut sidestep(&[flags, &["-q", &path]].concat()), LIMIT)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_script_that_imports_itself_runs_once() {
    let script = "import \"main.bt\"; import \"below/lib.bt\"; begin { print(\"main\") }\n";
    let lib = "import \"../main.bt\"; begin { print(\"lib\") }\n";
    let folder = Folder::of("import-own", &[("main.bt", script), ("below/lib.bt", lib)]);
    let output = folder.run("main.bt", &[]);
    assert_eq!((output.code(), &*output.stdout), (0, "lib\nmain\n\n\n"), "{output}");
}

#[test]
fn files_are_taken_in_once_and_before_the_script() {
    let folder = Folder::of(
        "import",
        &[
            (
                "main.bt",
                "#include \"types.h\"\nimport \"below/lib.bt\"; import \"below/lib.bt\"; import \"below\";\n\
              begin { print(twice(sizeof(struct pair))); $p = (pair_t *)0; print(LIMIT) }\n",
            ),
            (
                "types.h",
                "#ifndef TYPES_H\n#define TYPES_H\n#define LIMIT 7\nstruct pair { int a; int b; };\ntypedef struct pair pair_t;\n#endif\n",
            ),
            ("below/lib.bt", "macro twice(x) { 2 * x }\nbegin { print(\"lib\") }\n"),
            ("below/more.bt", "begin { print(\"more\") }\n"),
        ],
    );
    let output = folder.run("main.bt", &[]);
    assert_eq!((output.code(), &*output.stdout), (0, "lib\nmore\n16\n7\n\n\n"), "{output}");
    let header = folder.0.join("types.h").display().to_string();
    let output = run(&mut sidestep(&["-q", "--include", &header, "-e", "begin { print(sizeof(pair_t)) }"]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (0, "8\n\n\n"), "{output}");
    let dir = folder.0.display().to_string();
    let script = "#include <types.h>\nbegin { print(LIMIT) }";
    let output = run(&mut sidestep(&["-q", "-I", &dir, "-e", script]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (0, "7\n\n\n"), "{output}");
}

/// A header that was written for a compiler was refused at its first macro with parameters, or at
/// its first function.
#[test]
fn a_header_of_c_was_read_as_a_script() {
    let first = "#ifndef FIRST_H\n#define FIRST_H\n#include \"other.h\"\n#define BITS(a, b) ((a) << 8 | (b))\n\
                 #if WORDS > 3 && defined(OTHER_H)\n#define LIMIT BITS(1, 'a')\n#else\n#error \"never\"\n#endif\n\
                 typedef struct first { char tag; word_t word; unsigned low : 3; } first_t;\n\
                 extern int use(const first_t *first, ...) __attribute__((nonnull(1)));\n#endif\n";
    let other = "#pragma once\n#define OTHER_H\n#define WORDS (2 + 2)\n#pragma pack(push, 1)\ntypedef unsigned long long word_t;\n\
                 struct other { char tag; word_t words[WORDS]; };\n#pragma pack(pop)\n\
                 static inline int twice(int x) { return x * 2; }\n#define CALL(x) do { twice(x); } while (0)\n#define TEXT \"a\" \"b\"\n";
    let script =
        "begin { print((LIMIT, sizeof(struct other), offsetof(struct other, words), sizeof(word_t), TEXT)) }\n";
    let folder = Folder::of(
        "own-header",
        &[
            ("main.bt", &*format!("#include \"include/first.h\"\n{script}")),
            ("wrong.bt", "#include \"include/wrong.h\"\nbegin { print(1) }\n"),
            ("below/first.h", first),
            ("below/other.h", other),
            ("below/wrong.h", "#include \"none.h\"\n"),
        ],
    );
    std::fs::rename(folder.0.join("below"), folder.0.join("include")).expect("a folder");
    let output = folder.run("main.bt", &[]);
    assert_eq!((output.code(), &*output.stdout), (0, "(353, 33, 1, 8, ab)\n\n\n"), "{output}");
    let dir = folder.0.join("include").display().to_string();
    let script = format!("#include <first.h>\n{script}");
    let output = run(&mut sidestep(&["-q", "-I", &dir, "-e", &script]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (0, "(353, 33, 1, 8, ab)\n\n\n"), "{output}");
    let output = folder.run("wrong.bt", &[]);
    assert!(output.stderr.contains("ERROR: failed to open file 'none.h', which "), "{output}");
}

#[test]
fn mistakes_are_said_in_the_file_that_has_them() {
    let folder = Folder::of(
        "wrong-import",
        &[
            ("main.bt", "import \"lib.bt\";\nbegin { print(1) }\n"),
            ("lib.bt", "begin {\n  print($none)\n}\n"),
            ("config.bt", "import \"set.bt\";\nbegin { print(1) }\n"),
            ("set.bt", "config = { max_strlen = 5 }\n"),
        ],
    );
    let lib = folder.0.join("lib.bt").display().to_string();
    let output = folder.run("main.bt", &[]);
    let wanted =
        format!("{lib}:2:9-14: ERROR: Undefined or undeclared variable: $none\n  print($none)\n        ~~~~~\n");
    assert_eq!((output.code(), &*output.stderr), (1, &*wanted), "{output}");
    let output = folder.run("config.bt", &[]);
    assert!(output.stderr.contains("set.bt:1:1-7: ERROR: a file that is imported has no config block"), "{output}");
    assert!(output.stderr.ends_with("\nHINT: the script itself has it\n"), "{output}");
}

#[test]
fn tests_pass_and_fail() {
    let folder = Folder::of(
        "tests",
        &[(
            "t.bt",
            "test:good { print(1); return 0 }\ntest:bad { print(2); return 1 }\nbegin { print(3) }\nbench:b { @++ }\n",
        )],
    );
    let output = folder.run("t.bt", &["--test", "-f", "json"]);
    assert_eq!(output.code(), 1, "{output}");
    let lines: Vec<&str> = output.stdout.lines().collect();
    for (line, name, passed, printed) in [(0, "good", true, 1), (1, "bad", false, 2)] {
        let start = format!("{{\"type\": \"test_result\", \"data\": {{\"{name}\": {{\"duration\": ");
        let end = format!("\"passed\": {passed}, \"output\": \"{printed}\\n\"}}}}}}");
        assert!(lines[line].starts_with(&start) && lines[line].ends_with(&end), "{output}");
    }
    let output = folder.run("t.bt", &["--test"]);
    let plain: String = output.stdout.replace("\x1b[32m", "").replace("\x1b[31m", "").replace("\x1b[0m", "");
    let lines: Vec<&str> = plain.lines().map(|line| line.split(" (").next().unwrap_or(line)).collect();
    let wanted = [
        "[==========] Running 2 tests.",
        "[ RUN      ] good",
        "[       OK ] good",
        "[ RUN      ] bad",
        "2",
        "[  FAILED  ] bad",
        "[==========] 2 tests ran.",
        "[  PASSED  ] 1 test.",
        "[  FAILED  ] 1 test, listed below:",
        "[  FAILED  ] bad",
    ];
    assert_eq!(lines, wanted, "{output}");
    let output = folder.run("t.bt", &["--bench"]);
    assert!(
        output.stdout.starts_with(&format!("{:<41}{:<15}Iterations\n{}\nb ", "Benchmark", "Time(ns)", "-".repeat(66))),
        "{output}"
    );
}

#[test]
fn options_may_come_before_a_command() {
    let output = run(&mut sidestep(&["-q", "list", "libc:malloc"]), LIMIT);
    assert_eq!(output.code(), 2, "list has no -q: {output}");
    let output = run(&mut sidestep(&["-v", "list", "libc:malloc"]), LIMIT);
    assert!(output.code() == 0 && output.stdout.contains("malloc"), "{output}");
    let output = run(&mut sidestep(&["help", "funccount"]), LIMIT);
    assert!(output.code() == 0 && output.stdout.contains("Count the calls of functions"), "{output}");
    let output = run(&mut sidestep(&["funcount"]), LIMIT);
    assert!(output.stderr.contains("did you mean funccount?"), "{output}");
    let output = run(&mut sidestep(&["latency", "libc:read"]), LIMIT);
    assert!(output.stderr.contains("did you mean funclatency?"), "{output}");
    let output = run(&mut sidestep(&["help", "nosuch"]), LIMIT);
    assert!(output.status.code() == Some(2) && output.stderr.contains("help is for one of the commands:"), "{output}");
    assert!(output.stderr.contains("\"nosuch\" is no command\n"), "{output}");
    let output = run(&mut sidestep(&["help", "fncount"]), LIMIT);
    assert!(output.stderr.contains("\"fncount\" is no command; did you mean funccount?"), "{output}");
    let output = run(&mut sidestep(&["man", "funcount"]), LIMIT);
    assert!(output.stderr.contains("did you mean funccount?"), "{output}");
}

#[test]
fn usage_named_the_file_that_was_started() {
    let link = std::env::temp_dir().join(format!("another-name-{}", std::process::id()));
    let tool = sidestep(&[]).get_program().to_owned();
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(&tool, &link).expect("a link");
    for command in ["status", "man", "tools", "list"] {
        let output = run(std::process::Command::new(&link).args([command, "--nosuch"]), LIMIT);
        assert!(output.stderr.contains(&format!("Usage: sidestep {command} ")), "{output}");
    }
    let _ = std::fs::remove_file(&link);
}

#[test]
fn process_that_is_not_there() {
    let output = run(&mut sidestep(&["-p", "4194303", "-e", "begin { print(1) }"]), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (1, ""), "{output}");
    assert!(output.stderr.contains("cannot attach to process 4194303: No such process"), "{output}");
}

#[test]
fn settings_of_the_environment_come_first() {
    let script = "config = { max_strlen = 64 } begin { print(strcap(str(0))) }";
    let output = run(sidestep(&["-q", "-e", script]).env("BPFTRACE_MAX_STRLEN", "9"), LIMIT);
    assert_eq!((output.code(), &*output.stdout), (0, "10\n\n\n"), "{output}");
}

#[test]
fn scripts_are_listed() {
    let script = "begin { } interval:s:1 { } u:libc:malloc { } end { }";
    let output = run(&mut sidestep(&["-l", "-e", script]), LIMIT);
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert!(output.code() == 0 && lines.len() == 2, "{output}");
    assert!(lines.contains(&"interval:s:") && lines.iter().any(|line| line.ends_with(":malloc")), "{output}");
}
