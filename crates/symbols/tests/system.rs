//! Objects of this machine, compared with what binutils say of them.

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;

use sidestep_isa::Va;
use sidestep_symbols::{
    FunctionKind, Matcher, Object, Source, by_address, find_object, mapped_objects, parse_maps, resolve_object,
};
use support::{Symbol, readelf_functions, readelf_packed, readelf_relocations, readelf_text, run, str};

/// Files that every machine with the test packages has.
fn files() -> Vec<PathBuf> {
    ["c", "crypto", "stdc++", "bash", "/usr/bin/python3", "grep"]
        .iter()
        .map(|name| find_object(name).unwrap_or_else(|| panic!("{name} is not installed")))
        .collect()
}

/// 32-bit libraries that every machine with the test packages has.
fn files_32() -> Vec<PathBuf> {
    ["libc.so.6", "libm.so.6", "libstdc++.so.6"].map(|name| PathBuf::from("/usr/i686-linux-gnu/lib").join(name)).into()
}

#[test]
fn functions_are_those_of_readelf() {
    for file in files().into_iter().chain(files_32()) {
        let object = Object::open(&file, &[]).unwrap();
        let own = object
            .functions()
            .iter()
            .filter(|f| matches!(f.source, Source::Symtab | Source::Dynsym))
            .map(|f| Symbol { va: f.va.0, name: f.name.to_string(), ifunc: f.kind == FunctionKind::Ifunc })
            .collect::<BTreeSet<_>>();
        let wanted = readelf_functions(&file);
        assert_eq!(own, wanted, "{}", file.display());
    }
}

#[test]
fn sizes_and_binding_are_those_of_nm() {
    let file = find_object("crypto").unwrap();
    let object = Object::open(&file, &[]).unwrap();
    let mut seen = 0;
    for line in run("nm", &["-D", "-S", "--defined-only", str(&file)]).lines() {
        let column: Vec<&str> = line.split_whitespace().collect();
        let [va, size, "T", name] = column[..] else {
            continue;
        };
        let name = name.split('@').next().unwrap();
        let found = object.find(&Matcher::name(name));
        let one = found.iter().find(|f| f.va.0 == support::hex(va)).unwrap();
        assert_eq!(one.size.0, support::hex(size), "{name}");
        assert_eq!(one.binding, sidestep_symbols::Binding::Global);
        seen += 1;
    }
    assert!(seen > 1000, "nm shows only {seen} functions");
}

#[test]
fn text_and_extents_are_those_of_binutils() {
    for file in files().into_iter().chain(files_32()) {
        let object = Object::open(&file, &[]).unwrap();
        let code = object.code().unwrap();
        let text: Vec<_> = code.text.iter().map(|b| b.va.0..b.va.0 + b.data.len() as u64).collect();
        assert_eq!(text, readelf_text(&file), "{}", file.display());
        let extents: BTreeSet<(u64, u64)> = code.extents.iter().map(|e| (e.start.0, e.start.0 + e.len.0)).collect();
        let mut fdes = 0;
        for line in run("objdump", &["--dwarf=frames", str(&file)]).lines() {
            let Some((_, range)) = line.split_once(" FDE ").and_then(|(_, l)| l.split_once("pc=")) else {
                continue;
            };
            let (start, end) = range.split_once("..").unwrap();
            let range = (support::hex(start), support::hex(end));
            if object.check_code(Va(range.0)).is_ok() {
                assert!(extents.contains(&range), "{} {range:x?}", file.display());
                fdes += 1;
            }
        }
        assert!(fdes > 100, "{}: objdump shows only {fdes} FDEs", file.display());
    }
}

#[test]
fn pointers_and_slots_are_those_of_readelf() {
    for file in files() {
        let object = Object::open(&file, &[]).unwrap();
        let code = object.code().unwrap();
        let relocations = readelf_relocations(&file);
        assert!(relocations.len() > 10);
        let mut wanted: BTreeSet<u64> = BTreeSet::new();
        for r in &relocations {
            let stores = match r.kind.as_str() {
                "R_X86_64_RELATIVE" | "R_X86_64_IRELATIVE" => true,
                // With an undefined symbol readelf shows the value 0.
                "R_X86_64_64" => r.symbol.is_some(),
                "R_X86_64_JUMP_SLOT" | "R_X86_64_JUMP_SLO" | "R_X86_64_GLOB_DAT" => {
                    let slots = object.import_slots(r.symbol.as_deref().unwrap());
                    assert!(slots.contains(&Va(r.slot)), "{:x}", r.slot);
                    false
                }
                _ => false,
            };
            if r.kind == "R_X86_64_IRELATIV" || r.kind == "R_X86_64_IRELATIVE" {
                assert!(object.irelative_slots(Va(r.value)).contains(&Va(r.slot)));
                wanted.insert(r.value);
            }
            if stores && object.check_code(Va(r.value)).is_ok() {
                wanted.insert(r.value);
            }
        }
        // readelf lists the places of packed relocations; what is stored is there already.
        let bytes = std::fs::read(&file).unwrap();
        for slot in readelf_packed(&file) {
            let at = object.offset_of(Va(slot)).unwrap().0 as usize;
            let value = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            if object.check_code(Va(value)).is_ok() {
                wanted.insert(value);
            }
        }
        if object.is_pie() {
            let own: BTreeSet<u64> = code.pointers.iter().map(|va| va.0).collect();
            let differ: Vec<&u64> = own.symmetric_difference(&wanted).collect();
            assert!(differ.is_empty(), "{}: {differ:x?}", file.display());
        }
    }
}

/// In 32-bit objects the addend of a relocation is what its slot holds.
#[test]
fn pointers_and_slots_of_32_bit_objects_are_those_of_readelf() {
    for file in files_32() {
        let object = Object::open(&file, &[]).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        let stored = |slot: u64| {
            let at = object.offset_of(Va(slot)).unwrap().0 as usize;
            u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()))
        };
        let (mut wanted, mut imports) = (BTreeSet::new(), 0);
        let mut is_packed = false;
        for line in run("readelf", &["-rW", str(&file)]).lines() {
            let column: Vec<&str> = line.split_whitespace().collect();
            is_packed |= line.contains("'.relr.dyn'");
            match column[..] {
                [slot] if is_packed && slot.len() == 8 => drop(wanted.insert(stored(support::hex(slot)))),
                [slot, _, "R_386_RELATIVE", ..] => drop(wanted.insert(stored(support::hex(slot)))),
                [slot, _, "R_386_IRELATIVE", ..] => {
                    let resolver = stored(support::hex(slot));
                    assert!(object.irelative_slots(Va(resolver)).contains(&Va(support::hex(slot))));
                    wanted.insert(resolver);
                }
                [slot, _, "R_386_32", value, _] if support::hex(value) != 0 => {
                    wanted.insert((support::hex(value) + stored(support::hex(slot))) & 0xffff_ffff);
                }
                [slot, _, "R_386_JUMP_SLOT" | "R_386_GLOB_DAT", _, symbol] => {
                    let name = symbol.split('@').next().unwrap();
                    assert!(object.import_slots(name).contains(&Va(support::hex(slot))), "{line}");
                    imports += 1;
                }
                _ => {}
            }
        }
        let wanted: BTreeSet<u64> = wanted.into_iter().filter(|va| object.check_code(Va(*va)).is_ok()).collect();
        let own: BTreeSet<u64> = object.code().unwrap().pointers.iter().map(|va| va.0).collect();
        assert_eq!(own, wanted, "{}", file.display());
        assert!(own.len() > 2 && imports > 2, "{}: {} and {imports}", file.display(), own.len());
        let got = run("readelf", &["-dW", str(&file)]);
        let got = got.lines().find(|line| line.contains("(PLTGOT)")).and_then(|line| line.split_whitespace().last());
        assert_eq!(object.code().unwrap().got, got.map(|va| Va(support::hex(va))));
    }
}

#[test]
fn debug_file_of_libc_gives_its_static_functions() {
    let file = find_object("c").unwrap();
    let object = Object::open(&file, &[]).unwrap();
    let notes = run("readelf", &["-nW", str(&file)]);
    let (_, id) = notes.split_once("Build ID: ").unwrap();
    let id = id.split_whitespace().next().unwrap();
    let ours: String = object.build_id().unwrap().iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(ours, id);
    let debug = PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]));
    let place = object.searched().iter().find(|s| s.place.ends_with(str(&debug))).unwrap();
    if debug.exists() {
        let named: BTreeSet<(u64, &str)> = object.functions().iter().map(|f| (f.va.0, &*f.name)).collect();
        for s in readelf_functions(&debug) {
            assert!(named.contains(&(s.va, s.name.as_str())), "{s:?}");
        }
    } else {
        assert_eq!(place.outcome, sidestep_symbols::Outcome::Absent);
    }
}

#[test]
fn header_facts_are_those_of_readelf() {
    for file in files() {
        let object = Object::open(&file, &[]).unwrap();
        let dynamic = run("readelf", &["-dW", str(&file)]);
        let quoted = |tag: &str| -> Vec<String> {
            let lines = dynamic.lines().filter(|l| l.contains(tag));
            lines.map(|l| l.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
        };
        assert_eq!(object.needed(), quoted("(NEEDED)"));
        assert_eq!(object.soname(), quoted("(SONAME)").pop());
        let header = run("readelf", &["-hW", str(&file)]);
        let entry = header.lines().find_map(|l| l.trim().strip_prefix("Entry point address:"));
        assert_eq!(object.entry().0, support::hex(entry.unwrap().trim()));
        assert_eq!(object.is_pie(), !header.contains("EXEC (Executable file)"));
        let segments = run("readelf", &["-lW", str(&file)]);
        let loads: Vec<String> = segments
            .lines()
            .filter(|l| l.trim().starts_with("LOAD"))
            .map(|l| l.split_whitespace().skip(1).collect::<Vec<_>>()[..5].join(" "))
            .collect();
        let own: Vec<String> = object
            .segments()
            .iter()
            .map(|s| {
                format!(
                    "{:#08x} {:#018x} {:#018x} {:#08x} {:#08x}",
                    s.offset.0, s.va.0, s.va.0, s.file_size.0, s.size.0
                )
            })
            .collect();
        assert_eq!(own, loads);
    }
}

#[test]
fn names_demangle_as_cxxfilt_does() {
    let object = Object::open(&find_object("stdc++").unwrap(), &[]).unwrap();
    let mangled: Vec<_> = object.functions().iter().filter(|f| f.name.starts_with("_Z")).collect();
    assert!(mangled.len() > 2000);
    let file = support::scratch("names").join("names");
    let names: Vec<&str> = mangled.iter().map(|f| &*f.name).collect();
    std::fs::write(&file, names.join("\n") + "\n").unwrap();
    // The two abbreviate std::string differently.
    let string = "std::basic_string<char,std::char_traits<char>,std::allocator<char>>";
    let plain = |s: &str| {
        let s = s.replace(' ', "").replace(string, "std::string");
        s.replace("std::string::basic_string", "std::string::string")
            .replace("std::string::~basic_string", "std::string::~string")
    };
    for (flags, ours) in [
        ("c++filt", mangled.iter().map(|f| f.demangled().unwrap()).collect::<Vec<_>>()),
        ("c++filt -p", mangled.iter().map(|f| f.short_name().into_owned()).collect()),
    ] {
        let theirs = run("sh", &["-c", &format!("{flags} < {}", str(&file))]);
        // Of thunks and transaction clones, `c++filt -p` keeps the parameters.
        let keeps = |ours: &str, theirs: &str| {
            let special = ours.contains("thunk to ") || ours.starts_with("transaction clone for ");
            special && theirs.starts_with(ours)
        };
        let differ: Vec<_> =
            ours.iter().zip(theirs.lines()).filter(|(o, t)| plain(o) != plain(t) && !keeps(o, t)).collect();
        // cpp_demangle writes literals in template arguments and references to nested classes in
        // its own way.
        assert!(
            differ.len() * 40 < ours.len(),
            "{flags}: {} of {} differ, as {:#?}",
            differ.len(),
            ours.len(),
            &differ[..differ.len().min(20)]
        );
    }
}

#[test]
fn malloc_is_found_where_this_process_has_it() {
    let maps = parse_maps(&std::fs::read_to_string("/proc/self/maps").unwrap());
    let exe = std::env::current_exe().unwrap();
    let objects = mapped_objects(&maps, Some(&exe));
    assert_eq!(objects[0].path, exe);
    let libc = resolve_object("c", &objects)[0];
    assert_eq!(resolve_object("libc", &objects), [libc]);
    assert_eq!(resolve_object("libc.so.6", &objects), [libc]);
    let object = Object::open(&libc.path, &[]).unwrap();
    let found = object.find(&Matcher::name("malloc"));
    let bias = object.load_bias(libc.executable().next().unwrap()).unwrap();
    // The dynamic linker wrote the address of malloc's definition into a slot of this program.
    let run_time = found[0].va.offset(bias);
    let main = Object::open(&exe, &[]).unwrap();
    let main_bias = main.load_bias(objects[0].executable().next().unwrap()).unwrap();
    let slot = main.import_slots("malloc")[0].offset(main_bias);
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut word = [0; 8];
    std::os::unix::fs::FileExt::read_exact_at(&memory, &mut word, slot.0).unwrap();
    assert_eq!(Va(u64::from_le_bytes(word)), run_time);
    assert!(maps.iter().any(|m| m.execute && m.contains(run_time)));
}

#[test]
fn addresses_lead_back_to_functions() {
    let object = Object::open(&find_object("c").unwrap(), &[]).unwrap();
    let malloc = object.find(&Matcher::name("malloc"))[0];
    assert_eq!(object.function_at(malloc.va), Some((malloc, 0)));
    let inside = Va(malloc.va.0 + 5);
    assert_eq!(object.function_at(inside), Some((malloc, 5)));
    assert_eq!(object.find_offset("malloc", 5).unwrap(), [(inside, malloc)]);
    assert!(object.find_offset("malloc", malloc.size.0).is_err());
    let offset = object.offset_of(malloc.va).unwrap();
    assert_eq!(object.va_of(offset), Some(malloc.va));
    assert_eq!(object.function_at(Va(0)), None);
    assert_eq!(object.function_at(Va(u64::MAX)), None);

    // Several names of one address are one place, called by its shortest global name.
    let all = object.find(&Matcher::glob("*malloc*"));
    let groups = by_address(&all);
    assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), all.len());
    let group = groups.iter().find(|g| g[0].va == malloc.va).unwrap();
    assert_eq!(&*group[0].name, "malloc");
    assert!(group.iter().any(|f| &*f.name == "__libc_malloc"));
    let regex = object.find(&Matcher::regex("^str(case)?cmp$").unwrap());
    let names: BTreeSet<&str> = regex.iter().map(|f| &*f.name).collect();
    assert_eq!(names, BTreeSet::from(["strcasecmp", "strcmp"]));
}

#[test]
fn an_unknown_name_gets_one_line_with_places_and_near_names() {
    let file = find_object("crypto").unwrap();
    let object = Object::open(&file, &[]).unwrap();
    let message = object.not_found("EVP_DigestUpdat").to_string();
    assert!(message.starts_with("no function `EVP_DigestUpdat` in /"), "{message}");
    assert!(message.contains(".dynsym"), "{message}");
    assert!(message.contains("did you mean `EVP_DigestUpdate`"), "{message}");
    assert_eq!(message.lines().count(), 1);
}

#[test]
fn go_programs_are_known() {
    let go = find_object("go").unwrap();
    assert!(Object::open(&go, &[]).unwrap().is_go());
    assert!(!Object::open(&find_object("bash").unwrap(), &[]).unwrap().is_go());
}
