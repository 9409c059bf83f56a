//! The rows of `.eh_frame`, against what readelf makes of it.

mod support;

use std::path::Path;
use std::process::Command;

use sidestep_symbols::{Cfa, Object, Rule, Saved, Unwinding};

/// The rule at an address.
fn rule(unwinding: &Unwinding, at: u64) -> Rule {
    let index = unwinding.rows.partition_point(|row| row.va.0 <= at).checked_sub(1).expect("a row");
    unwinding.rules[unwinding.rows[index].rule as usize]
}

/// Places in `struct pt_regs`, by readelf's names.
fn register(name: &str) -> Option<u8> {
    let names = [
        "r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "", "",
        "", "", "rsp",
    ];
    names.iter().position(|known| *known == name).map(|place| place as u8)
}

/// Whether a rule says what the columns of a row say.
fn agrees(rule: Rule, cfa: &str, columns: &[(&str, &str)]) -> bool {
    let column = |name: &str| columns.iter().find(|(known, _)| *known == name).map_or("u", |(_, value)| *value);
    let saved = |name: &str, saved: Saved| match column(name).strip_prefix('c') {
        Some(offset) => saved == Saved::ByCfa(offset.parse().expect("an offset")),
        None => column(name) != "u" && column(name) != "s" || saved == Saved::Unchanged,
    };
    match (column("ra"), cfa.split_once('+')) {
        // Without a return address, all the rest is of no use.
        ("u", _) => rule.cfa == Cfa::Outermost,
        (ra, _) if ra != "c-8" => matches!(rule.cfa, Cfa::Strange | Cfa::Signal),
        (_, Some((base, offset))) => {
            let wanted =
                Cfa::Register { base: register(base).expect("a register"), offset: offset.parse().expect("a number") };
            rule.cfa == wanted && saved("rbp", rule.bp) && saved("rbx", rule.bx)
        }
        // An expression: readelf does not show it here.
        (_, None) => cfa == "exp" && rule.cfa != Cfa::Unknown,
    }
}

/// How many rows readelf shows of a file, each of which is compared.
fn compare(path: &Path) -> usize {
    let object = Object::open(path, &[]).unwrap();
    let (unwinding, text) = (object.unwinding().unwrap(), object.text().unwrap());
    // Linkers leave descriptions of functions that they have dropped.
    let is_code = |at: u64| text.iter().any(|part| part.va.0 <= at && at - part.va.0 < part.data.len() as u64);
    assert!(unwinding.rows.windows(2).all(|pair| pair[0].va < pair[1].va));
    let output = Command::new("readelf").arg("-wF").arg(path).output().expect("binutils are installed");
    let shown = String::from_utf8_lossy(&output.stdout);
    let (mut names, mut is_function, mut compared) = (Vec::new(), false, 0);
    for line in shown.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            [_, _, _, "FDE", ..] => is_function = true,
            [_, _, _, "CIE", ..] => is_function = false,
            ["LOC", "CFA", rest @ ..] => names = rest.to_vec(),
            [at, cfa, rest @ ..] if is_function && rest.len() == names.len() => {
                let at = u64::from_str_radix(at, 16).expect("an address");
                if !is_code(at) {
                    continue;
                }
                let columns: Vec<(&str, &str)> = names.iter().copied().zip(rest.iter().copied()).collect();
                let rule = rule(&unwinding, at);
                assert!(agrees(rule, cfa, &columns), "{}: {line}: {rule:?}", path.display());
                compared += 1;
            }
            _ => {}
        }
    }
    compared
}

#[test]
#[cfg(target_arch = "x86_64")]
fn readelf_says_the_same() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|path| path.contains("libc.so"));
    let own = std::env::current_exe().unwrap();
    let files = [own.to_str().unwrap(), libc.expect("this program has a C library"), "/usr/bin/gdb", "/bin/bash"];
    for file in files.map(Path::new).iter().filter(|file| file.exists()) {
        assert!(compare(file) > 1000, "{}", file.display());
    }
}

/// Of each entry of a procedure linkage table, the first instructions leave the stack as it is, the
/// last has pushed a word.
#[test]
#[cfg(target_arch = "x86_64")]
fn linkage_tables_depend_on_the_instruction() {
    let object = Object::open(Path::new("/bin/bash"), &[]).unwrap();
    let unwinding = object.unwinding().unwrap();
    let text = object.text().unwrap();
    let table = text.iter().find(|section| section.name == ".plt").expect("bash has one");
    // Behind the first entry, which is another.
    for entry in (table.va.0 + 16..table.va.0 + table.data.len() as u64).step_by(16) {
        let cfa = |at: u64| rule(&unwinding, entry + at).cfa;
        let rsp = |offset| Cfa::Register { base: 19, offset };
        assert_eq!((cfa(0), cfa(6), cfa(11), cfa(15)), (rsp(8), rsp(8), rsp(16), rsp(16)), "{entry:#x}");
    }
}

/// A register behind an expression is nothing that DWARF has, but assembler code of libgcrypt asks
/// for it: what is said before holds, and so does all that is said of other functions.
#[test]
#[cfg(target_arch = "x86_64")]
fn an_instruction_that_makes_no_sense_is_the_end_of_its_function() {
    let source = r#"
        __asm__(".text\n.type odd, @function\nodd: .cfi_startproc\n push %rbp\n .cfi_def_cfa_offset 16\n nop\n"
            /* def_cfa_expression: rsp + 32 */
            " .cfi_escape 0x0f, 2, 0x77, 32\n nop\n .cfi_def_cfa_register %rsp\n nop\n pop %rbp\n ret\n .cfi_endproc\n"
            ".size odd, .-odd\n");
        int main(void) { return 0; }
    "#;
    let program = support::compile(&support::scratch("odd"), "odd.c", source, &[]);
    let object = Object::open(&program, &[]).unwrap();
    let unwinding = object.unwinding().unwrap();
    let cfa = |name: &str, at: u64| rule(&unwinding, object.symbol(name).expect("it is there").0.0 + at).cfa;
    let rsp = |offset| Cfa::Register { base: 19, offset };
    let found: Vec<Cfa> = (0..6).map(|at| cfa("odd", at)).collect();
    assert_eq!(found, [rsp(8), rsp(16), rsp(32), Cfa::Strange, Cfa::Strange, Cfa::Strange]);
    assert_eq!(cfa("main", 0), rsp(8));
}
