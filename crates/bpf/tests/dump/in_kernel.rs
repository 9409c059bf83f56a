//! An object of clang in the kernel, and what it left there printed: all that `--kernel` is made
//! of, but the probe.

use sidestep_bpf::dump::{Form, MapForm, Style, placed_types, type_named};
use sidestep_bpf::object::Object;
use sidestep_sys::bpf::{Map, Program, ProgramKind, ProgramSpec, RingBuffer, possible_cpus, resolve_maps};

use super::{compile, kernel, source};

#[test]
fn what_an_object_leaves_in_the_kernel_is_printed() {
    let file = std::fs::read(compile("runs", &source("runs.c"))).unwrap();
    let (object, btf) = (Object::parse(&file).unwrap(), placed_types(&file).unwrap().unwrap());
    let maps: Vec<Map> = match object.maps.iter().map(|m| kernel::create(&m.map)).collect() {
        Ok(maps) => maps,
        Err(error) => return kernel::say(&format!("NOT RUN in the kernel, run as root to do so: {error}\n")),
    };
    let mut code = kernel::code(&object.programs[0].program);
    resolve_maps(&mut code, &maps.iter().collect::<Vec<_>>()).unwrap();
    // It looks at no register, so it may run without a probe.
    let kind = ProgramKind::SocketFilter;
    let spec = ProgramSpec { name: "prog", kind, code: &code, license: &object.license };
    let program = Program::load(&spec).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!([program.run().unwrap(), program.run().unwrap()], [0, 0]);

    let find = |name: &str| maps.iter().zip(&object.maps).find(|(map, _)| map.name() == name).unwrap();
    let print = |name: &str, style: Style| {
        let (map, described) = find(name);
        let form = MapForm::of(described, Some(&btf));
        let entry = |(key, value): &(Vec<u8>, Vec<u8>)| form.entry(style, key, value).unwrap();
        map.entries().unwrap().iter().map(entry).collect::<Vec<_>>()
    };
    assert_eq!(
        print("last", Style::Json),
        [r#"{"key":1,"value":{"run":1,"what":"run"}}"#, r#"{"key":2,"value":{"run":2,"what":"run"}}"#]
    );
    assert_eq!(print("last", Style::Text)[1], r#"key: 2  value: {"run": 2,"what": "run"}"#);
    assert_eq!(print(".bss", Style::Json), [r#"{"value":{".bss":[{"runs":2}]}}"#]);
    assert_eq!(print(".data", Style::Text), ["sum: 106"]);
    assert_eq!(print(".rodata", Style::Text), ["step: 3"]);

    let (each, described) = find("each");
    let values = each.lookup(&[0; 4]).unwrap().unwrap();
    let cpus = possible_cpus().unwrap().into_iter().map(u64::from);
    let by_cpu: Vec<_> = cpus.zip(values.chunks_exact(each.value_size())).collect();
    let counts: Vec<u64> = by_cpu.iter().map(|(_, value)| u64::from_ne_bytes((*value).try_into().unwrap())).collect();
    assert_eq!(counts.iter().sum::<u64>(), 2);
    let printed = MapForm::of(described, Some(&btf)).entry_by(Style::Json, &[0; 4], "cpu", by_cpu.clone()).unwrap();
    let expected: Vec<_> =
        by_cpu.iter().zip(&counts).map(|((cpu, _), n)| format!(r#"{{"cpu":{cpu},"value":{n}}}"#)).collect();
    assert_eq!(printed, format!(r#"{{"key":0,"values":[{}]}}"#, expected.join(",")));

    let event = Form::Type(&btf, type_named(&btf, "struct event").unwrap());
    let mut records = Vec::new();
    let mut ring = RingBuffer::new(find("ring").0).unwrap();
    ring.read(|record| records.push([event, Form::Hex].map(|form| form.print(Style::Json, record).unwrap()))).unwrap();
    assert_eq!(
        records,
        [
            [r#"{"run":1,"what":"run"}"#, r#""010000000000000072756e0000000000""#],
            [r#"{"run":2,"what":"run"}"#, r#""020000000000000072756e0000000000""#]
        ]
    );
}
