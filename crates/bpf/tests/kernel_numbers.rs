//! Numbers of helpers and maps against the kernel's header (Debian's linux-libc-dev, which
//! libc6-dev needs).

use sidestep_bpf::map::MapKind;
use sidestep_bpf::verify::Helper;

fn header() -> String {
    let path = "/usr/include/linux/bpf.h";
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}; install the package linux-libc-dev"))
}

/// The names that follow `start`, in order, until the first line without one.
fn names(header: &str, start: &str, find: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = header.lines().skip_while(|line| !line.contains(start)).skip(1);
    lines.map_while(|line| find(line.trim())).collect()
}

#[test]
fn helpers_have_the_kernels_numbers() {
    let header = header();
    let kernels = names(&header, "define __BPF_FUNC_MAPPER(FN)", |line| {
        Some(line.strip_prefix("FN(")?.split_once(')')?.0.to_owned())
    });
    assert!(kernels.len() > 200, "{kernels:?}");
    for helper in Helper::all() {
        let kernels = kernels.get(helper.number as usize).map(String::as_str);
        // Our own have numbers that the kernel does not use yet.
        let name = if helper.number < 255 { Some(helper.name) } else { None };
        assert_eq!(kernels, name, "helper {}", helper.number);
        assert_eq!(Helper::by_name(helper.name), Some(helper));
        assert_eq!(Helper::by_number(helper.number), Some(helper));
    }
}

#[test]
fn maps_have_the_kernels_numbers() {
    let header = header();
    let kernels = names(&header, "enum bpf_map_type {", |line| {
        Some(line.strip_prefix("BPF_MAP_TYPE_")?.split(',').next()?.to_lowercase())
    });
    for kind in MapKind::all() {
        assert_eq!(kernels.get(kind.number() as usize).map(String::as_str), Some(kind.name()));
        assert_eq!(MapKind::from_number(kind.number()), Some(kind));
    }
}
