//! Builds the target programs of `tests/targets`, once, into `target/test-targets`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::process::run;
use crate::skip;
use crate::tool::is_32_bit;

/// How one program is built: its name, the compiler with its options, the sources.
struct Recipe {
    name: &'static str,
    compiler: &'static [&'static str],
    sources: &'static [&'static str],
    libraries: &'static [&'static str],
}

const fn recipe(name: &'static str, compiler: &'static [&'static str], sources: &'static [&'static str]) -> Recipe {
    Recipe { name, compiler, sources, libraries: &[] }
}

/// Recursion stays recursion.
const CALLS: &str = "-fno-optimize-sibling-calls";
const CC: &[&str] = &["cc", "-O2", "-g", "-pthread", CALLS];
/// For assembler that names absolute addresses in 32-bit code.
const CC_FIXED: &[&str] = &["cc", "-O2", "-g", "-pthread", CALLS, "-no-pie"];
const CC_IBT: &[&str] = &["cc", "-O2", "-g", "-pthread", CALLS, "-fcf-protection"];

/// An eBPF object as users of libbpf build theirs. The `asm/ptrace.h` that it includes is this
/// machine's.
const BPF: &[&str] =
    &["clang", "-O2", "-g", "-Wall", "-target", "bpf", "-D__TARGET_ARCH_x86", "-I/usr/include/x86_64-linux-gnu", "-c"];

/// A library with an unwinder of its own, which has no name.
const THROWER_HIDDEN: &[&str] =
    &["g++", "-O2", "-shared", "-fPIC", "-static-libgcc", "-static-libstdc++", "-Wl,--exclude-libs,ALL", "-s"];
/// Names as older compilers make them. They have to be told that one may choose.
const RUST_LEGACY: &[&str] = &[
    "env",
    "RUSTC_BOOTSTRAP=1",
    "rustc",
    "-O",
    "--edition=2024",
    "-Zunstable-options",
    "-Csymbol-mangling-version=legacy",
];

const RECIPES: &[Recipe] = &[
    recipe("counts", CC, &["counts.c"]),
    recipe("counts-ibt", CC_IBT, &["counts.c"]),
    recipe("counts-O0", &["cc", "-O0", "-pthread"], &["counts.c"]),
    recipe("counts-no-pie", &["cc", "-O2", "-no-pie", "-pthread", CALLS], &["counts.c"]),
    recipe("counts-static", &["cc", "-O2", "-static", "-pthread", CALLS], &["counts.c"]),
    recipe("counts-static-pie", &["cc", "-O2", "-static-pie", "-pthread", CALLS], &["counts.c"]),
    recipe("counts-musl", &["musl-gcc", "-O2", "-static", "-pthread", CALLS], &["counts.c"]),
    recipe("counts-musl-dynamic", &["musl-gcc", "-O2", "-pthread", CALLS], &["counts.c"]),
    recipe("unwind", CC, &["unwind.c"]),
    recipe("stepped", CC, &["stepped.c"]),
    recipe("hostile", CC, &["hostile.c"]),
    recipe("recovers", CC, &["recovers.c"]),
    recipe("names", CC, &["names.c"]),
    recipe("holder", CC, &["holder.c"]),
    recipe("late_end", CC, &["late_end.c"]),
    recipe("remains", CC, &["remains.c"]),
    recipe("exchange", CC, &["exchange.c"]),
    recipe("structures", CC, &["structures.c"]),
    recipe("spawn", CC, &["spawn.c"]),
    recipe("lent", CC, &["lent.c"]),
    recipe("lent-static", &["cc", "-O2", "-static", "-pthread", CALLS], &["lent.c"]),
    recipe("lent-musl", &["musl-gcc", "-O2", "-static", "-pthread", CALLS], &["lent.c"]),
    recipe("alike-left", &["cc", "-O2", "-g", "-no-pie", "-static", "-DCALLER=left", CALLS], &["alike.c"]),
    recipe("alike-right", &["cc", "-O2", "-g", "-no-pie", "-static", "-DCALLER=right", CALLS], &["alike.c"]),
    recipe("short", CC, &["short.c", "short_asm.S"]),
    recipe("promotion", CC, &["promotion.c", "promotion_asm.S"]),
    recipe("torture", CC, &["torture.c", "short_asm.S"]),
    recipe("leads", CC, &["leads.c", "leads_asm.S"]),
    recipe("trap", CC, &["trap.c"]),
    recipe("masks", CC, &["masks.c"]),
    recipe("altstack", CC, &["altstack.c"]),
    recipe("faults", CC, &["faults.c"]),
    recipe("faults-static", &["cc", "-O2", "-static", "-pthread", CALLS], &["faults.c"]),
    recipe("faults-musl", &["musl-gcc", "-O2", "-static", "-pthread", CALLS], &["faults.c"]),
    recipe("displaced", CC, &["displaced.c", "displaced_asm.S"]),
    recipe("displaced-static", &["cc", "-O2", "-static", "-pthread"], &["displaced.c", "displaced_asm.S"]),
    recipe("displaced-musl", &["musl-gcc", "-O2", "-static", "-pthread"], &["displaced.c", "displaced_asm.S"]),
    recipe("displaced-unguarded", &["cc", "-O2", "-no-pie", "-DUNGUARDED"], &["displaced.c", "displaced_asm.S"]),
    recipe("emulated", CC_FIXED, &["emulated.c", "emulated_asm.S"]),
    recipe("recover", &["go", "build"], &["recover.go"]),
    recipe("labels", &["cc", "-O2"], &["labels.c"]),
    recipe("labels-thunks", &["cc", "-O2", "-mindirect-branch=thunk", "-fcf-protection=none"], &["labels.c"]),
    recipe("thrown-load", &["g++", "-O2", "-fnon-call-exceptions"], &["thrown_load.cpp"]),
    recipe("plugged", &["cc", "-O2", "-fexceptions"], &["plugged.c"]),
    recipe("libthrower.so", &["g++", "-O2", "-shared", "-fPIC"], &["thrower.cpp"]),
    recipe("libthrower-hidden.so", THROWER_HIDDEN, &["thrower.cpp"]),
    recipe("thrower", &["g++", "-O2", "-DPROGRAM"], &["thrower.cpp"]),
    recipe("zone", &["cc", "-O2"], &["zone.c"]),
    recipe("sandbox", CC, &["sandbox.c"]),
    recipe("blocked", CC, &["blocked.c"]),
    recipe("interrupted", CC, &["interrupted.c"]),
    recipe("ring", CC, &["ring.c"]),
    recipe("delivered", CC, &["delivered.c"]),
    recipe("edge", CC_FIXED, &["edge.c"]),
    recipe("stuck", CC, &["stuck.c"]),
    recipe("unanswered", CC, &["unanswered.c"]),
    recipe("crowded", CC, &["crowded.c"]),
    recipe("tails", &["cc", "-O2", "-g", "-pthread"], &["tails.c"]),
    recipe("copied", CC, &["copied.c"]),
    recipe("deep", CC, &["deep.c"]),
    recipe("stale", CC, &["stale.c"]),
    recipe("twins", CC, &["twins.c"]),
    recipe("beside", CC, &["beside.c"]),
    recipe("based", CC, &["based.c"]),
    recipe("xray", &["clang", "-O2", "-g", "-fxray-instrument"], &["xray.c"]),
    recipe("livepatch", &["cc", "-O2", "-fpatchable-function-entry=16,14", "-fcf-protection=none"], &["livepatch.c"]),
    recipe("livepatch-ibt", &["cc", "-O2", "-fpatchable-function-entry=16,14", "-fcf-protection"], &["livepatch.c"]),
    recipe("load", CC, &["load.c"]),
    recipe("hot", CC, &["hot.c"]),
    recipe("deepest", CC, &["deepest.c"]),
    recipe("many", CC, &["many.c"]),
    recipe("many-10000", &["cc", "-O2", "-pthread", CALLS, "-DTEN_THOUSAND"], &["many.c"]),
    recipe("reload", CC, &["reload.c"]),
    recipe("swap", CC, &["swap.c"]),
    recipe("libswapped1.so", &["cc", "-shared", "-Wl,-Bsymbolic", "-DANSWER=1"], &["swapped.S"]),
    recipe("libswapped2.so", &["cc", "-shared", "-Wl,-Bsymbolic", "-DANSWER=2"], &["swapped.S"]),
    recipe("libunguarded.so", &["cc", "-shared"], &["unguarded.S"]),
    recipe("load-ibt", CC_IBT, &["load.c"]),
    recipe("bench", CC, &["bench.c", "bench_asm.S"]),
    // The runtime package has no `libcrypto.so` to link with, but `-l:` takes the full name.
    Recipe { name: "crypto", compiler: CC, sources: &["crypto.c"], libraries: &["-l:libcrypto.so.3"] },
    Recipe { name: "queries", compiler: CC, sources: &["queries.c"], libraries: &["-l:libsqlite3.so.0"] },
    Recipe { name: "matches", compiler: CC, sources: &["matches.c"], libraries: &["-l:libpcre2-8.so.0"] },
    Recipe { name: "inflate", compiler: CC, sources: &["inflate.c"], libraries: &["-l:libz.so.1"] },
    recipe("comparator", &["g++", "-O2"], &["comparator.cpp"]),
    recipe("comparator-stripped", &["g++", "-O2", "-static-libgcc", "-static-libstdc++", "-s"], &["comparator.cpp"]),
    recipe("throw", &["g++", "-O2", "-g", CALLS], &["throw.cpp"]),
    recipe("panics", &["rustc", "-O", "-g", "--edition=2024"], &["panics.rs"]),
    recipe("generics-v0", &["rustc", "-O", "--edition=2024", "-Csymbol-mangling-version=v0"], &["generics.rs"]),
    recipe("generics-legacy", RUST_LEGACY, &["generics.rs"]),
    recipe("unused", &["clang", "-O2", "-g"], &["unused.c"]),
    recipe("passed", &["rustc", "-O", "-g", "--edition=2024"], &["passed.rs"]),
    recipe("keyed", &["rustc", "-O", "-g", "--edition=2024"], &["keyed.rs"]),
    recipe("texts-rust", &["rustc", "-O", "-g", "--edition=2024", "--crate-name=texts"], &["texts.rs"]),
    recipe("texts-cpp", &["g++", "-O2", "-g", "-std=c++17"], &["texts.cpp"]),
    recipe("overloads", &["g++", "-O2", "-g"], &["overloads.cpp"]),
    recipe("words-musl", &["musl-gcc", "-O2", "-static"], &["words.c"]),
    recipe("grow", &["go", "build"], &["grow.go"]),
    recipe("nosplit", &["go", "build"], &["nosplit.go"]),
    recipe("goabi", &["go", "build"], &["goabi.go"]),
    recipe("served", &["go", "build"], &["served.go"]),
    recipe("goroutines", &["go", "build"], &["goroutines.go"]),
    recipe("goroutines-stripped", &["go", "build", "-ldflags=-s -w"], &["goroutines.go"]),
    recipe("returns-go", &["go", "build"], &["returns.go"]),
    recipe("pairs-go", &["go", "build"], &["pairs.go"]),
    recipe("walks", &["cc", "-O2", "-g"], &["walks.c"]),
    recipe("frames", CC, &["frames.c"]),
    recipe("walked", CC, &["walked.c"]),
    // The name of a library that moves stacks, by which such libraries are known.
    recipe("greenlet.so", &["cc", "-O2", "-shared", "-fPIC"], &["walker.c"]),
    recipe("switched", &["c++", "-O2", "-g"], &["switched.cpp"]),
    recipe("symbols", CC, &["symbols.c"]),
    recipe("probed", CC, &["probed.c"]),
    recipe("script", CC, &["script.c"]),
    recipe("tools", &["cc", "-O2", "-g", "-pthread", CALLS, "-fno-omit-frame-pointer"], &["tools.c"]),
    recipe("locks", &["cc", "-O2", "-g", "-pthread", CALLS, "-fno-omit-frame-pointer"], &["locks.c"]),
    recipe("liblate_kill.so", &["cc", "-O2", "-shared", "-fPIC"], &["late_kill.c"]),
    recipe("libendless.so", &["cc", "-O2", "-shared", "-fPIC"], &["endless.c"]),
    recipe("archived", CC, &["archived.c"]),
    recipe("leaf.so", &["cc", "-O2", "-shared", "-fPIC", "-nostdlib", "-Wl,-e,leaf"], &["leaf.c"]),
    recipe("entered", CC, &["entered.c"]),
    recipe("libdistant.so", &["cc", "-shared", "-nostdlib"], &["distant.S"]),
    recipe("libmallocs.so", &["cc", "-O2", "-shared", "-fPIC"], &["mallocs.c"]),
    recipe("usdt", CC, &["usdt.c"]),
    recipe("usdt-50000", CC, &["usdt_many.c", "usdt_many_asm.S"]),
    recipe("operands", CC, &["operands.c", "operands.S"]),
    recipe("coverage", &["cc", "-nostdlib", "-static"], &["coverage.S"]),
    recipe("registers", CC_FIXED, &["registers.c", "registers_asm.S"]),
    recipe("stacks", &["cc", "-O2", "-g", "-pthread", CALLS, "-fomit-frame-pointer"], &["stacks.c"]),
    recipe("generated", CC, &["generated.c"]),
    recipe(
        "suites",
        &["cc", "-O2", "-g", "-pthread", CALLS, "-fno-omit-frame-pointer"],
        &["suites.c", "suites_twin.c"],
    ),
    recipe("typed", CC, &["typed.c"]),
    recipe("local", CC, &["local.c"]),
    recipe("records", CC, &["records.c"]),
    recipe("records-stripped", &["cc", "-O2", "-s"], &["records.c"]),
    recipe("typed.bpf.o", BPF, &["typed.bpf.c"]),
    recipe("suites.bpf.o", BPF, &["suites.bpf.c"]),
    recipe("bench.bpf.o", BPF, &["bench.bpf.c"]),
    recipe("sections.bpf.o", BPF, &["sections.bpf.c"]),
    recipe("session.bpf.o", BPF, &["session.bpf.c"]),
    recipe("maps.bpf.o", BPF, &["maps.bpf.c"]),
    recipe("loop.bpf.o", BPF, &["loop.bpf.c"]),
    recipe("latency.bpf.o", BPF, &["latency.bpf.c"]),
    recipe("look.bpf.o", BPF, &["look.bpf.c"]),
    recipe("storm.bpf.o", BPF, &["storm.bpf.c"]),
    recipe("races.bpf.o", BPF, &["races.bpf.c"]),
    recipe("registers.bpf.o", BPF, &["registers.bpf.c"]),
    recipe("override.bpf.o", BPF, &["override.bpf.c"]),
    recipe("change.bpf.o", BPF, &["change.bpf.c"]),
    recipe("refused.bpf.o", BPF, &["refused.bpf.c"]),
    recipe("core.bpf.o", BPF, &["core.bpf.c"]),
    recipe("usdt.bpf.o", BPF, &["usdt.bpf.c"]),
    recipe("thrown.bpf.o", BPF, &["thrown.bpf.c"]),
    recipe("room.bpf.o", BPF, &["room.bpf.c"]),
];

/// Sources for x86 alone: with its assembly, or the names of its registers in signal frames and in
/// `struct pt_regs`, which programs for Arm do not have.
const X86: &[&str] = &[
    "bench.c",
    "change.bpf.c",
    "coverage.S",
    "displaced.c",
    "edge.c",
    "emulated.c",
    "labels.c",
    "leads.c",
    "livepatch.c",
    "operands.c",
    "override.bpf.c",
    "promotion.c",
    "registers.bpf.c",
    "registers.c",
    "short.c",
    "stepped.c",
    "structures.c",
    "suites.bpf.c",
    "suites.c",
    "swapped.S",
    "unwind.c",
    "usdt_many.c",
    "walked.c",
    "zone.c",
];

/// Names a folder with programs that are built already, on a machine without compilers: there,
/// [`target`] builds nothing.
pub const BUILT: &str = "SIDESTEP_TARGETS";

/// The program `name`, built if it is missing or older than its sources. `None` if its compiler is
/// missing and skipping is allowed, or if there is none for 32-bit programs.
///
/// # Panics
/// If the build fails.
pub fn target(name: &str) -> Option<PathBuf> {
    // One build at a time: tests run in parallel and want the same programs.
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);

    let recipe = RECIPES.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("no recipe for {name}"));
    if let Some(built) = std::env::var_os(BUILT) {
        let program = PathBuf::from(built).join(name);
        if !program.exists() {
            skip(&format!("tests/targets/{} is not built for this machine", recipe.sources[0]));
            return None;
        }
        return Some(program);
    }
    let mut compiler = recipe.compiler.to_vec();
    let mut dir = target_dir().join("test-targets");
    if is_32_bit() {
        if compiler[0] == "musl-gcc" {
            return None; // Debian's makes none for 32 bit
        }
        dir.push("32");
        for_32_bit(&mut compiler);
    }
    let program = dir.join(name);
    if program.metadata().and_then(|m| m.modified()).is_ok_and(|built| built > newest_source()) {
        return Some(program);
    }
    if !installed(compiler[0]) {
        skip(&format!("no {} for tests/targets/{}", compiler[0], recipe.sources[0]));
        return None;
    }
    build(recipe, &compiler, &dir);
    Some(program)
}

/// Builds a program into a folder.
///
/// # Panics
/// If the compiler refuses it.
fn build(recipe: &Recipe, compiler: &[&str], dir: &Path) {
    std::fs::create_dir_all(dir).expect("target directory is writable");
    // Renamed when complete, so that another process never sees half of it.
    let half = dir.join(format!("{}.{}", recipe.name, std::process::id()));
    let output = run(
        Command::new(compiler[0])
            .args(&compiler[1..])
            .arg("-o")
            .arg(&half)
            .args(recipe.sources)
            .args(recipe.libraries)
            .current_dir(sources()),
        Duration::from_secs(180),
    );
    assert_eq!(output.code(), 0, "building {}:\n{output}", recipe.name);
    std::fs::rename(&half, dir.join(recipe.name)).expect("same directory");
}

/// How programs are built for another machine.
pub struct Cross {
    /// The name of its folders, and of the programs of its compiler.
    pub triplet: &'static str,
    /// What eBPF objects for it are told.
    bpf: &'static [&'static str],
    /// Programs, or first sources, that are not for it, besides those for x86 alone.
    left_out: &'static [&'static str],
}

/// With the C library of Debian's cross compiler.
pub static ARM64: Cross = Cross {
    triplet: "aarch64-linux-gnu",
    bpf: &["-D__TARGET_ARCH_arm64", "-I/usr/aarch64-linux-gnu/include"],
    left_out: &[],
};

/// A program cannot set the thread pointer there, which `based.c` does. `torture.c` and `distant.S`
/// have assembly that is not written for it. Its C library has no start files for static programs
/// at any address. The headers of libbpf have the fifth argument in a register, where those on the
/// stack begin.
pub static ARM32: Cross = Cross {
    triplet: "arm-linux-gnueabihf",
    bpf: &["-D__TARGET_ARCH_arm", "-I/usr/arm-linux-gnueabihf/include"],
    left_out: &["based.c", "counts-static-pie", "distant.S", "torture.c", "typed.bpf.c"],
};

/// Builds all programs that can be built for another machine into a folder, which [`BUILT`] names
/// where they run.
///
/// # Panics
/// If a compiler refuses one.
pub fn build_for(cross: &Cross, dir: &Path) {
    let newest = newest_source();
    let is_old = |recipe: &Recipe| {
        !dir.join(recipe.name).metadata().and_then(|m| m.modified()).is_ok_and(|built| built > newest)
    };
    let all = RECIPES.iter().filter(|recipe| is_old(recipe));
    let work: Vec<_> = all.filter_map(|recipe| Some((recipe, cross.compiler(recipe)?))).collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((recipe, compiler)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let compiler: Vec<&str> = compiler.iter().map(String::as_str).collect();
                    build(recipe, &compiler, dir);
                }
            });
        }
    });
}

impl Cross {
    /// The compiler and its options; `None` if there is none for this program.
    fn compiler(&self, recipe: &Recipe) -> Option<Vec<String>> {
        // The cross compiler comes with the C library alone.
        let source = &recipe.sources[0];
        let is_left_out = self.left_out.contains(source) || self.left_out.contains(&recipe.name);
        if X86.contains(source) || is_left_out || !recipe.libraries.is_empty() {
            return None;
        }
        let [compiler, options @ ..] = recipe.compiler else { return None };
        let mut all = match *compiler {
            "cc" => vec![format!("{}-gcc", self.triplet)],
            "c++" | "g++" => vec![format!("{}-g++", self.triplet)],
            "clang" if options.contains(&"bpf") => {
                ["clang"].iter().chain(self.bpf).map(|word| (*word).to_owned()).collect()
            }
            _ => return None,
        };
        let is_x86 = |option: &str| {
            ["-D__TARGET_ARCH_x86", "-I/usr/include/x86_64-linux-gnu"].contains(&option)
                || option.starts_with("-fcf-protection")
                || option.contains("indirect-branch")
        };
        all.extend(options.iter().filter(|option| !is_x86(option)).map(|option| (*option).to_owned()));
        Some(all)
    }
}

/// Makes a compiler one for 32-bit programs, which find their loader and libraries where the cross
/// compiler has them.
fn for_32_bit(compiler: &mut Vec<&str>) {
    match compiler[0] {
        "cc" => compiler[0] = "i686-linux-gnu-gcc",
        "clang" => return compiler.push("-DTARGET_I386"), // eBPF
        other => panic!("no {other} for 32-bit programs"),
    }
    if !compiler.contains(&"-static") && !compiler.contains(&"-static-pie") {
        let library = "/usr/i686-linux-gnu/lib";
        assert!(Path::new(library).is_dir(), "no {library}: cargo xtask setup");
        compiler.push("-Wl,--dynamic-linker=/usr/i686-linux-gnu/lib/ld-linux.so.2");
        // Also for what libraries load by themselves. Behind it, what Debian has for 32-bit
        // programs of this machine.
        compiler.push("-Wl,--disable-new-dtags");
        compiler.push("-Wl,-rpath,/usr/i686-linux-gnu/lib:/usr/lib32");
        compiler.push("-L/usr/lib32");
    }
}

/// Is the program in `PATH`?
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Are they all in `PATH`? If not, the test is skipped, loudly.
///
/// # Panics
/// If one is missing and skipping is not allowed.
#[track_caller]
pub fn have(programs: &[&str]) -> bool {
    match programs.iter().find(|program| !installed(program)) {
        Some(missing) => {
            skip(&format!("no {missing}"));
            false
        }
        None => true,
    }
}

/// The checkout.
pub fn checkout() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where cargo builds: this executable lies in `TARGET/PROFILE` or `TARGET/PROFILE/deps`.
///
/// # Panics
/// If it does not.
pub fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let profile = exe.ancestors().find(|dir| dir.ends_with("debug") || dir.ends_with("release"));
    profile.and_then(Path::parent).expect("runs from a cargo target directory").to_path_buf()
}

fn sources() -> PathBuf {
    checkout().join("tests/targets")
}

/// Of the sources, and of the recipes in this file.
fn newest_source() -> SystemTime {
    let files = sources().read_dir().expect("tests/targets").flatten().map(|entry| entry.path());
    let files = files.chain([checkout().join("tests/harness/build.rs")]);
    files.filter_map(|f| f.metadata().ok()?.modified().ok()).max().expect("tests/targets is not empty")
}
