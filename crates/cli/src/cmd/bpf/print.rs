//! What programs wrote, as text or JSON.

use std::collections::HashMap;

use anyhow::{Context, bail};
use sidestep_bpf::dump::{self, Form, MapForm, Style};
use sidestep_bpf::map::MapKind;
use sidestep_bpf::object::{Btf, Object, TypeId};
use sidestep_engine::{Entry, Record, Value};

use crate::flags::Format;
use crate::flags::format;
use crate::out::{escape, json};

/// Prints maps and records of an object.
pub struct Printer<'a> {
    object: &'a Object,
    types: Option<Btf>,
    style: Style,
    /// Whose the values of per-CPU maps are: `tid` or `cpu`.
    owner: &'static str,
    /// Rings whose records have a type, by index of the map.
    records: HashMap<usize, TypeId>,
}

impl<'a> Printer<'a> {
    /// `file`: what the object was read from; `types`: `MAP=TYPE` as typed.
    pub fn new(
        object: &'a Object,
        file: &[u8],
        types: &[String],
        format: Format,
        owner: &'static str,
    ) -> anyhow::Result<Printer<'a>> {
        let style = if format == Format::Json { Style::Json } else { Style::Text };
        let mut printer = Printer { object, types: dump::placed_types(file)?, style, owner, records: HashMap::new() };
        for text in types {
            let (map, ty) = text.split_once('=').with_context(|| format!("\"{text}\" is not MAP=TYPE"))?;
            let index = object.maps.iter().position(|m| m.map.name == map && is_ring(m.map.kind));
            let index = index.with_context(|| format!("there is no ring '{map}'; there are: {}", printer.rings()))?;
            let Some(btf) = &printer.types else { bail!("the object has no types: compile with -g") };
            let found = dump::type_named(btf, ty).with_context(|| {
                let hint = "clang keeps types of maps, variables and functions only, so add such as";
                format!("the object has no type '{ty}'; {hint}: const struct {ty} *unused __attribute__((unused));")
            })?;
            printer.records.insert(index, found);
        }
        Ok(printer)
    }

    fn rings(&self) -> String {
        let names = self.object.maps.iter().filter(|m| is_ring(m.map.kind)).map(|m| m.map.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    /// The maps that have something to show: not rings, whose records were printed, not constants,
    /// and not what libbpf's `usdt.bpf.h` needs for itself.
    pub fn shown(&self) -> Vec<usize> {
        let has = |(_, m): &(usize, &sidestep_bpf::object::ObjectMap)| {
            !is_ring(m.map.kind) && !m.map.readonly && !m.map.name.starts_with("__bpf_usdt_")
        };
        self.object.maps.iter().enumerate().filter(has).map(|(index, _)| index).collect()
    }

    /// The lines of a map.
    pub fn map(&self, index: usize, entries: &[Entry]) -> Vec<String> {
        let map = &self.object.maps[index];
        let form = MapForm::of(map, self.types.as_ref());
        let lines: Vec<String> = entries.iter().map(|entry| self.entry(&form, entry)).collect();
        if self.style == Style::Json {
            let data = json::object([(&map.map.name, json::array(lines))]);
            return vec![json::line("map", data)];
        }
        let heading =
            format!("{} ({}, {} of {} entries)", map.map.name, map.map.kind, lines.len(), map.map.max_entries);
        let lines = lines.iter().flat_map(|text| text.lines()).map(|line| format!("  {line}"));
        std::iter::once(heading).chain(lines).collect()
    }

    fn entry(&self, form: &MapForm<'_>, entry: &Entry) -> String {
        let printed = match &entry.value {
            Value::One(bytes) => form.entry(self.style, &entry.key, bytes),
            Value::PerThread(values) => {
                // Threads and CPUs that never came here have nothing but zeros.
                let used = values.iter().filter(|(_, bytes)| bytes.iter().any(|b| *b != 0));
                form.entry_by(
                    self.style,
                    &entry.key,
                    self.owner,
                    used.map(|(tid, bytes)| (u64::from(*tid), bytes.as_slice())),
                )
            }
        };
        printed.unwrap_or_else(|error| self.broken(&error.to_string()))
    }

    /// What stands where something cannot be printed.
    fn broken(&self, error: &str) -> String {
        if self.style == Style::Json { json::object([("error", json::string(error))]) } else { format!("({error})") }
    }

    /// The line of a record.
    pub fn record(&self, record: &Record) -> String {
        let Some(map) = record.map else { return self.trace(record) };
        let head = [("nsecs", json::number(record.time_ns)), ("tid", record.tid.to_string())];
        self.written(map, &record.tid.to_string(), &head, &record.bytes)
    }

    /// The same in the kernel, which says of the rings of CPUs only whose they are.
    pub fn kernel_record(&self, map: usize, cpu: Option<u32>, bytes: &[u8]) -> String {
        match cpu {
            Some(cpu) => self.written(map, &format!("cpu {cpu}"), &[("cpu", cpu.to_string())], bytes),
            None => self.written(map, "", &[], bytes),
        }
    }

    /// A line about what was written to a ring: by whom, and this in JSON.
    fn written(&self, map: usize, by: &str, members: &[(&str, String)], bytes: &[u8]) -> String {
        let form = match (&self.types, self.records.get(&map)) {
            (Some(btf), Some(ty)) => Form::Type(btf, *ty),
            _ => Form::Hex,
        };
        let value = form.print(self.style, bytes).unwrap_or_else(|error| self.broken(&error.to_string()));
        let name = self.object.maps.get(map).map_or("?", |m| m.map.name.as_str());
        if self.style == Style::Text {
            let head = format!("{} {by}", escape::row(name));
            return format!("{}: {}", head.trim_end(), escape::block(value.as_bytes()));
        }
        let members = members.iter().cloned();
        json::line(
            "record",
            json::object([("map", json::string(name))].into_iter().chain(members).chain([("value", value)])),
        )
    }

    /// The line of a `trace_printk`.
    fn trace(&self, record: &Record) -> String {
        let text = message(&record.bytes).unwrap_or_else(|| "(unreadable)".to_owned());
        if self.style == Style::Text {
            // Line ends are those of the program's own format.
            return escape::block(text.trim_end_matches('\n').as_bytes());
        }
        json::line(
            "printf",
            json::object([
                ("nsecs", json::number(record.time_ns)),
                ("tid", record.tid.to_string()),
                ("text", json::string(&text)),
            ]),
        )
    }
}

fn is_ring(kind: MapKind) -> bool {
    matches!(kind, MapKind::Ringbuf | MapKind::PerfEventArray)
}

/// The text of a record of `trace_printk` (`sidestep_wire::map::TRACE`).
fn message(bytes: &[u8]) -> Option<String> {
    let word = |index: usize| Some(u64::from_ne_bytes(bytes.get(8 * index..8 * index + 8)?.try_into().ok()?));
    let len = usize::try_from(word(0)?).ok()?;
    let format = bytes.get(32..32usize.checked_add(len)?)?;
    let mut texts = bytes.get(32 + len..)?.split(|b| *b == 0);
    let format = String::from_utf8_lossy(format.split(|b| *b == 0).next()?).into_owned();
    let Ok(format) = format::Format::parse(&format.replace('\\', "\\\\")) else {
        return Some(escape::row_of(format.as_bytes()));
    };
    let mut values = Vec::new();
    for (index, kind) in format.kinds().take(3).enumerate() {
        values.push(match kind == 's' {
            true => format::Value::Str(texts.next()?.to_vec()),
            false => format::Value::Int(word(1 + index)?),
        });
    }
    Some(format.render(&values))
}
