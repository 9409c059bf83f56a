//! Jump tables of 32-bit code: no plan displaces what a `case` begins in the middle of.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use object::{Object as _, ObjectSymbol};
use sidestep_isa::{Flow, Va, sweep};
use sidestep_plan::{Index, Reason, Technique, plan};
use sidestep_symbols::Object;

use super::Scratch;

const SOURCE: &str = "
extern int sink(int, int);
int dense(int x, int y) {
    switch (x) {
    case 0: return sink(y, 1);
    case 1: y += 3; break;
    case 2: y *= 7; break;
    case 3: y = sink(y, 2); break;
    case 4: y ^= x; break;
    case 5: return y - 9;
    case 6: y = sink(y, y) + 1; break;
    case 8: y <<= 2; break;
    case 9: y += 5; /* and on */
    case 10: y ^= 77; /* and on */
    case 11: y = -y; break;
    default: y = 0;
    }
    return sink(x, y);
}
/* The table pointer is needed again after calls, and so is kept on the stack. */
int loops(const unsigned char *p, int n) {
    int sum = 0, a, b, c, d;
    while (n-- > 0) {
        a = sink(sum, n), b = sink(a, n), c = sink(b, a), d = sink(c, b);
        switch (*p++) {
        case 10: sum += sink(sum, a); break;
        case 11: sum -= b; break;
        case 12: sum *= c; break;
        case 13: sum ^= d; break;
        case 14: sum += a + d; break;
        case 15: return sum;
        case 16: p += 2; break;
        case 18: sum += 5; /* and on */
        case 19: sum ^= 77; /* and on */
        case 20: sum = -sum; break;
        case 17: sum = sink(a, d) + sink(b, c); break;
        }
    }
    return sum;
}
/* Threaded code. */
int threaded(const unsigned char *p, int sum) {
    static const void *const labels[] = {&&add, &&sub, &&mul, &&end};
    goto *labels[*p++];
add: sum += sink(sum, 1); goto *labels[*p++];
sub: sum -= 9; goto *labels[*p++];
mul: sum *= 5; goto *labels[*p++];
end: return sum;
}
/* Tail calls through what was passed on the stack and what is stored. */
struct ops { int (*f)(int, int); };
int tail(int x, struct ops *ops, int y) { if (sink(x, y)) return 1; return ops->f(x, y); }
int passed(int (*f)(int, int), int x) { int y = sink(x, 2); return y > 3 ? f(x, y) : y; }
";

/// Assembles a compiler's output with a symbol for each entry of a table.
fn build(dir: &Path, flags: &[&str], link: &[&str]) -> (std::path::PathBuf, usize) {
    let (source, listing, output) = (dir.join("tables.c"), dir.join("tables.s"), dir.join("tables"));
    std::fs::write(&source, SOURCE).expect("a source file");
    let gcc = || Command::new("i686-linux-gnu-gcc");
    assert!(gcc().args(flags).arg("-S").arg(&source).arg("-o").arg(&listing).status().expect("gcc").success());
    let mut text = std::fs::read_to_string(&listing).expect("its output");
    let in_table =
        |line: &str| line.trim().strip_prefix(".long\t").map(|entry| entry.trim_end_matches("@GOTOFF").to_owned());
    let entries = text.lines().filter_map(in_table).filter(|entry| entry.starts_with(".L"));
    let labels: BTreeSet<String> = entries.filter(|entry| entry[2..].bytes().all(|b| b.is_ascii_digit())).collect();
    for (i, label) in labels.iter().enumerate() {
        text += &format!("\t.globl case_{i}\n\t.set case_{i},{label}\n");
    }
    text += "\t.text\n\t.globl sink\n\t.type sink,@function\nsink:\n\tret\n\t.size sink,.-sink\n";
    std::fs::write(&listing, text).expect("the listing");
    assert!(gcc().args(link).arg("-nostdlib").arg(&listing).arg("-o").arg(&output).status().expect("gcc").success());
    (output, labels.len())
}

#[test]
fn no_plan_covers_a_case() {
    for (flags, link) in [
        (&["-O2", "-fPIC"][..], &["-shared"][..]),
        (&["-Os", "-fPIC"], &["-shared"]),
        (&["-O0", "-fPIC"], &["-shared"]),
        (&["-O2", "-fpie"], &["-pie", "-Wl,-edense"]),
        (&["-O2", "-fno-pic"], &["-no-pie", "-Wl,-edense"]),
        (&["-O0", "-fno-pic"], &["-no-pie", "-Wl,-edense"]),
    ] {
        let dir = Scratch::new("tables");
        let (file, cases) = build(&dir.0, flags, link);
        assert!(cases > 15, "{flags:?}: {cases}");
        let object = Object::open(&file, &[]).expect("an object");
        let data = std::fs::read(&file).expect("its bytes");
        let elf = object::File::parse(&*data).expect("an ELF file");
        let named = |s: &object::Symbol<'_, '_>| s.name().is_ok_and(|name| name.starts_with("case_"));
        let cases: BTreeSet<Va> = elf.symbols().filter(named).map(|s| Va(s.address())).collect();
        let mut code = object.code().expect("its code");
        // The assembler keeps its local labels.
        code.labels.clear();
        code.extents.retain(|extent| !cases.contains(&extent.start));
        let index = Index::new(code.clone());
        let (mut several, mut by_table, mut unknown) = (0, 0, Vec::new());
        let functions = ["dense", "loops", "threaded", "tail", "passed"];
        for f in object.functions().iter().filter(|f| functions.contains(&&*f.name)) {
            let text = code.text_at(f.va, f.va.plus(f.size)).expect("its text");
            for insn in sweep(code.isa, text, f.va).map_while(Result::ok) {
                let plan = plan(&index, insn.va(), false).expect("a plan");
                let inside = cases.range(Va(plan.site.0 + 1)..plan.site.plus(plan.region)).next();
                assert_eq!(inside, None, "{flags:?}: {} at {} covers a case", f.name, plan.site);
                several += usize::from(plan.technique == Technique::JumpOverSeveral);
                let reasons = plan.rejected.iter().map(|rejected| &rejected.reason);
                let to_case = |why: &&Reason| matches!(why, Reason::JumpTable { .. } | Reason::Pointer { .. });
                by_table += reasons.clone().filter(to_case).count();
                unknown.extend(reasons.filter(|why| matches!(why, Reason::UnknownJumps(_))).cloned());
                assert!(insn.flow() != Flow::Stop);
            }
        }
        // It is not that nothing was understood.
        assert_eq!(unknown, [], "{flags:?}");
        assert!(several > 60 && by_table > 3, "{flags:?}: {several}, {by_table}");
    }
}
