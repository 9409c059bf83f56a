//! Lines of `uprobe_events`: what they mean, and what is wrong with those that are refused.

mod tables;

use proptest::prelude::*;
use sidestep_lang::uprobe_events::{Arg, Base, ErrorKind, Event, Fetch, Filter, Kind, Register, Type};
use tables::{ARGS, REFUSED};

/// Lines, and how the kernel would list them.
const ACCEPTED: &[(&str, &str)] = &[
    ("p /bin/sh:0x10", "p:uprobes/p_sh_0x10 /bin/sh:0x0000000000000010"),
    ("r /bin/sh:16", "r:uprobes/p_sh_0x10 /bin/sh:0x0000000000000010"),
    ("p /bin/sh:020%return", "r:uprobes/p_sh_0x10 /bin/sh:0x0000000000000010"),
    ("p /bin/sh:0(0x20)", "p:uprobes/p_sh_0x0 /bin/sh:0x0000000000000000(0x20)"),
    ("p /bin/sh:0(0)", "p:uprobes/p_sh_0x0 /bin/sh:0x0000000000000000"),
    ("p /bin/sh:8%return(32)", "r:uprobes/p_sh_0x8 /bin/sh:0x0000000000000008(0x20)"),
    ("p:ev /a:b/lib.so.6:1", "p:uprobes/ev /a:b/lib.so.6:0x0000000000000001"),
    ("p:g/ /usr/lib/libfoo-2.so:1", "p:g/p_libfoo_0x1 /usr/lib/libfoo-2.so:0x0000000000000001"),
    ("p:g.ev /bin/sh:1", "p:g/ev /bin/sh:0x0000000000000001"),
    ("p:my-group/ev /bin/sh:1", "p:my-group/ev /bin/sh:0x0000000000000001"),
    ("  p:ev\t /bin/sh:1   # a comment", "p:uprobes/ev /bin/sh:0x0000000000000001"),
];

#[test]
fn lines_are_read() {
    for (line, listed) in ACCEPTED {
        assert_eq!(Event::parse(line).unwrap().to_string(), *listed, "{line}");
    }
    for (text, listed) in ARGS {
        let event = Event::parse(&format!("p /bin/sh:1 {text}")).unwrap_or_else(|e| panic!("{text}: {e:?}"));
        assert_eq!(event.args[0].to_string(), *listed, "{text}");
        if listed.len() < 60 {
            let again = Event::parse(&format!("p /bin/sh:1 {listed}")).unwrap();
            assert_eq!(again.args, event.args, "{listed}");
        }
    }
    let event = Event::parse("r /bin/sh:1 $retval code=$retval:s32").unwrap();
    assert_eq!((event.args[0].fetch.base.clone(), event.args[1].name.as_str()), (Base::ReturnValue, "code"));
}

#[test]
fn each_register_has_its_name() {
    for register in Register::all() {
        let event = Event::parse(&format!("p /bin/sh:1 %{}", register.name())).unwrap();
        assert_eq!(event.args[0].fetch, Fetch::value(Base::Register(register)));
    }
    assert_eq!(Register::by_name("di").map(Register::offset), Some(112));
    assert_eq!(Register::by_name("ss").map(Register::offset), Some(160));
    assert_eq!(Register::by_name("rdi"), None);
}

#[test]
fn errors_point_to_where_the_kernel_points() {
    for (marked, kind) in REFUSED {
        let position = marked.find('^').unwrap();
        let line = marked.replacen('^', "", 1);
        let error = Event::parse(&line).expect_err(&line);
        assert_eq!((error.position, error.kind), (position, *kind), "{}", error.render(&line));
    }
}

#[test]
fn limits_are_the_kernels() {
    let args = |n: usize| (0..n).map(|i| format!(" a{i}=%di:u8")).collect::<String>();
    assert_eq!(Event::parse(&format!("p /bin/sh:1{}", args(128))).unwrap().args.len(), 128);
    let error = Event::parse(&format!("p /bin/sh:1{}", args(129))).unwrap_err();
    assert_eq!((error.position, error.kind), (12, ErrorKind::TooManyArgs));

    let arrays = |n: usize| (0..n).map(|i| format!(" a{i}=+0(%di):u64[64]")).collect::<String>();
    assert_eq!(Event::parse(&format!("p /bin/sh:1{}", arrays(6))).unwrap().args.len(), 6);
    let line = format!("p /bin/sh:1{} b=%di:u8", arrays(6));
    let error = Event::parse(&line).unwrap_err();
    assert_eq!((error.position, error.kind), (line.len() - 6, ErrorKind::EventTooBig));

    let name = "a".repeat(63);
    assert_eq!(Event::parse(&format!("p:{name}/{name} /bin/sh:1")).unwrap().name, name);
    let path = format!("/bin/{}", "x".repeat(80));
    assert_eq!(Event::parse(&format!("p {path}:1")).unwrap().name, format!("p_{}", "x".repeat(61)));
    let name = "a".repeat(32);
    assert_eq!(Event::parse(&format!("p /bin/sh:1 {name}=%di")).unwrap().args[0].name, name);
}

#[test]
fn errors_are_shown_as_in_error_log() {
    let line = "p:ev /bin/sh:1 size=%di name=+0($comm)";
    let shown = "error: $comm can not be dereferenced\n  Command: p:ev /bin/sh:1 size=%di name=+0($comm)\n";
    let caret = format!("{}^\n", " ".repeat(11 + line.find("$comm").unwrap()));
    assert_eq!(Event::parse(line).unwrap_err().render(line), format!("{shown}{caret}"));
    // Columns are characters.
    let line = "p /bin/ä:10a";
    assert!(Event::parse(line).unwrap_err().render(line).ends_with(&format!("\n{}^\n", " ".repeat(11 + 9))));
}

#[test]
fn events_can_be_built_without_text() {
    let fetch = Fetch::value(Base::Argument(0)).deref(0);
    let event = Event::new(Kind::Entry, "libc", "open").with(Arg::new("arg0", fetch, Type::String));
    assert_eq!(event.args[0].to_string(), "arg0=+0($arg1):string");
}

#[test]
fn format_files_are_the_kernels() {
    let event = Event::parse("r:g/ev /bin/sh:1 n=$retval:s32 s=+0(%si):string c=+4(%di):char[2] %di").unwrap();
    let expected = "name: ev
ID: 7
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long __probe_func;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long __probe_ret_ip;\toffset:16;\tsize:8;\tsigned:0;
\tfield:s32 n;\toffset:24;\tsize:4;\tsigned:1;
\tfield:__data_loc char[] s;\toffset:28;\tsize:4;\tsigned:1;
\tfield:u8 c[];\toffset:32;\tsize:2;\tsigned:0;
\tfield:u64 arg4;\toffset:34;\tsize:8;\tsigned:0;

print fmt: \"(%lx <- %lx) n=%d s=\\\"%s\\\" c={'%c','%c'} arg4=0x%Lx\", REC->__probe_func, REC->__probe_ret_ip, \
REC->n, __get_str(s), REC->c[0], REC->c[1], REC->arg4
";
    assert_eq!(event.format_file(7), expected);
}

/// Text that is nearly a line.
fn nearly_a_line() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "p",
        "r",
        ":",
        "/",
        " ",
        "/bin/sh:",
        "1",
        "0x",
        "%",
        "%return",
        "(",
        ")",
        "+",
        "-",
        "u",
        "@",
        "$",
        "\\",
        "\"",
        "stack",
        "comm",
        "arg",
        "di",
        "=",
        "string",
        "b4@0/8",
        "[",
        "]",
        "&&",
        "||",
        "!",
        "==",
        "~",
        "'",
        "*",
        "ä",
        "#",
        "p /bin/sh:1 a=",
        "a",
        "99999999999999999999",
    ]);
    prop_oneof![any::<String>(), prop::collection::vec(pieces, 0..40).prop_map(|p| p.concat())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parsers_panic(text in nearly_a_line()) {
        if let Err(error) = Event::parse(&text) {
            prop_assert!(error.render(&text).ends_with("^\n"));
        }
        let event = Event::parse("p /bin/sh:1 a=%di:u8 b=+0(%si):string c=\\\"x\"").unwrap();
        if let Err(error) = Filter::parse(&text, &event) {
            prop_assert!(error.position <= text.len() + 1);
        }
    }
}
