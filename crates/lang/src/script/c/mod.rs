//! Headers of C, made flat: what their `#include`, `#if` and macros come to.
//!
//! A header of the system is more than declarations. [`Headers::read`] makes of it, and of all that
//! it includes, one text without directives but `#define NAME NUMBER` and `#define NAME "TEXT"`,
//! which the parser reads. Nothing is opened here: the caller finds the files.

mod condition;
mod macros;
mod words;

use std::collections::HashSet;
use std::fmt::Write;

use condition::{Value, WIDEST, Widths};
use macros::{Macro, Macros};
use words::{Kind, Word, character, integer, lines, words};

/// A header that is wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// As it is written.
    pub name: &'a str,
    /// `"NAME"`: first beside this file.
    pub beside: Option<&'a str>,
    /// `#include_next`: behind the folder that this file was found in.
    pub behind: Option<&'a str>,
}

/// A header that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// Headers within headers at most.
const NESTED: usize = 100;
/// Steps for a file that is opened: it costs as much as some hundred words.
const OPENING: usize = 256;
/// Bytes of a file that are read in one step.
const STEP: usize = 8;

/// Headers include each other, or their macros expand, without an end in sight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Endless;

impl std::fmt::Display for Endless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("this header takes too long to read: it includes too much, or its macros are too long")
    }
}

/// Headers that were read so far, and the macros that they have defined.
#[derive(Clone, Debug)]
pub struct Headers {
    macros: Macros,
    /// Bits of a `long`.
    long: u32,
    /// Files with `#pragma once`.
    once: HashSet<String>,
    /// `#pragma pack(N)` that holds.
    pack: Option<u64>,
    /// Those that `#pragma pack(pop)` goes back to.
    packs: Vec<Option<u64>>,
    /// Macros of the files, in the order of their definitions.
    defined: Vec<String>,
    /// Declarations.
    out: String,
}

/// The state of an `#if`: whether its lines count, with all that it stands in, and whether some
/// branch did.
#[derive(Clone, Copy)]
struct Branch {
    counts: bool,
    done: bool,
}

impl Headers {
    /// None was read. `word`: bytes of a pointer.
    #[must_use]
    pub fn new(word: u8) -> Headers {
        let mut headers = Headers {
            macros: Macros::new(),
            long: u32::from(word) * 8,
            once: HashSet::new(),
            pack: None,
            packs: Vec::new(),
            defined: Vec::new(),
            out: String::new(),
        };
        let (long, size) = if word == 8 { ("long", "8") } else { ("int", "4") };
        let isa = match std::env::consts::ARCH {
            "x86" => "__i386__".to_owned(),
            name => format!("__{name}__"),
        };
        // As clang has them.
        let all = format!(
            "__STDC__ 1\n__STDC_VERSION__ 201710L\n__STDC_HOSTED__ 1\n__GNUC__ 4\n__GNUC_MINOR__ 2\n__clang__ 1\n__signed__ signed\n__signed signed\n\
             __linux__ 1\n__unix__ 1\n__ELF__ 1\n__CHAR_BIT__ 8\n{isa} 1\n__SIZEOF_INT__ 4\n__SIZEOF_SHORT__ 2\n\
             __SIZEOF_LONG__ {size}\n__SIZEOF_POINTER__ {size}\n__SIZEOF_LONG_LONG__ 8\n__INT_MAX__ 2147483647\n\
             __SIZE_TYPE__ unsigned {long}\n__PTRDIFF_TYPE__ {long}\n__WCHAR_TYPE__ int\n__WINT_TYPE__ unsigned int\n\
             __BYTE_ORDER__ 1234\n__ORDER_LITTLE_ENDIAN__ 1234\n__ORDER_BIG_ENDIAN__ 4321\n\
             __LONG_LONG_MAX__ 9223372036854775807LL\n__INTPTR_TYPE__ {long}\n__UINTPTR_TYPE__ unsigned {long}\n{}",
            if word == 8 {
                "__LP64__ 1\n_LP64 1\n__LONG_MAX__ 9223372036854775807L\n"
            } else {
                "__LONG_MAX__ 2147483647L\n"
            }
        );
        for line in all.lines() {
            headers.define(&words(line), false);
        }
        headers
    }

    /// Reads a header, and gives what it declares beyond those that were read before.
    ///
    /// `find` opens it, and those that it includes. What is not found is left out: the compiler has
    /// headers of its own, whose types the language knows.
    ///
    /// # Errors
    ///
    /// The headers that were read so far, and this one, took too many steps.
    pub fn read(
        &mut self,
        name: &str,
        find: &mut dyn FnMut(&Wanted) -> Option<Found>,
    ) -> Result<Option<String>, Endless> {
        self.out.clear();
        self.defined.clear();
        let Some(found) = find(&Wanted { name, beside: None, behind: None }) else { return Ok(None) };
        self.file(&found, find, 0);
        let mut flat = std::mem::take(&mut self.out);
        for name in std::mem::take(&mut self.defined) {
            if let Some(value) = self.constant(&name) {
                let _ = writeln!(flat, "#define {name} {value}");
            }
        }
        if self.macros.is_spent() { Err(Endless) } else { Ok(Some(flat)) }
    }

    /// The number or text that a macro without parameters stands for.
    fn constant(&self, name: &str) -> Option<String> {
        let body = self.macros.known.get(name).filter(|known| known.parameters.is_none())?.body.clone();
        let made = self.macros.expand(body);
        match &made[..] {
            [] => None,
            // Texts one behind the other are one text.
            texts if texts.iter().all(|word| word.kind == Kind::Text && word.text.starts_with('"')) => {
                let inner = |word: &Word| word.text.strip_prefix('"')?.strip_suffix('"').map(str::to_owned);
                Some(format!("\"{}\"", texts.iter().map(inner).collect::<Option<String>>()?))
            }
            all if all.iter().any(|word| word.kind == Kind::Name) => None,
            all => {
                let widths = Widths { int: 32, long: self.long };
                Some(condition::value(all, widths)?.to_string())
            }
        }
    }

    fn define(&mut self, line: &[Word], is_files: bool) {
        let Some((name, found)) = Macro::parse(line) else { return };
        if is_files {
            self.defined.push(name.clone());
        }
        self.macros.known.insert(name, found);
    }

    fn file(&mut self, of: &Found, find: &mut dyn FnMut(&Wanted) -> Option<Found>, depth: usize) {
        if depth > NESTED || self.once.contains(&of.path) || !self.macros.spend(of.text.len() / STEP) {
            return;
        }
        let mut branches: Vec<Branch> = Vec::new();
        let mut waiting = Vec::new();
        for line in lines(&of.text) {
            let counts = branches.last().is_none_or(|branch| branch.counts);
            let Some(directive) = line.trim_start().strip_prefix('#') else {
                if counts {
                    waiting.extend(words(&line).into_iter().map(|word| Word { spaced: true, ..word }));
                }
                continue;
            };
            let rest = words(directive);
            let Some((word, rest)) = rest.split_first() else { continue };
            if self.branch(&word.text, rest, counts, &mut branches) || !counts {
                continue;
            }
            match &*word.text {
                "define" | "undef" | "include" | "include_next" => self.declare(&mut waiting),
                _ => {}
            }
            match &*word.text {
                "define" => self.define(rest, true),
                "undef" => {
                    rest.first().map(|name| self.macros.known.remove(&name.text));
                }
                "include" | "include_next" => {
                    // Only what is no name yet is expanded.
                    let behind_word = directive.trim_start()[word.text.len()..].trim();
                    let written = if behind_word.starts_with(['<', '"']) {
                        behind_word.to_owned()
                    } else {
                        self.macros.expand(rest.to_vec()).iter().map(|word| &*word.text).collect()
                    };
                    let name = written.trim_matches(['<', '>', '"']);
                    let beside = written.starts_with('"').then_some(&*of.path);
                    let behind = (word.text == "include_next").then_some(&*of.path);
                    if !self.macros.spend(OPENING) {
                        return;
                    }
                    if let Some(found) = find(&Wanted { name, beside, behind }) {
                        self.file(&found, find, depth + 1);
                    }
                }
                "pragma" if rest.first().is_some_and(|word| word.text == "pack") => {
                    self.declare(&mut waiting);
                    self.pack(&rest[1..]);
                }
                "pragma" if rest.first().is_some_and(|word| word.text == "once") => {
                    self.once.insert(of.path.clone());
                }
                _ => {}
            }
        }
        self.declare(&mut waiting);
    }

    /// Takes a directive that chooses lines; `false`: it is another one.
    fn branch(&self, word: &str, rest: &[Word], counts: bool, branches: &mut Vec<Branch>) -> bool {
        let is_defined = || rest.first().is_some_and(|name| self.macros.known.contains_key(&name.text));
        match word {
            "if" | "ifdef" | "ifndef" => {
                let holds = counts
                    && match word {
                        "if" => self.holds(rest),
                        "ifdef" => is_defined(),
                        _ => !is_defined(),
                    };
                branches.push(Branch { counts: holds, done: holds });
            }
            "elif" | "else" => {
                let outer = branches.len().checked_sub(2);
                let counts = outer.is_none_or(|outer| branches[outer].counts);
                let done = branches.last().is_none_or(|branch| branch.done);
                let holds = !done && counts && (word == "else" || self.holds(rest));
                if let Some(last) = branches.last_mut() {
                    *last = Branch { counts: holds, done: done || holds };
                }
            }
            "endif" => {
                branches.pop();
            }
            _ => return false,
        }
        true
    }

    fn holds(&self, line: &[Word]) -> bool {
        let known = answered(line, &|name| self.macros.known.contains_key(name));
        let expanded = self.macros.expand(known);
        // A macro may stand for `defined X`.
        let expanded = answered(&expanded, &|name| self.macros.known.contains_key(name));
        condition::value(&expanded, WIDEST).is_some_and(Value::holds)
    }

    /// Takes the brackets of `#pragma pack(…)`.
    fn pack(&mut self, brackets: &[Word]) {
        for word in brackets {
            match (word.kind, &*word.text) {
                (Kind::Name, "push") => self.packs.push(self.pack),
                (Kind::Name, "pop") => self.pack = self.packs.pop().flatten(),
                // A number that is not understood is one that is not supported.
                (Kind::Number, text) => self.pack = Some(integer(text).unwrap_or(0)),
                _ => {}
            }
        }
        if matches!(brackets, [open, close] if open.is("(") && close.is(")")) {
            self.pack = None;
        }
    }

    /// What stands behind the `struct` or `union` of a record, by the `#pragma pack` that holds: a
    /// text there makes the parser leave the record out.
    fn packed(&self) -> &'static str {
        match self.pack {
            None => "",
            Some(1) => "__packed ",
            Some(_) => "\"\" ",
        }
    }

    /// Writes out words that are no directives, so that the parser can read each.
    fn declare(&mut self, waiting: &mut Vec<Word>) {
        if waiting.is_empty() {
            return;
        }
        let mut words = self.macros.expand(std::mem::take(waiting)).into_iter();
        while let Some(word) = words.next() {
            let text = match word.kind {
                // The language writes neither suffixes nor characters. A declaration with a number
                // that is not understood is left out, since a text stands in its place.
                Kind::Number => integer(&word.text).map_or("\"\"".to_owned(), |number| number.to_string()),
                Kind::Char => character(&word.text).to_string(),
                Kind::Text => "\"\"".to_owned(),
                Kind::Sign if matches!(&*word.text, "\\" | "#" | "$" | "@" | "`") => continue,
                _ => word.text,
            };
            self.out.push_str(&text);
            self.out.push(if matches!(&*text, ";" | "}") { '\n' } else { ' ' });
            if matches!(&*text, "struct" | "union") && defines_record(words.as_slice()) {
                self.out.push_str(self.packed());
            }
        }
        self.out.push('\n');
    }
}

/// Whether members follow behind `struct` or `union`.
fn defines_record(behind: &[Word]) -> bool {
    match behind {
        [word, ..] if word.is("{") || word.text.starts_with("__attribute") => true,
        [name, next, ..] => name.kind == Kind::Name && (next.is("{") || next.text.starts_with("__attribute")),
        _ => false,
    }
}

/// Whether the condition behind `#if` of a script holds. `number`: what a name stands for, if it is
/// defined; not every name is a number. `None`: it is no condition.
#[must_use]
pub fn holds(line: &str, number: &dyn Fn(&str) -> Option<Option<u64>>) -> Option<bool> {
    let line = lines(line).join(" ");
    let known = answered(&words(&line), &|name| number(name).is_some());
    let valued = known.into_iter().map(|word| match number(&word.text).flatten() {
        Some(n) if word.kind == Kind::Name => Word::new(Kind::Number, &n.to_string()),
        _ => word,
    });
    condition::value(&valued.collect::<Vec<_>>(), WIDEST).map(Value::holds)
}

/// `defined X`, `defined(X)` and `__has_…(…)` with their answers in place.
fn answered(line: &[Word], is_defined: &dyn Fn(&str) -> bool) -> Vec<Word> {
    let mut made = Vec::new();
    let mut at = 0;
    while let Some(word) = line.get(at) {
        at += 1;
        let open = line.get(at).is_some_and(|next| next.is("("));
        let truth = |holds: bool| Word::new(Kind::Number, if holds { "1" } else { "0" });
        if word.text == "defined" {
            let name = line.get(at + usize::from(open));
            made.push(truth(name.is_some_and(|name| is_defined(&name.text))));
            at += if open { 3 } else { 1 };
        } else if word.text.starts_with("__has_") && open {
            // There are no headers, attributes or functions of compilers here.
            let end = line[at..].iter().position(|word| word.is(")"));
            at += end.map_or(1, |end| end + 1);
            made.push(truth(false));
        } else {
            made.push(word.clone());
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What files come to; the first one is read.
    fn flat(files: &[(&str, &str)]) -> String {
        let mut find = |wanted: &Wanted| {
            let found = files.iter().find(|(name, _)| *name == wanted.name)?;
            Some(Found { path: found.0.to_owned(), text: found.1.to_owned() })
        };
        let read = Headers::new(8).read(files[0].0, &mut find).unwrap().unwrap();
        read.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn macros_are_replaced_as_in_c() {
        for (text, wanted) in [
            ("#define N 3\nint a[N];", "int a [ 3 ] ; #define N 3"),
            ("#define F(a, b) a##b int\nF(x, y) z;", "xy int z ;"),
            ("#define f(x) x + f(x)\nf(1);", "1 + f ( 1 ) ;"),
            ("#define G(...) g(__VA_ARGS__)\nG(1, (2, 3));", "g ( 1 , ( 2 , 3 ) ) ;"),
            ("#define E(f, ...) e(f, ##__VA_ARGS__)\nE(1); E(1, 2);", "e ( 1 ) ; e ( 1 , 2 ) ;"),
            ("#define A B\n#define B A\nA;", "A ;"),
            ("#define EMPTY\n#define T(x) x EMPTY y\nT(EMPTY z);", "z y ;"),
            ("#define C(x) \\\n  x\nC('\\n') /* a\n b */ 0x1FUL 1.5f;", "10 31 \"\" ;"),
            ("'\\'' 0b11u 08;", "39 3 \"\" ;"),
            ("#define B (~0)", "#define B -1"),
            (
                "#pragma pack(push, 1)\nstruct a { struct b *c; };\n#pragma pack(pop)\nunion d { };",
                "struct __packed a { struct b * c ; } ; union d { } ;",
            ),
            ("#pragma pack(2)\nstruct { };\n#pragma pack()\nstruct { };", "struct \"\" { } ; struct { } ;"),
            ("#define B (~0U)", "#define B 4294967295"),
            ("#define B (~0UL)", "#define B 18446744073709551615"),
            ("#define B -0x80000000", "#define B 2147483648"),
            ("#define B (-2147483648 | 0u)", "#define B -2147483648"),
            ("#define B (0xffffffff + 1)", "#define B 0"),
            ("#define B (1 << 4U)", "#define B 16"),
            ("#define S \"a\" \n#define M (1 << 4 | 2)\n#define U unknown(1)", "#define S \"a\" #define M 18"),
        ] {
            assert_eq!(flat(&[("a.h", text)]), wanted, "{text}");
        }
    }

    #[test]
    fn headers_without_an_end_are_given_up() {
        let doubles = (1..=40).map(|n| format!("#define A{n} A{0} A{0}\n", n - 1)).collect::<String>();
        let nested = |depth| format!("#define F(x) x x\n{}1{}", "F(".repeat(depth), ")".repeat(depth));
        let texts = (1..=50).map(|n| format!("#define S{n}(x) S{}(#x)\n", n - 1)).collect::<String>();
        let pastes = (1..=50).map(|n| format!("#define P{n}(x) P{}(x##x)\n", n - 1)).collect::<String>();
        for text in [
            format!("#define A0\n{doubles}A40;"),
            nested(40),
            nested(5000),
            format!("{texts}S50(\"\")"),
            format!("{pastes}P50(a)"),
            "#include <a.h>\n#include <a.h>\n".to_owned(),
        ] {
            let mut find = |_: &Wanted| Some(Found { path: "a.h".to_owned(), text: text.clone() });
            assert_eq!(Headers::new(8).read("a.h", &mut find), Err(Endless), "{:.60}", text);
        }
    }

    #[test]
    fn branches_are_chosen_as_in_c() {
        for (condition, holds) in [
            ("1 + 2 * 3 == 7 && !(4 > 5)", true),
            ("defined(X) && X >= 20 || defined Y", true),
            ("defined Y", false),
            ("unknown", false),
            ("X ? 0 : 1", false),
            ("__has_include(<a.h>) || 'a' != 97", false),
            ("-1 < 0x10u", false),
            ("-1 < 0x10", true),
            ("0xffffffffffffffffUL > 0xffffffffUL", true),
            ("-1 > 0u && (1 ? -1 : 0u) > 0 && -1 / 2u > 1", true),
            ("-8 >> 1 == -4 && ~0u >> 63 == 1", true),
            ("1 / 0", false),
            ("1 || 1 / 0", true),
            ("!(0 && 1 % 0) && (1 ? 1 : 1 / 0)", true),
            ("0 || 1 / 0", false),
            ("'\\'' == 39 && '\\\\' == 92", true),
        ] {
            let text = format!("#define X 20L\n#if {condition}\nyes;\n#elif 1\nno;\n#else\nnever;\n#endif\n");
            let wanted = if holds { "yes ;" } else { "no ;" };
            assert!(flat(&[("a.h", &text)]).starts_with(wanted), "{condition}");
        }
    }

    #[test]
    fn headers_are_included_where_they_stand() {
        let inner = "#ifndef INNER\n#define INNER\ntypedef TYPE inner;\n#endif\n";
        let outer = "#define TYPE long\n#include <inner.h>\n#include \"inner.h\"\n#include <none.h>\ninner x;";
        assert_eq!(flat(&[("a.h", outer), ("inner.h", inner)]), "typedef long inner ; inner x ;");
    }

    #[test]
    fn names_of_headers_are_not_expanded() {
        let outer = "#define linux 1\n#define THAT \"b c.h\"\n#include <linux/a  b.h>\n#include THAT\n";
        let files = [("a.h", outer), ("linux/a  b.h", "one;"), ("b c.h", "two;")];
        assert!(flat(&files).starts_with("one ; two ;"));
    }

    #[test]
    fn a_condition_of_a_script_knows_its_constants() {
        let number = |name: &str| match name {
            "N" => Some(Some(3)),
            "TEXT" => Some(None),
            _ => None,
        };
        let holds = |line: &str| super::holds(line, &number);
        assert_eq!(holds("defined(N) && N > 2 // why"), Some(true));
        assert_eq!(holds("defined TEXT && !defined(OTHER)"), Some(true));
        assert_eq!((holds("N - 3"), holds("N +"), holds("")), (Some(false), None, None));
    }
}
