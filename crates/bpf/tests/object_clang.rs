//! Objects that clang makes (Debian's package clang), loaded and verified.

use std::path::Path;
use std::process::Command;

use sidestep_bpf::map::MapKind;
use sidestep_bpf::object::{Attach, Kind, Object, ObjectError, ProbeTarget};
use sidestep_bpf::verify::{Rules, verify};
use sidestep_bpf::{Imm64, Insn};

/// Compiles a source of `tests/object`, or text.
fn compile(name: &str, text: Option<&str>, cpu: &str, flags: &[&str]) -> Vec<u8> {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/object");
    let object = dir.join(format!("{name}-{cpu}.bpf.o"));
    let source = match text {
        Some(text) => {
            let path = dir.join(format!("{name}-{cpu}.c"));
            std::fs::write(&path, format!("#include \"bpf.h\"\n{text}")).unwrap();
            path
        }
        None => sources.join(format!("{name}.c")),
    };
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-g", "-O2", "-Wall", &format!("-mcpu={cpu}"), "-I"]).arg(sources).args(flags);
    let output = clang.arg("-c").arg(source).arg("-o").arg(&object).output();
    let output = output.unwrap_or_else(|e| panic!("clang does not start ({e}): install the package clang"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(object).unwrap()
}

fn load(name: &str, cpu: &str) -> Object {
    Object::parse(&compile(name, None, cpu, &[])).unwrap_or_else(|e| panic!("{name} for {cpu}: {e}"))
}

fn verify_all(object: &Object) {
    let maps = object.map_shapes();
    for program in &object.programs {
        if let Err(e) = verify(&program.program, &Rules { maps: &maps, ..Rules::default() }) {
            let line = program.line_of(e.insn).map(|l| format!(" at {}:{}: {}", l.file, l.line, l.text));
            panic!("{}: {e}{}", program.name, line.unwrap_or_default());
        }
    }
}

fn target(object: &str, function: &str) -> Option<ProbeTarget> {
    Some(ProbeTarget { object: object.to_owned(), function: function.to_owned(), offset: 0 })
}

#[test]
fn programs_maps_and_globals_are_found() {
    for cpu in ["v1", "v2", "v3"] {
        let object = load("latency", cpu);
        let names: Vec<_> = object.programs.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["entry", "leave"]);
        let redis = || target("/usr/bin/redis-server", "processCommand");
        assert_eq!(object.programs[0].attach, Attach::Probe { on_return: false, target: redis() });
        assert_eq!(object.programs[1].attach, Attach::Probe { on_return: true, target: redis() });
        assert_eq!(object.license, "Dual MIT/GPL");

        let shapes: Vec<_> = object
            .maps
            .iter()
            .map(|m| (m.map.name.as_str(), m.map.kind, m.map.key_size, m.map.value_size, m.map.max_entries))
            .collect();
        let expected = [
            ("starts", MapKind::Hash, 8, 8, 1024),
            ("hist", MapKind::Array, 4, 8, 64),
            (".rodata", MapKind::Array, 4, 4, 1),
            (".bss", MapKind::Array, 4, 8, 1),
            (".data", MapKind::Array, 4, 8, 1),
        ];
        for shape in expected {
            assert!(shapes.contains(&shape), "{shape:?} is not in {shapes:?}");
        }
        assert_eq!(shapes.len(), expected.len());
        let data = object.maps.iter().find(|m| m.map.name == ".data").unwrap();
        assert_eq!(data.map.initial, 1000u64.to_le_bytes());
        let readonly: Vec<_> = object.maps.iter().filter(|m| m.map.readonly).map(|m| &m.map.name).collect();
        assert_eq!(readonly, [".rodata"]);
        verify_all(&object);
    }
}

#[test]
fn functions_are_linked_behind_the_program_that_calls_them() {
    let object = load("latency", "v3");
    let leave = &object.programs[1];
    let functions: Vec<_> = leave.functions.iter().map(|(_, name)| name.as_str()).collect();
    assert_eq!(functions, ["leave", "log2"]);
    let calls: Vec<_> = leave
        .program
        .iter()
        .filter_map(|insn| match insn.unwrap() {
            (pc, Insn::CallLocal(off)) => Some((pc as i64 + 1 + i64::from(off)) as usize),
            _ => None,
        })
        .collect();
    assert_eq!(calls, [leave.functions[1].0]);
    assert_eq!(object.programs[0].functions.len(), 1, "entry calls nothing");
}

#[test]
fn references_to_maps_and_globals_go_where_they_should() {
    let object = load("latency", "v3");
    let map = |name: &str| object.maps.iter().position(|m| m.map.name == name).unwrap() as u32;
    let loads: Vec<_> = object.programs[1]
        .program
        .iter()
        .filter_map(|insn| match insn.unwrap() {
            (_, Insn::LoadImm64 { imm, .. }) => Some(imm),
            _ => None,
        })
        .collect();
    let value = |name| Imm64::MapValue { map: map(name), offset: 0 };
    // As llvm-objdump -dr shows their relocations.
    assert_eq!(loads, [Imm64::Map(map("starts")), value(".bss"), value(".data"), Imm64::Map(map("hist"))]);
}

#[test]
fn rings_callbacks_and_constants_are_loaded() {
    let object = load("events", "v3");
    let ring = object.maps.iter().find(|m| m.map.name == "ring").unwrap();
    assert_eq!(ring.map.max_entries, 131_072, "rounded up to a power of two");
    let multi =
        Attach::Multi { on_return: false, is_session: false, target: Some(("libc".to_owned(), "str*".to_owned())) };
    assert_eq!(object.programs[0].attach, multi);
    assert!(matches!(&object.programs[1].attach, Attach::Usdt { target: Some((.., name)) } if name == "setjmp"));
    assert_eq!(object.programs[2].attach, Attach::Probe { on_return: false, target: None });
    let names = object.maps.iter().find(|m| m.map.name.starts_with(".rodata")).unwrap();
    assert_eq!(&names.map.initial[8..12], b"one\0");
    verify_all(&object);
}

#[test]
fn instructions_know_their_source_lines() {
    let object = load("latency", "v3");
    let leave = &object.programs[1];
    let text = |pc: usize| leave.line_of(pc).map(|l| l.text.as_str());
    let atomic = leave.program.iter().map(Result::unwrap).find(|(_, i)| matches!(i, Insn::Atomic { .. })).unwrap();
    assert_eq!(text(atomic.0), Some("__sync_fetch_and_add(&missed, 1);"));
    let shift = leave.functions[1].0;
    assert!(leave.line_of(shift).is_some_and(|l| l.file.ends_with("latency.c")));
}

#[test]
fn types_of_keys_and_values_are_known() {
    let object = load("latency", "v3");
    let btf = object.btf.as_ref().unwrap();
    let starts = object.maps.iter().find(|m| m.map.name == "starts").unwrap();
    let key = btf.resolve(starts.key.unwrap()).unwrap();
    assert_eq!((key.name.as_str(), btf.size(starts.key.unwrap())), ("unsigned long long", Ok(8)));
    assert!(matches!(key.kind, Kind::Int { size: 8, signed: false, .. }));
}

fn refused(name: &str, text: &str) -> String {
    let text = format!("{text}\nchar LICENSE[] SEC(\"license\") = \"GPL\";");
    Object::parse(&compile(name, Some(&text), "v3", &[])).expect_err(name).to_string()
}

#[test]
fn what_only_the_kernel_has_is_refused_by_name() {
    let core =
        "struct task_struct { int pid; struct { long start; } times[2]; } __attribute__((preserve_access_index));
        SEC(\"uprobe\") int prog(struct task_struct *t) { return t->times[1].start; }";
    assert_eq!(
        refused("core", core),
        "prog, insn 0: times[1].start of struct task_struct is a CO-RE relocation, which only the kernel's types \
         resolve: compile without preserve_access_index",
    );
    let extern_ = "extern int CONFIG_HZ SEC(\".kconfig\"); SEC(\"uprobe\") int prog(void *c) { return CONFIG_HZ; }";
    assert_eq!(
        refused("kconfig", extern_),
        "prog, insn 0: 'CONFIG_HZ' is a variable of the kernel: it has no value in a target",
    );
    let function = "int other(int); SEC(\"uprobe\") int prog(void *c) { return other(1); }";
    assert_eq!(
        refused("undefined", function),
        "prog, insn 1: 'other' is not defined in the object: link the objects with bpftool gen object, or define it",
    );
}

#[test]
fn what_the_loader_knows_is_a_constant() {
    let text = "extern const _Bool LINUX_HAS_BPF_COOKIE SEC(\".kconfig\");
        SEC(\"uprobe\") int prog(void *c) { return LINUX_HAS_BPF_COOKIE ? 3 : 4; }
        char LICENSE[] SEC(\"license\") = \"GPL\";";
    let object = Object::parse(&compile("cookie", Some(text), "v3", &[])).unwrap();
    let map = object.maps.iter().position(|m| m.map.name == ".kconfig").unwrap();
    let known = &object.maps[map].map;
    assert_eq!((known.kind, known.readonly), (MapKind::Array, true));
    assert_eq!(known.initial, [1, 0, 0, 0, 0, 0, 0, 0]);
    let place = Imm64::MapValue { map: map as u32, offset: 0 };
    let loads = |insn: &Insn| matches!(insn, Insn::LoadImm64 { imm, .. } if *imm == place);
    assert!(object.programs[0].program.iter().any(|insn| loads(&insn.unwrap().1)));
    verify_all(&object);
}

#[test]
fn offsets_in_registers_need_no_kernel() {
    // The registers of x86-64, and those of arm64 by a name and a size of their own.
    let arm64 = "struct user_pt_regs { u64 regs[31], sp, pc, pstate; };";
    let sources = [
        ("regs", "", "pt_regs", ["di", "si"], [112, 104]),
        ("regs-arm64", arm64, "user_pt_regs", ["regs[1]", "pstate"], [8, 264]),
    ];
    for (name, declared, registers, members, expected) in sources {
        let text = format!(
            "{declared} SEC(\"uprobe\") int prog(struct {registers} *c)
            {{ return *__builtin_preserve_access_index(&c->{}) + *__builtin_preserve_access_index(&c->{}); }}
            char LICENSE[] SEC(\"license\") = \"GPL\";",
            members[0], members[1]
        );
        let object = Object::parse(&compile(name, Some(&text), "v3", &[])).unwrap();
        let rules = Rules { context_size: 280, ..Rules::default() };
        assert!(verify(&object.programs[0].program, &rules).is_ok(), "{name}");
        let loads = object.programs[0].program.iter().filter_map(|insn| match insn.unwrap() {
            (_, Insn::Load { off, .. }) => Some(off),
            _ => None,
        });
        let offsets: Vec<_> = loads.collect();
        assert!(expected.iter().all(|at| offsets.contains(at)), "{name}: {offsets:?}");
    }
}

#[test]
fn maps_that_cannot_be_made_are_refused_by_name() {
    let map = |name: &str, fields: &str| {
        refused(
            name,
            &format!(
                "struct {{ {fields} }} m SEC(\".maps\");
                 SEC(\"uprobe\") int prog(void *c) {{ u64 k = 0; return (long)map_lookup(&m, &k); }}"
            ),
        )
    };
    assert_eq!(map("nokind", "__uint(max_entries, 1);"), "map 'm': it has no type: add __uint(type, ...)");
    let missing = map("nokey", "__uint(type, HASH); __uint(max_entries, 1); __type(value, u64);");
    assert_eq!(missing, "map 'm': the key is missing: add it");
    let missing = map("noentries", "__uint(type, HASH); __type(key, u64); __type(value, u64);");
    assert_eq!(missing, "map 'm': max_entries is missing: add it");
    let wrong = map("arraykey", "__uint(type, ARRAY); __uint(max_entries, 1); __type(key, u64); __type(value, u64);");
    assert_eq!(wrong, "map 'm': key size is 8: keys of arrays have 4 bytes");
    let pinned = map("pinned", "__uint(type, ARRAY); __uint(pinning, 1);");
    assert_eq!(pinned, "map 'm': it is pinned: maps of probes belong to one session; remove the pinning");
    assert!(map("kind", "__uint(type, 15);").starts_with("map 'm': maps of kind 15 are not supported"));
    assert!(map("field", "__uint(colour, 15);").starts_with("map 'm': its definition is not understood at 'colour'"));
}

#[test]
fn what_is_no_object_is_refused() {
    let error = |bytes: &[u8]| Object::parse(bytes).unwrap_err().to_string();
    assert!(error(b"").starts_with("no ELF object:"));
    assert!(error(b"#!/bin/sh\n").starts_with("no ELF object:"));
    let own = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(Object::parse(&own), Err(ObjectError::Machine));
    let text = "static noinline int f(int a) { return a; } int g(int b) { return f(b); }";
    assert!(refused("noprogram", text).starts_with("the object has no program"));
    let pointer = "int x; int *p = &x; SEC(\"uprobe\") int prog(void *c) { return *p; }";
    assert_eq!(refused("pointer", pointer), "section .data holds addresses: set pointers in the program instead");
    let big = compile("big", Some("SEC(\"uprobe\") int prog(void *c) { return 0; }"), "v3", &["-mbig-endian"]);
    assert_eq!(Object::parse(&big), Err(ObjectError::BigEndian));
}

#[test]
fn a_reference_into_a_map_definition_is_refused_by_the_verifier() {
    let text = "struct { __uint(type, ARRAY); __uint(max_entries, 1); __type(key, u32); __type(value, u64); } m SEC(\".maps\");
        SEC(\"uprobe\") int prog(void *c) { u32 k = 0; return (long)map_lookup((char *)&m + 1, &k); }
        char LICENSE[] SEC(\"license\") = \"GPL\";";
    let object = Object::parse(&compile("middle", Some(text), "v3", &[])).unwrap();
    let maps = object.map_shapes();
    let error = verify(&object.programs[0].program, &Rules { maps: &maps, ..Rules::default() }).unwrap_err();
    assert_eq!(error.to_string(), "insn 4: r1 += 1: the map 'm' has no inside: no arithmetic on r1");
}
