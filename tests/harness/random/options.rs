//! How a random program is built: compiler, level, and options that change the shape of code.

use std::path::Path;
use std::process::Command;

use super::Rng;
use super::source::Language;
use crate::process::{LIMIT, run};

/// A compiler with its options.
#[derive(Clone, Debug)]
pub struct Build {
    /// C or C++.
    pub language: Language,
    /// GCC, or clang.
    pub is_gcc: bool,
    /// Everything but the files.
    pub options: Vec<&'static str>,
    /// Compiled twice: the second time with the profile of a run of the first.
    pub profiled: bool,
}

/// With the odds of each: one in so many.
const EITHER: &[(usize, &str)] = &[
    (5, "-fcf-protection=full"),
    (6, "-fno-plt"),
    (6, "-ffunction-sections"),
    (8, "-falign-functions=1"),
    (12, "-falign-loops=32"),
    (8, "-fno-omit-frame-pointer"),
    (10, "-fstack-protector-all"),
    (12, "-mno-red-zone"),
    (10, "-fno-jump-tables"),
    (10, "-fno-optimize-sibling-calls"),
    (8, "-fpatchable-function-entry=5,2"),
    (8, "-fno-inline"),
    (8, "-funroll-loops"),
    (8, "-fno-asynchronous-unwind-tables"),
    (8, "-fno-pic"),
    (8, "-s"),
    (10, "-g"),
    (8, "-mretpoline"),
    (12, "-march=x86-64-v2"),
    (10, "-march=x86-64-v3"),
    (16, "-fsanitize=undefined -fsanitize-undefined-trap-on-error"),
    (12, "-Wl,-z,noseparate-code"),
    (8, "-Wl,-z,lazy"),
    (8, "-fno-semantic-interposition"),
    (10, "-fomit-frame-pointer"),
    (12, "-fstack-clash-protection"),
];

/// The same, of options that GCC alone has.
const GCC: &[(usize, &str)] = &[
    (4, "-freorder-blocks-and-partition"),
    (10, "-fno-reorder-blocks-and-partition"),
    (10, "-fno-ipa-ra"),
    (10, "-fno-shrink-wrap"),
    (10, "-freorder-blocks-algorithm=simple"),
    (10, "-fno-gcse"),
    (12, "-fno-crossjumping"),
    (12, "-fno-tree-switch-conversion"),
    (12, "--param=case-values-threshold=3"),
    (12, "-fno-ipa-icf"),
    (10, "-fno-toplevel-reorder"),
    (12, "-maccumulate-outgoing-args"),
    (12, "-minline-all-stringops"),
    (12, "-fharden-compares"),
    (10, "-fzero-call-used-regs=used"),
];

impl Build {
    /// Draws one.
    pub fn draw(rng: &mut Rng) -> Build {
        let language = if rng.one_in(3) { Language::Cpp } else { Language::C };
        let is_gcc = !rng.one_in(3);
        let level = rng.of(&["-O0", "-O1", "-O2", "-O2", "-O2", "-O3", "-O3", "-Os"]);
        let mut options = vec![level, "-w", "-fwrapv", "-fno-strict-aliasing"];
        let rare = EITHER.iter().chain(if is_gcc { GCC } else { &[] });
        let drawn: Vec<&str> = rare.filter(|(odds, _)| rng.one_in(*odds)).map(|(_, option)| *option).collect();
        for option in drawn {
            match option {
                // GCC has other names for it, and several kinds.
                "-mretpoline" if is_gcc => {
                    options.push(rng.of(&["-mindirect-branch=thunk", "-mindirect-branch=thunk-inline"]));
                    options.push("-fcf-protection=none");
                }
                "-fsanitize=undefined -fsanitize-undefined-trap-on-error" => {
                    options.extend(["-fsanitize=undefined", "-fsanitize-undefined-trap-on-error"]);
                    options.push("-fno-sanitize=alignment,null");
                }
                "-fcf-protection=full" if options.contains(&"-fcf-protection=none") => {}
                "-fno-pic" => options.extend(["-fno-pie", "-no-pie"]),
                "-maccumulate-outgoing-args" if options.contains(&"-fstack-clash-protection") => {}
                "-fstack-clash-protection" if options.contains(&"-maccumulate-outgoing-args") => {}
                _ => options.push(option),
            }
        }
        // A thunk has no landing pad, so both together are refused.
        if options.iter().any(|o| o.starts_with("-mindirect")) {
            options.retain(|o| *o != "-fcf-protection=full");
        }
        if language == Language::Cpp {
            options.push(if rng.one_in(2) { "-fnon-call-exceptions" } else { "-fexceptions" });
            // The unwinder needs them.
            options.retain(|o| *o != "-fno-asynchronous-unwind-tables");
        }
        if language == Language::C && rng.one_in(8) {
            options.push("-fexceptions");
        }
        match rng.below(16) {
            0 => options.push("-static"),
            1 if !options.contains(&"-no-pie") => options.push("-static-pie"),
            _ => {}
        }
        // Its symbols tell what is the C library's.
        if options.iter().any(|o| o.starts_with("-static")) {
            options.retain(|o| *o != "-s");
        }
        let profiled = is_gcc && level != "-O0" && rng.one_in(6);
        if is_gcc && rng.one_in(6) {
            options.push("-flto");
        }
        if !is_gcc {
            options.retain(|o| !CLANG_LACKS.contains(o));
        }
        Build { language, is_gcc, options, profiled }
    }

    /// Whether instructions that fault may throw: clang takes the option, and has no such thing.
    pub fn faults(&self) -> bool {
        self.is_gcc && self.options.contains(&"-fnon-call-exceptions")
    }

    /// Where the file's addresses begin.
    pub fn base(&self) -> u64 {
        let fixed = self.options.iter().any(|option| ["-no-pie", "-static"].contains(option));
        if fixed { 0x40_0000 } else { 0 }
    }

    /// The command without files.
    fn compiler(&self) -> Command {
        Command::new(match (self.is_gcc, self.language) {
            (true, Language::C) => "gcc",
            (true, Language::Cpp) => "g++",
            (false, Language::C) => "clang",
            (false, Language::Cpp) => "clang++",
        })
    }

    /// Builds it in an empty folder.
    ///
    /// # Errors
    /// What the compiler said.
    pub fn build(&self, source: &Path, program: &Path) -> Result<(), String> {
        let folder = source.parent().ok_or("no folder")?;
        let step = |more: &[&str]| {
            let mut compiler = self.compiler();
            compiler.args(&self.options).args(more).arg("-o").arg(program).arg(source).arg("-lm");
            let output = run(compiler.current_dir(folder), LIMIT);
            if output.code() == 0 { Ok(()) } else { Err(format!("{compiler:?}\n{output}")) }
        };
        if !self.profiled {
            return step(&[]);
        }
        step(&["-fprofile-generate", "-fprofile-update=single"])?;
        // A few rounds alone, so that the rest of the program stays cold.
        let output = run(Command::new(program).arg("2").current_dir(folder), LIMIT);
        if output.code() != 0 {
            return Err(format!("the run for the profile: {output}"));
        }
        step(&["-fprofile-use", "-fprofile-correction"])
    }
}

/// What clang takes for an error, or warns of and leaves out.
const CLANG_LACKS: &[&str] = &["-falign-loops=32", "-static-pie", "-fpatchable-function-entry=5,2"];
