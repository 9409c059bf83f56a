//! Maps of an object: definitions in `.maps`, and sections of variables.

use std::collections::HashMap;

use super::MAX_DATA;
use super::btf::{Btf, Kind, TypeId, Variable};
use super::elf::{Elf, Section};
use super::error::{BtfError, MapProblem, ObjectError};
use crate::map::{Map, MapKind};

/// Keys at most, as in the kernel: they lie on the stack.
const MAX_KEY: u32 = 512;

/// Values at most.
const MAX_VALUE: u32 = 1 << 22;

/// What the kernel's rings are a multiple of.
const PAGE: u32 = 4096;

/// A map of an object, with the types of its keys and values as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectMap {
    /// What it is.
    pub map: Map,
    /// Type of its keys.
    pub key: Option<TypeId>,
    /// Type of its values; of variables, all of them: [`super::Btf::section`] with the name of the
    /// map.
    pub value: Option<TypeId>,
}

/// The maps, and where instructions find them.
#[derive(Debug, Default)]
pub(super) struct Maps {
    pub list: Vec<ObjectMap>,
    /// By offset in `.maps`.
    definitions: HashMap<u64, usize>,
    /// By index of the section.
    data: HashMap<usize, usize>,
    /// Variables that the loader knows, by name: their map, and where in its value.
    externs: HashMap<String, (usize, u32)>,
}

/// What the loader tells programs, as libbpf does (`extern ... __kconfig`). Nothing that is a
/// kernel's alone.
const KNOWN: [(&str, u64); 1] = [("LINUX_HAS_BPF_COOKIE", 1)];

impl Maps {
    pub fn read(elf: &Elf, btf: Option<&Btf>) -> Result<Maps, ObjectError> {
        let mut maps = Maps::default();
        for section in &elf.sections {
            match section.name.as_str() {
                ".maps" if section.size > 0 => {
                    let btf = btf.ok_or_else(|| ObjectError::NoBtf(section.name.clone()))?;
                    maps.read_definitions(elf, section, btf)?;
                }
                "maps" if section.size > 0 => return Err(ObjectError::LegacyMaps),
                _ if is_data(section) => maps.add_variables(section)?,
                _ => {}
            }
        }
        if let Some(btf) = btf {
            maps.add_known(btf).map_err(|error| ObjectError::Btf { section: ".BTF", error })?;
        }
        Ok(maps)
    }

    /// Where a variable is that the loader knows: map and offset.
    pub fn known(&self, name: &str) -> Option<(usize, u32)> {
        self.externs.get(name).copied()
    }

    /// The variables of `.kconfig` that we know, a word each.
    fn add_known(&mut self, btf: &Btf) -> Result<(), BtfError> {
        let mut initial = Vec::new();
        for variable in btf.section(".kconfig").unwrap_or_default() {
            let ty = btf.get(variable.ty)?;
            let known = KNOWN.iter().find(|(name, _)| *name == ty.name);
            if let (Some((name, value)), Kind::Variable(ty)) = (known, &ty.kind) {
                if matches!(btf.resolve(*ty)?.kind, Kind::Int { .. }) {
                    self.externs.insert((*name).to_owned(), (self.list.len(), initial.len() as u32));
                    initial.extend(value.to_le_bytes());
                }
            }
        }
        if !initial.is_empty() {
            self.list.push(variables(".kconfig", initial.len() as u32, true, initial));
        }
        Ok(())
    }

    /// The map that is defined at an offset in `.maps`.
    pub fn defined_at(&self, offset: u64) -> Option<usize> {
        self.definitions.get(&offset).copied()
    }

    /// The map of the variables in a section.
    pub fn of_section(&self, index: usize) -> Option<usize> {
        self.data.get(&index).copied()
    }

    fn read_definitions(&mut self, elf: &Elf, section: &Section, btf: &Btf) -> Result<(), ObjectError> {
        for variable in btf.section(".maps").unwrap_or_default() {
            let wrong = |error| ObjectError::Btf { section: ".BTF", error };
            let name = btf.get(variable.ty).map_err(wrong)?.name.clone();
            let map = define(btf, &name, variable).map_err(|problem| ObjectError::Map { map: name, problem })?;
            // The types have offsets only after a relocation, which nobody but libbpf applies: the
            // symbols know better.
            let symbol = elf.symbols.iter().find(|s| s.section == Some(section.index) && s.name == map.map.name);
            let offset = symbol.map_or(variable.offset.into(), |s| s.offset);
            self.definitions.insert(offset, self.list.len());
            self.list.push(map);
        }
        Ok(())
    }

    fn add_variables(&mut self, section: &Section) -> Result<(), ObjectError> {
        let name = section.name.clone();
        if section.size > MAX_DATA {
            return Err(ObjectError::DataSize { section: name, size: section.size });
        }
        if !section.relocations.is_empty() {
            return Err(ObjectError::DataRelocation(name));
        }
        self.data.insert(section.index, self.list.len());
        let readonly = name.starts_with(".rodata");
        self.list.push(variables(&name, section.size as u32, readonly, section.data.to_vec()));
        Ok(())
    }
}

/// A map whose only value holds variables.
fn variables(name: &str, value_size: u32, readonly: bool, initial: Vec<u8>) -> ObjectMap {
    let name = name.to_owned();
    let (kind, key_size, max_entries, flags) = (MapKind::Array, 4, 1, 0);
    let map = Map { name, kind, key_size, value_size, max_entries, flags, readonly, initial };
    ObjectMap { map, key: None, value: None }
}

fn is_data(section: &Section) -> bool {
    let of = |name: &str| section.name.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    section.size > 0 && (of(".rodata") || of(".data") || of(".bss"))
}

/// The numbers of a definition, as far as they were given.
#[derive(Default)]
struct Fields {
    kind: Option<u32>,
    key_size: Option<u32>,
    value_size: Option<u32>,
    max_entries: Option<u32>,
    flags: Option<u32>,
    key: Option<TypeId>,
    value: Option<TypeId>,
}

fn set<T: PartialEq>(field: &mut Option<T>, value: T, name: &'static str) -> Result<(), MapProblem> {
    match field.replace(value) {
        Some(before) if Some(&before) != field.as_ref() => Err(MapProblem::Twice(name)),
        _ => Ok(()),
    }
}

impl From<BtfError> for MapProblem {
    fn from(error: BtfError) -> Self {
        MapProblem::Btf(error)
    }
}

/// `__uint(name, value)` is a pointer to an array of `value` integers.
fn number(btf: &Btf, ty: TypeId, name: &str) -> Result<u32, MapProblem> {
    let not_understood = || MapProblem::Field(name.to_owned());
    let Kind::Pointer(array) = btf.resolve(ty)?.kind else { return Err(not_understood()) };
    match btf.resolve(array)?.kind {
        Kind::Array { count, .. } => Ok(count),
        _ => Err(not_understood()),
    }
}

/// `__type(name, type)` is a pointer to `type`.
fn pointee(btf: &Btf, ty: TypeId, name: &str) -> Result<TypeId, MapProblem> {
    match btf.resolve(ty)?.kind {
        Kind::Pointer(to) => Ok(to),
        _ => Err(MapProblem::Field(name.to_owned())),
    }
}

fn define(btf: &Btf, name: &str, variable: &Variable) -> Result<ObjectMap, MapProblem> {
    let Kind::Variable(ty) = btf.get(variable.ty)?.kind else { return Err(MapProblem::Field(name.to_owned())) };
    let Kind::Composite { members, .. } = &btf.resolve(ty)?.kind else {
        return Err(MapProblem::Field(name.to_owned()));
    };
    let mut fields = Fields::default();
    for member in members {
        let field = member.name.as_str();
        let uint = || number(btf, member.ty, field);
        match field {
            "type" => set(&mut fields.kind, uint()?, "type")?,
            "max_entries" => set(&mut fields.max_entries, uint()?, "max_entries")?,
            "map_flags" => set(&mut fields.flags, uint()?, "map_flags")?,
            "key_size" => set(&mut fields.key_size, uint()?, "key size")?,
            "value_size" => set(&mut fields.value_size, uint()?, "value size")?,
            "key" => {
                let key = pointee(btf, member.ty, field)?;
                set(&mut fields.key_size, btf.size(key)?, "key size")?;
                fields.key = Some(key);
            }
            "value" => {
                let value = pointee(btf, member.ty, field)?;
                set(&mut fields.value_size, btf.size(value)?, "value size")?;
                fields.value = Some(value);
            }
            "pinning" => {
                if uint()? != 0 {
                    return Err(MapProblem::Pinned);
                }
            }
            // Where the kernel would put it.
            "numa_node" => {}
            _ => return Err(MapProblem::Field(field.to_owned())),
        }
    }
    let kind = fields.kind.ok_or(MapProblem::NoKind)?;
    let kind = MapKind::from_number(kind).ok_or(MapProblem::Kind(kind))?;
    let map = Map {
        name: name.to_owned(),
        kind,
        key_size: fields.key_size.unwrap_or(0),
        value_size: fields.value_size.unwrap_or(0),
        max_entries: fields.max_entries.unwrap_or(0),
        flags: fields.flags.unwrap_or(0),
        readonly: false,
        initial: Vec::new(),
    };
    Ok(ObjectMap { map: checked(map)?, key: fields.key, value: fields.value })
}

/// What the kernel would refuse when the map is made, and libbpf's repairs.
fn checked(mut map: Map) -> Result<Map, MapProblem> {
    let size = |field, size, hint| Err(MapProblem::Size { field, size, hint });
    if map.key_size > MAX_KEY {
        return size("key size", map.key_size, "keys have 512 bytes at most");
    }
    if map.value_size > MAX_VALUE {
        return size("value size", map.value_size, "values have 4 MiB at most");
    }
    match map.kind {
        MapKind::Ringbuf => {
            if map.key_size != 0 {
                return size("key size", map.key_size, "rings have no keys");
            }
            if map.value_size != 0 {
                return size("value size", map.value_size, "rings have no values");
            }
            if map.max_entries == 0 {
                return Err(MapProblem::Missing("max_entries"));
            }
            let wanted = map.max_entries.max(PAGE);
            map.max_entries = match wanted.checked_next_power_of_two() {
                Some(fits) => fits,
                None => return size("max_entries", wanted, "rings have 2 GiB at most"),
            };
        }
        // As many as there are CPUs, if nothing is said.
        MapKind::PerfEventArray => {
            map.key_size = 4;
            map.value_size = 4;
        }
        MapKind::StackTrace => {
            map.key_size = if map.key_size == 0 { 4 } else { map.key_size };
            if map.key_size != 4 {
                return size("key size", map.key_size, "keys of stack traces have 4 bytes");
            }
            if map.value_size % 8 != 0 {
                return size("value size", map.value_size, "stack traces are addresses of 8 bytes");
            }
        }
        MapKind::Array | MapKind::PercpuArray if map.key_size != 4 => {
            return size("key size", map.key_size, "keys of arrays have 4 bytes");
        }
        _ if map.key_size == 0 => return Err(MapProblem::Missing("the key")),
        _ => {}
    }
    if map.value_size == 0 && map.kind != MapKind::Ringbuf {
        return Err(MapProblem::Missing("the value"));
    }
    if map.max_entries == 0 && map.kind != MapKind::PerfEventArray {
        return Err(MapProblem::Missing("max_entries"));
    }
    Ok(map)
}
