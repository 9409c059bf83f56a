//! What the project asks of its source files, as tests.

use std::fs;
use std::path::{Path, PathBuf};

/// The longest line of a comment, in characters. Tables, code and drawings may be wider.
const COMMENT: usize = 100;

/// All Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some(".git") => {}
            // What cargo has built: a folder of sources may have the same name.
            _ if path.join("CACHEDIR.TAG").exists() => {}
            _ if path.is_dir() => sources(&path, found),
            Some(name) if name.ends_with(".rs") => found.push(path),
            _ => {}
        }
    }
}

/// Lines of prose in comments that are too long, by their numbers.
fn long_comments(text: &str) -> Vec<usize> {
    let mut fenced = false;
    let mut long = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let comment = comment.strip_prefix(['/', '!']).unwrap_or(comment);
        fenced ^= comment.trim_start().starts_with("```");
        let is_prose = !fenced && !comment.starts_with(" |") && !comment.starts_with("  ");
        if is_prose && line.chars().count() > COMMENT {
            long.push(number + 1);
        }
    }
    long
}

#[test]
fn comments_are_no_wider_than_a_screen() {
    let mut files = Vec::new();
    sources(crate::test::checkout(), &mut files);
    assert!(files.len() > 100, "no sources");
    let long: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            long_comments(&text).into_iter().map(|line| format!("{}:{line}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(long.is_empty(), "comments of more than {COMMENT} characters:\n{}", long.join("\n"));
}

#[test]
fn a_long_comment_is_found() {
    let long = format!("// {}\n/// short\n    /// {}\n//! | {} |\n", "x".repeat(100), "y ".repeat(60), "z".repeat(100));
    assert_eq!(long_comments(&long), [1, 3]);
}

/// The folders of a crate, from the lowest to the highest: each uses those before it alone.
const LAYERS: [(&str, &[&str]); 2] = [
    ("engine", &["memory", "programs", "resolve", "target", "patch", "planning", "results", "session", "fitness"]),
    ("plan", &["analysis", "policy", "codegen"]),
];

/// Folders of the crate that a file names, outside of comments and tests.
fn used_folders(text: &str) -> impl Iterator<Item = &str> {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.flat_map(|line| line.split("crate::").skip(1)).map(|rest| {
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
        &rest[..end]
    })
}

#[test]
fn folders_use_only_those_below() {
    for (krate, layers) in LAYERS {
        let source = crate::test::checkout().join("crates").join(krate).join("src");
        let mut upward = Vec::new();
        for (layer, folder) in layers.iter().enumerate() {
            let mut files = Vec::new();
            sources(&source.join(folder), &mut files);
            assert!(!files.is_empty(), "no folder {folder} in {krate}");
            for file in files {
                let text = fs::read_to_string(&file).unwrap();
                let above = used_folders(&text).filter(|used| layers[layer + 1..].contains(used));
                upward.extend(above.map(|used| format!("{} uses {used}", file.display())));
            }
        }
        let folders = fs::read_dir(&source).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
        let names: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert!(
            names.iter().all(|name| layers.contains(&name.as_str())),
            "{krate}: a folder without a layer: {names:?}"
        );
        assert!(upward.is_empty(), "arrows that run upward:\n{}", upward.join("\n"));
    }
}

#[test]
fn used_folders_are_found() {
    let code = "use crate::patch::x;\n// crate::session\nlet a = crate::target::y(crate::api::Z);\n";
    let text = format!("{code}#[cfg(test)]\nmod tests {{\n    use crate::follow;\n}}\n");
    assert_eq!(used_folders(&text).collect::<Vec<_>>(), ["patch", "target", "api"]);
}

/// Words that leave the reason for an unsafe block to another place.
const NO_REASONS: [&str; 5] = ["the caller's", "as above", "see above", "here and below", "the callers'"];

/// Lines of comments on safety that give no reason, by their numbers.
fn unreasoned(text: &str) -> Vec<usize> {
    let lines = text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with("// SAFETY:"));
    lines.filter(|(_, line)| NO_REASONS.iter().any(|no| line.contains(no))).map(|(number, _)| number + 1).collect()
}

#[test]
fn comments_on_safety_give_a_reason() {
    let mut files = Vec::new();
    sources(&crate::test::checkout().join("crates"), &mut files);
    let places = files.iter().flat_map(|file| {
        let text = fs::read_to_string(file).unwrap();
        unreasoned(&text).into_iter().map(|line| format!("{}:{line}", file.display())).collect::<Vec<_>>()
    });
    let places: Vec<String> = places.collect();
    assert!(places.is_empty(), "comments on safety without a reason:\n{}", places.join("\n"));
}

#[test]
fn a_comment_without_a_reason_is_found() {
    assert_eq!(unreasoned("// SAFETY: the word is aligned.\n    // SAFETY: the caller's.\n"), [2]);
}

/// Where an instruction set is at home: its own folders, the faces that choose between these, and
/// what reads its assembly.
const ISA_ROOMS: [&str; 20] = [
    "isa/src/x86/",
    "isa/src/a32/",
    "isa/src/a64/",
    "isa/src/toy/",
    "isa/src/lib.rs",
    // The faces of `isa`.
    "isa/src/emulate.rs",
    "isa/src/go.rs",
    "isa/src/indirect.rs",
    "isa/src/insn.rs",
    "isa/src/limits.rs",
    "isa/src/named.rs",
    "isa/src/patch.rs",
    "isa/src/relocate.rs",
    "isa/src/scan.rs",
    "isa/src/syscalls.rs",
    "isa/src/thunk.rs",
    "isa/src/vectors.rs",
    "plan/src/codegen/",
    "bpf/src/native/",
    "/src/arch/",
];

/// Words of an instruction set in code, outside of comments, texts and tests; and texts that are
/// the name of a register.
fn words_of_an_isa(text: &str) -> Vec<String> {
    const REGISTERS: [&str; 11] = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip", "eflags", "orig_rax"];
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut found = Vec::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let code: String = line.split('"').step_by(2).collect::<Vec<_>>().join(" ");
        let code = code.split(" // ").next().unwrap_or_default();
        let words = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        found.extend(words.filter(|word| REGISTERS.contains(word)).map(str::to_owned));
        let texts = line.split('"').skip(1).step_by(2);
        found.extend(texts.filter(|text| matches!(*text, "r15" | "orig_ax")).map(str::to_owned));
        let names = [
            "Isa::X86",
            "Isa::X64",
            "Isa::A64",
            "Isa::A32",
            "Isa::T32",
            "x86::",
            "a64::",
            "a32::",
            "Syntax::X",
            "0xe9",
            "0xcc",
            "iced_x86",
        ];
        found.extend(names.iter().filter(|name| code.contains(**name)).map(|name| (*name).to_owned()));
    }
    found
}

#[test]
fn an_instruction_set_stays_in_its_rooms() {
    let crates = crate::test::checkout().join("crates");
    let mut files = Vec::new();
    sources(&crates, &mut files);
    let mut strays = Vec::new();
    for file in files {
        let name = file.strip_prefix(&crates).unwrap().to_str().unwrap().to_owned();
        if !name.contains("/src/") || ISA_ROOMS.iter().any(|room| name.contains(room)) {
            continue;
        }
        let words = words_of_an_isa(&fs::read_to_string(&file).unwrap());
        strays.extend(words.first().map(|word| format!("{name}: {word}")));
    }
    assert!(strays.is_empty(), "words of an instruction set outside of its rooms:\n{}", strays.join("\n"));
}

#[test]
fn words_of_an_instruction_set_are_found() {
    let text = "// rax\nlet a = regs.rax;\nlet b = \"rax\";\nmatch isa { Isa::X86 => 1 } // rsp\n#[cfg(test)]\nmod tests { 0xcc }";
    assert_eq!(words_of_an_isa(text), ["rax", "Isa::X86"]);
}
