//! Programs of events, run: the lines that they print are the kernel's.

mod machine;

use machine::{Target, compiled, compiled_event, printed, run};
use proptest::prelude::*;
use sidestep_lang::uprobe_events::{
    Arg, ArgProblem, Base, CompileError, Event, Fetch, Header, Kind, Options, Probe, RecordError, Submit, Type, Value,
    compile, event_number,
};

fn target() -> Target {
    Target::new()
        .set("di", 0xffff_ffff_ffff_fff6)
        .set("si", 0x7000)
        .set("dx", 0x41)
        .set("r8", 0x1234_5678_9abc_def0)
        .set("ax", 7)
        .set("sp", 0x9000)
        .words(0x9000, &[0xdead, 1, 2, 3])
        .words(0x7000, &[0x8000, 0x8010, 0x666_0000, 0x8004])
        .write(0x8000, b"abc\0defghijklmno\0tail\0")
        .write(0x3040, b"\x01\x02\x03\x04\xff\xfe\xfd\xfc")
}

/// Arguments, and what they print.
const PRINTED: &[(&str, &str)] = &[
    (
        "a=%di a8=%di:u8 a16=%di:u16 a32=%di:u32 a64=%di:u64",
        "a=0xfffffffffffffff6 a8=246 a16=65526 a32=4294967286 a64=18446744073709551606",
    ),
    ("s8=%di:s8 s16=%di:s16 s32=%di:s32 s64=%di:s64", "s8=-10 s16=-10 s32=-10 s64=-10"),
    ("x8=%di:x8 x16=%di:x16 x32=%di:x32", "x8=0xf6 x16=0xfff6 x32=0xfffffff6"),
    ("c=%dx:char", "c='A'"),
    (
        "low=%r8:b4@4/32 high=%r8:b32@32/64 all=%r8:b64@0/64 one=%r8:b1@15/16",
        "low=15 high=305419896 all=1311768467463790320 one=1",
    ),
    ("$stack $stack1 $stack3:u8", "arg1=0x9000 arg2=0x1 arg3=3"),
    ("$arg1:s64 $arg3:char $arg5 $arg7:u64 $arg9:u64", "arg1=-10 arg2='A' arg3=0x123456789abcdef0 arg4=1 arg5=3"),
    ("name=$comm pid=\\42:u16 text=\\\"hi\"", "name=\"redis-server\" pid=42 text=\"hi\""),
    ("p=+0(%si) s=+0(+0(%si)):string t=+0(+8(%si)):ustring", "p=0x8000 s=\"abc\" t=\"\""),
    ("s=+4(+0(%si)):string u=-12(+8(%si)):string", "s=\"defghijklmno\" u=\"defghijklmno\""),
    ("all=+0(%si):string[4]", "all={\"abc\",\"\",(fault),\"defghijklmno\"}"),
    ("b=@0x3040:x8[4] w=@0x3044:s16[2] n=@0x3040:b4@0/8[5]", "b={0x1,0x2,0x3,0x4} w={-257,-771} n={1,2,3,4,15}"),
    ("f=@+0x40:u32 g=@+0x44:x8[2] s=@+0x3ff0:string", "f=67305985 g={0xff,0xfe} s=(fault)"),
    ("bad=%di at=+0(%di) next=%dx:u8", "bad=0xfffffffffffffff6 at=(fault) next=65"),
    (
        "chain=+0(+0(+0(%dx))) s=+0(+0(%dx)):string a=+0(%dx):u8[3] ok=+8(%si)",
        "chain=(fault) s=(fault) a=(fault) ok=0x8010",
    ),
    (
        "first=+0(%dx):string second=+0(+0(%si)):string third=+0(%dx):string",
        "first=(fault) second=\"abc\" third=(fault)",
    ),
    ("imm=\\0x8004:string", "imm=\"defghijklmno\""),
];

#[test]
fn values_are_printed_as_in_the_trace_file() {
    // The probed byte 0x1136 of the file is at 0x401136; byte 0x40 is at 0x400040.
    let target = target().write(0x400040, b"\x01\x02\x03\x04\xff\xfe\xfd\xfc");
    for (args, expected) in PRINTED {
        let line = printed(&format!("p:g/ev /bin/app:0x1136 {args}"), "0", &target);
        assert_eq!(line, Some(format!("ev: (0x401136) {expected}")), "{args}");
    }
    let line = printed("p /bin/app:0x1136", "0", &target);
    assert_eq!(line.as_deref(), Some("p_app_0x1136: (0x401136)"));
}

#[test]
fn returns_say_where_they_return_to() {
    let target = target().set("ip", 0x402000);
    let line = printed("r:g/ret /bin/app:0x1136 rc=$retval:s32 x=+0(%si)", "0", &target);
    assert_eq!(line.as_deref(), Some("ret: (0x402000 <- 0x401136) rc=7 x=0x8000"));
    // Files are found by the function, not by where it returns to.
    let target = target.write(0x400040, b"\x2a");
    let line = printed("r:g/ret /bin/app:0x1136 x=@+0x40:u8", "__probe_func == 0x401136", &target);
    assert_eq!(line.as_deref(), Some("ret: (0x402000 <- 0x401136) x=42"));
}

#[test]
fn records_tell_more_than_lines() {
    let compiled = compiled("p:g/ev /bin/app:1 n=%di:s8 s=+0(+0(%si)):string a=+0(%si):u64[2] f=+0(%dx)", "0");
    let record = run(&compiled, &target()).record.unwrap();
    let comm = b"redis-server".to_vec();
    let header = Header { event: 0, pid: 42, tid: 43, comm, ip: 0x401136, func: 0 };
    assert_eq!(compiled.format.header(&record), Ok(header));
    let value = |index| compiled.format.value(&record, index).unwrap();
    assert_eq!(value(0), Some(Value::Signed(-10)));
    assert_eq!(value(1), Some(Value::Bytes(b"abc".to_vec())));
    assert_eq!(value(2), Some(Value::Array(vec![Value::Unsigned(0x8000), Value::Unsigned(0x8010)])));
    assert_eq!(value(3), Some(Value::Fault));
    assert_eq!(value(4), None);
    // Room that the string did not need was given back.
    assert!(record.len() < 110 && compiled.format.max_len() >= 48 + 256, "{}", record.len());
}

#[test]
fn events_of_one_ring_are_told_apart() {
    let probe = |line| Probe { event: Event::parse(line).unwrap(), filter: None };
    let all = compile(&[probe("p:a /x/y:1 %di"), probe("p:b /x/y:2 %si")], &Options::default()).unwrap();
    let record = run(&all[1], &target()).record.unwrap();
    assert_eq!(event_number(&record), Some(1));
    assert_eq!(all[1].format.render(&record).unwrap(), "b: (0x401136) arg1=0x7000");
    assert_eq!(all[0].format.render(&record), Err(RecordError::Event { found: 1, expected: 0 }));
    let short = Err(RecordError::Short { len: 50, from: 56, to: 64 });
    assert_eq!(all[1].format.render(&record[..50]), short);
}

#[test]
fn long_strings_are_cut() {
    let target = target().write(0x8100, &[b'x'; 1000]);
    let line = printed("p:ev /x/y:1 s=@0x8100:string", "0", &target).unwrap();
    assert_eq!(line, format!("ev: (0x401136) s=\"{}\"", "x".repeat(255)));
    // Many strings share the room.
    let strings: String = (0..50).map(|n| format!(" s{n}=@0x8100:string")).collect();
    let line = printed(&format!("p:ev /x/y:1{strings}"), "0", &target).unwrap();
    assert_eq!(line.matches(&format!("\"{}\"", "x".repeat(75))).count(), 50, "{line}");
}

#[test]
fn a_string_that_ends_at_unmapped_memory_is_a_fault() {
    let target = target().write(0xaffd, b"end");
    assert_eq!(printed("p:ev /x/y:1 s=@0xaffd:string", "0", &target).unwrap(), "ev: (0x401136) s=(fault)");
    let target = target.write(0xafff, b"\0");
    assert_eq!(printed("p:ev /x/y:1 s=@0xaffd:string", "0", &target).unwrap(), "ev: (0x401136) s=\"en\"");
}

#[test]
fn a_full_ring_loses_the_record_only() {
    let mut target = target();
    target.full = true;
    assert_eq!(run(&compiled("p:ev /x/y:1 s=+0(+0(%si)):string", "0"), &target).record, None);
}

#[test]
fn the_largest_events_are_verified() {
    let numbers: String = (0..128).map(|n| format!(" a{n}=+0(+0(%si)):s32")).collect();
    let line = printed(&format!("p:ev /x/y:1{numbers}"), "a127 == 6513249 && a0 & 1", &target()).unwrap();
    assert!(line.ends_with("a127=6513249"), "{line}");
    let bits: String = (0..47).map(|n| format!(" a{n}=+0(%si):b3@4/8[64]")).collect();
    assert!(printed(&format!("p:ev /x/y:1{bits}"), "0", &target()).unwrap().contains(" a46={0,0,0,0,0,0,0,0,1,"));
    let line = printed("p:ev /x/y:1 a=+0(%si):string[50]", "0", &target()).unwrap();
    assert_eq!(line.matches("(fault)").count(), 47);
}

#[test]
fn what_has_no_room_is_refused() {
    let refused = |event| compile(&[Probe { event, filter: None }], &Options::default()).unwrap_err();
    let event =
        Event::parse("p:ev /x/y:1 a=+0(%si):string[64] b=+0(%si):string[64] c=+0(%si):string[64] d=+0(%si):string[64]")
            .unwrap();
    assert_eq!(refused(event), CompileError::TooManyStrings { strings: 256 });

    let event = |kind, fetch, ty| Event::new(kind, "g", "ev").with(Arg::new("x", fetch, ty));
    let word = sidestep_bpf::Size::Dw;
    let cases = [
        (event(Kind::Entry, Fetch::value(Base::StackPointer), Type::String), ArgProblem::StringInRegister),
        (event(Kind::Entry, Fetch::value(Base::Comm), Type::Char), ArgProblem::Text),
        (event(Kind::Entry, Fetch::value(Base::Comm).deref(0), Type::String), ArgProblem::Text),
        (event(Kind::Entry, Fetch::value(Base::ReturnValue), Type::Char), ArgProblem::ReturnValueAtEntry),
        (event(Kind::Return, Fetch::value(Base::Argument(0)), Type::Char), ArgProblem::ArgumentAtReturn),
        (
            event(Kind::Entry, Fetch::value(Base::Argument(0)), Type::Bits { width: 0, shift: 0, size: word }),
            ArgProblem::Bits,
        ),
    ];
    for (event, problem) in cases {
        assert_eq!(refused(event), CompileError::Argument { name: "x".to_owned(), problem });
    }
    let mut array = event(Kind::Entry, Fetch::value(Base::Argument(0)), Type::Char);
    array.args[0].count = Some(2);
    let problem = ArgProblem::ArrayInRegister;
    assert_eq!(refused(array.clone()), CompileError::Argument { name: "x".to_owned(), problem });
    array.args[0].count = Some(0);
    assert_eq!(refused(array), CompileError::Argument { name: "x".to_owned(), problem: ArgProblem::Count });
}

#[test]
fn events_built_without_text_run_too() {
    let string = Fetch::value(Base::Argument(1)).deref(0).deref(0);
    let event = Event::new(Kind::Entry, "libc", "open").with(Arg::new("arg0", string, Type::String)).with(Arg::new(
        "arg1",
        Fetch::value(Base::Argument(2)),
        Type::Signed(sidestep_bpf::Size::W),
    ));
    let compiled = compiled_event(event, None);
    let record = run(&compiled, &target()).record.unwrap();
    assert_eq!(compiled.format.value(&record, 0).unwrap(), Some(Value::Bytes(b"abc".to_vec())));
    assert_eq!(compiled.format.value(&record, 1).unwrap(), Some(Value::Signed(65)));
}

#[test]
fn records_without_strings_need_no_own_helper() {
    let event = Event::parse("p:ev /x/y:1 %di +0(%si) $comm \\\"text\"").unwrap();
    let make = |submit| {
        let options = Options { submit, ..Options::default() };
        compile(&[Probe { event: event.clone(), filter: None }], &options).unwrap().remove(0)
    };
    assert_eq!(make(Submit::Part), make(Submit::Whole));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_make_rendering_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let compiled = compiled("p:ev /x/y:1 s=+0(%si):string a=+0(%si):string[2] n=+0(%si):u64[4] c=%di:char", "0");
        let mut record = bytes;
        record.splice(..record.len().min(4), [0; 4]);
        let _ = compiled.format.render(&record);
        for index in 0..5 {
            let _ = compiled.format.value(&record, index);
        }
    }
}
