//! A name for every probe that no other probe has.

use std::collections::HashMap;

use sidestep_engine::Probe;

/// The function's name; with the object's file name where several objects have it; with the address
/// where one object has it several times.
pub fn labels(probes: &[Probe]) -> Vec<String> {
    let qualified = |probe: &Probe| {
        let file = probe.object.file_name().unwrap_or_default().to_string_lossy();
        format!("{file}:{}", probe.name)
    };
    let mut objects_of: HashMap<&str, Vec<_>> = HashMap::new();
    let mut times: HashMap<(&str, _), usize> = HashMap::new();
    for probe in probes {
        let objects = objects_of.entry(&probe.name).or_default();
        if !objects.contains(&&probe.object) {
            objects.push(&probe.object);
        }
        *times.entry((&probe.name, &probe.object)).or_default() += 1;
    }
    probes
        .iter()
        .map(|probe| {
            let several = objects_of[probe.name.as_str()].len() > 1;
            let name = if several { qualified(probe) } else { probe.name.clone() };
            if times[&(probe.name.as_str(), &probe.object)] > 1 { format!("{name} [{}]", probe.va) } else { name }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_isa::Va;
    use sidestep_plan::Technique;

    #[test]
    fn only_what_is_ambiguous_gets_longer() {
        let probe = |name: &str, object: &str, va| Probe {
            id: 0,
            request: 0,
            name: name.to_owned(),
            object: object.into(),
            va: Va(va),
            site: Va(va),
            technique: Technique::Jump,
            cookie: 0,
        };
        let probes = [
            probe("read", "/lib/libc.so.6", 0x10),
            probe("init", "/lib/libc.so.6", 0x20),
            probe("init", "/bin/a", 0x30),
            probe("init", "/bin/a", 0x40),
        ];
        assert_eq!(labels(&probes), ["read", "libc.so.6:init", "a:init [0x30]", "a:init [0x40]"]);
    }
}
