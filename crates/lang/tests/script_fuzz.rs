//! Scripts of chance: no text makes the language panic, and what it accepts becomes programs that
//! the verifier accepts.

mod fate;

use fate::{Fate, compile};
use proptest::collection::vec;
use proptest::prelude::*;

/// What scripts with types begin with.
const STRUCTS: &str = "enum colour { RED, GREEN }; \
    struct S { struct S *next; int id; unsigned low : 5, bits : 30; char name[13]; enum colour colour; \
               struct { short low : 9; unsigned char list[2]; double ratio; } inner; };";

const WORDS: &[&str] = &[
    "BEGIN",
    "END",
    "u:a:b",
    "ur:a:b",
    "usdt:a:b:c",
    "interval:s:1",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "/",
    "if",
    "else",
    "while",
    "for",
    "unroll",
    "let",
    ":",
    "uint8",
    "string",
    "typeof",
    "override",
    "write_user",
    "return",
    "$x",
    "$y",
    "$1",
    "$2",
    "$#",
    "@",
    "@m",
    "@n",
    "=",
    "+=",
    "==",
    "!=",
    "<",
    ">",
    "+",
    "-",
    "*",
    "%",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    "&&",
    "||",
    "!",
    "~",
    "++",
    "--",
    "?",
    ":",
    ".",
    "->",
    "..",
    "0",
    "1",
    "42",
    "0xffffffffffffffff",
    "\"a\"",
    "\"%d\"",
    "\"%s %d\\n\"",
    "printf",
    "print",
    "count",
    "sum",
    "hist",
    "lhist",
    "str",
    "arg0",
    "arg7",
    "retval",
    "pid",
    "comm",
    "nsecs",
    "ustack",
    "probe",
    "delete",
    "clear",
    "exit",
    "(int32)",
    "config",
    "struct",
    "union",
    "enum",
    "typedef",
    "S",
    "struct S { int a : 3; char n[4]; struct S *next; };",
    "(struct S *)",
    "sizeof",
    "offsetof",
    ".a",
    "->next",
    "args",
    "self",
    "self.x",
    "macro",
    "fn",
    "import",
    "#include \"x.h\"\n",
    "#ifdef A\n",
    "#else\n",
    "#endif\n",
    "comptime",
    "typeinfo",
    "container_of",
    "ntop",
    "pton",
    "macaddr",
    "str_concat",
    "test:t",
    "bench:b",
    "(a=1, b=2)",
    "?:",
    "(uint8[4])",
    "(string[3])",
    "macro m(a, $b, @c) { a }",
    "m",
    "for ($kv : @m)",
    "$kv.0",
    ".1",
    "(1, \"a\")",
    "avg",
    "max",
    "len",
    "strstr",
    "strcontains",
    "join",
    "buf",
    "func",
    "caller",
    "break",
    "continue",
    "goid",
    "uaddr(\"s\")",
    "signal",
    "tseries(1, 1s, 5)",
    "\"avg\"",
    "let @m = lruhash(5);",
    "let @n = percpuhash(5)",
    "bswap",
    "probetype",
    "errorf",
    "assert",
    "static_assert",
    "fail",
    "is_str",
    "[1]",
    "kprobe:x",
    "#define A 1\n",
    "#define A (1 << 3) + A\n",
    "#define B \"b\"\n",
    "A",
    "// x\n",
    "/*",
    "*/",
    "ü",
];

/// Expressions of numbers that are right.
fn number() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        any::<i64>().prop_map(|n| format!("({n})")),
        (0..100_u32).prop_map(|n| n.to_string()),
        Just("$x".to_owned()),
        Just("$y".to_owned()),
        Just("arg0".to_owned()),
        Just("arg7".to_owned()),
        Just("@a".to_owned()),
        Just("@k[1, \"x\"]".to_owned()),
        Just("nsecs".to_owned()),
        Just("pid".to_owned()),
        Just("@a++".to_owned()),
        Just("--$y".to_owned()),
        Just("(str(arg1) == \"abcdefghijk\")".to_owned()),
        Just("(comm != str(arg0, 9))".to_owned()),
        Just("has_key(@k, 1, str(arg1, 3))".to_owned()),
        Just("*(int16 *)arg1".to_owned()),
        Just("$p->next->next->id".to_owned()),
        Just("(*$p).bits".to_owned()),
        Just("$p->inner.list[1]".to_owned()),
        Just("$d.low".to_owned()),
        Just("args.p->colour".to_owned()),
        Just("args.pair.b".to_owned()),
        Just("args.large.w[3]".to_owned()),
        Just("offsetof(struct S, inner.list)".to_owned()),
        Just("*uaddr(\"word\")".to_owned()),
        Just("(uint64)uaddr(\"other\")".to_owned()),
        Just("goid".to_owned()),
        Just("bswap(arg3)".to_owned()),
        Just("bswap((uint16)arg1)".to_owned()),
        Just("(probe == \"uprobe:a:b\")".to_owned()),
        Just("strlen(probetype)".to_owned()),
    ];
    leaf.prop_recursive(5, 40, 3, |inner| {
        let op = proptest::sample::select(
            &["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", ">=", "==", "&&", "||"][..],
        );
        prop_oneof![
            (inner.clone(), op, inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("({a} ? {b} : {c})")),
            inner.clone().prop_map(|a| format!("(- {a})")),
            inner.clone().prop_map(|a| format!("(!{a})")),
            inner.prop_map(|a| format!("(uint8){a}")),
        ]
    })
}

fn statement() -> impl Strategy<Value = String> {
    (number(), number(), 0..30_u32).prop_map(|(a, b, which)| match which {
        0 => format!("$x = {a};"),
        1 => format!("@a = {a};"),
        2 => format!("@k[{a}, \"x\"] = {b};"),
        3 => format!("@k[{a}, str(arg1, 5)] += {b};"),
        4 => format!("@c[{a}] = count();"),
        5 => format!("@h = hist({a}, 2);"),
        6 => format!("@l[comm] = lhist({a}, -5, 100, 3);"),
        7 => format!("@s[{a}] = stats({b}); @i = min({a});"),
        8 => format!("printf(\"%d %s %d %r\\n\", {a}, str({b}, 20), {a}, buf(arg0, {b} & 255));"),
        9 => format!("print({a});"),
        10 => format!("delete(@k, {a}, \"y\"); zero(@k);"),
        11 => "@t = str(arg0); @t = comm; $s = @t; @u[@t] = ustack(3);".to_owned(),
        13 => format!("for ($i : 0..3) {{ if ($i == {a}) {{ break; }} @a = $i + {b}; }}"),
        14 => format!("while ($y < 5 && {a}) {{ $y++; if ({b}) {{ continue; }} $x += $y; }}"),
        12 => format!("if ({a} < 5 && {b} != 3) {{ $y = {b}; }} else {{ return; }}"),
        16 => format!("print($p[{a}].inner); $q = (struct S *){b}; $q++; @q = $q->next;"),
        17 => format!("@d = *$p; @e[$p->inner, {a}] = {b}; print(@d); $d = @d.inner; print($d);"),
        18 => "printf(\"%s %s\", $p->name, $p->colour); @t = args.p->name; print(args); print(args.x);".to_owned(),
        19 => format!(
            "@pair = args.pair; $n = &$p->inner; $x = $n->list[{a} & 1]; print(sizeof(*$p)); print(args.large);"
        ),
        20 => format!(
            "$t = ({a}, \"x\", ({b}, str(arg0, 7))); @tu[$t.2, {a}] = $t; $t = ($t.0, $t.1, $t.2); \
             if ($t == ({b}, \"yy\", (1, \"z\"))) {{ $x = $t.2.0; }} print($t); $x = ({a} ? (1, \"a\") : (2, \"bc\")).0;"
        ),
        21 => format!(
            "for ($kv : @k) {{ if ($kv.0.0 == {a}) {{ break; }} if ($kv.1 > {b}) {{ continue; }} $x += $kv.1; \
             @tk[$kv] = $kv.0.1; for ($c : @c) {{ $y = $c.1; if ({a}) {{ return; }} for ($i : 0..3) {{ @z = $i; }} }} }}"
        ),
        22 => format!(
            "self.a = {a}; self.t = (str(arg0, 9), {b}); $x = self.a + self.t.1; self.a += {b}; @own[self.t] = count(); \
             self.d = *$p; print(self.d.id);"
        ),
        23 => format!(
            "$x = twice({a}, $y); $y = {{ let $z = {b}; $z + 1 }}; $b = buf(arg0, {a} & 255); @b[$b] = $b; @av[{a}] = avg({b}); \
             @mi = min({a}); @mx[1] = max({b}); $x = @av[{b}] + @mi + @mx[1];"
        ),
        25 => format!(
            "@ts[{a}] = tseries({b}, 1ms, 7, \"min\"); @tl = tseries({a}, 10s, 9); @tv[probe] = tseries({b}, 1us, 3, \"avg\"); \
             delete(@ts, {a}); print(@ts, 3); @lru[{b}, probe] = {a}; @pl[{a}] = sum({b}); $y = {a}; signal($y);"
        ),
        26 => format!(
            "errorf(\"%d %s\", {a}, probe); assert({b}, \"no\"); @pr[probe, probetype] = uaddr(\"word\"); \
             $x = strstr(probe, str(arg0, 5)) + is_str(comm) + ($y == {a}); signal_thread(9); @bi[ustack(build_id, 5)] = {b};"
        ),
        27 => format!(
            "@r = (a={a}, b=str(arg0, 9), c=(1, comm)); $r = @r; @rk[$r] = $r.c.0 + {b}; print($r); \
             $x = ({a} ?: {b}) + (if $y == {a} {{ 1 }} else {{ @a }}); $y ? print({a}) : clear(@k);"
        ),
        28 => format!(
            "@sc = str_concat(str(arg0, 9), str_concat(comm, \"x\")); @ip[ntop({a})] = comm(pid); \
             print(macaddr((uint8[6]){b})); @by = buf(comm, 3); @pp = $p; @pp++; @pp += 2; \
             $x = nsecs(boot) + (uint32)(uint8[4])(uint32){a}; @st[strftime(\"%f\", {b} & 255)] = leader_comm;"
        ),
        29 => format!(
            "while ($y < {a}) {{ $y++; for ($i : 0..$y) {{ @w += $i; if ($i == {b}) {{ break; }} }} \
             if ($x > 5) {{ return; }} $s = str(arg0, {b} & 255); }} for ($i : {a}..{b}) {{ if $i {{ continue; }} $x -= $i; }}"
        ),
        24 => format!(
            "$x = strstr(str(arg0), comm) + strlen(str(arg1, 5)) + len(@k) + len(ustack(4)); \
             if (func == \"abc\" || strcontains(func, comm)) {{ join({a}, \",\"); }} @cl[caller] = max({b});"
        ),
        _ => format!("if (strncmp(str(arg0), comm, 4) == 0) {{ exit({a}) }}"),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_text(source in "\\PC{0,200}") {
        compile(&source);
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..200)) {
        compile(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_words(words in vec(proptest::sample::select(WORDS), 0..60)) {
        compile(&words.join(" "));
        compile(&format!("BEGIN {{ {} }}", words.join(" ")));
    }

    /// A right script with a piece cut out.
    #[test]
    fn a_piece_missing(from in 0..400_usize, len in 0..40_usize) {
        let script = "config = { max_strlen = 64 } BEGIN { @start[tid] = nsecs; printf(\"%s %d\\n\", str($1), $2 > 1 ? 5 : 6); } \
                      u:libc:malloc, ur:libc:free /pid == 1 && (comm == \"x\" || 1)/ { @[ustack(5), probe] = sum(pid); \
                      $x = (int32)pid; if ($x > 5) { delete(@start[tid]); } else if ($x) { @h = hist($x); } } \
                      interval:s:1 { print(@h, 5); clear(@h); unroll (2) { $y = 1; } } END { exit(3) }";
        let mut cut: Vec<char> = script.chars().collect();
        let from = from.min(cut.len());
        let to = (from + len).min(cut.len());
        cut.drain(from..to);
        compile(&cut.into_iter().collect::<String>());
    }

    #[test]
    fn what_is_right_is_accepted(statements in vec(statement(), 1..6)) {
        let script = format!("{STRUCTS} let @lru = lruhash(10); let @pl = percpulruhash(20); macro twice(a, $v) {{ $v += 1; a + a + $v }} u:a:b {{ @c[1] = count(); $p = (struct S *)arg1; $d = $p->inner; $x = arg0; $y = 1; @k[1, \"abc\"] = 1; @a = 1; {} }}", statements.join(" "));
        // One with a long expression may need too much stack.
        let fate = compile(&script);
        // Literals may come to what is no number.
        let is_wrong = matches!(&fate, Fate::Wrong(error) if !error.contains("unable to fold literals"));
        assert!(!is_wrong, "{script}\n{fate:?}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["(", "!", "-", "if (1) { ", "@a[", "str("] {
        assert!(matches!(compile(&format!("BEGIN {{ $a = {}", open.repeat(5000))), Fate::Wrong(_)));
        assert!(matches!(compile(&format!("BEGIN {{ {}", open.repeat(5000))), Fate::Wrong(_)));
    }
}
