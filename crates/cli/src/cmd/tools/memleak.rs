//! `memleak`: memory that was allocated and not freed.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use sidestep_engine::{list, pattern};
use sidestep_isa::Isa;

use super::{Tool, every, spec};
use crate::flags::Output;
use crate::flags::tools::{Memleak, Run, Sort};
use crate::out::json;
use crate::out::script::{Cell, Layout, Line, Shown, frames, listed};
use crate::out::sink::say;

/// Functions that give memory: what size they are asked for, and where it is.
const ALLOCATE: &[(&str, &str, &str)] = &[
    ("malloc", "arg0", "retval"),
    ("calloc", "arg0 * arg1", "retval"),
    ("realloc", "arg1", "retval"),
    ("memalign", "arg1", "retval"),
    ("aligned_alloc", "arg1", "retval"),
    ("valloc", "arg0", "retval"),
    ("pvalloc", "arg0", "retval"),
    ("posix_memalign", "arg2", if WORD == 8 { "*(uint64 *)@place[tid]" } else { "*(uint32 *)@place[tid]" }),
    ("mmap", "arg1", "retval"),
];

/// Bytes of an address: a tool of 32 bits probes programs of 32 bits.
const WORD: usize = size_of::<usize>();

/// Functions that take it back, by its address in their first argument.
const FREE: [&str; 3] = ["free", "realloc", "munmap"];

impl Memleak {
    /// What happens when a function is called and when it returns. Allocators call each other: only
    /// the outermost call counts, which is that with the highest stack pointer.
    fn blocks(&self, (name, size, address): (&str, &str, &str)) -> Result<String, String> {
        let mut wanted = vec!["reg(\"sp\") >= @call[tid]".to_owned()];
        wanted.extend(self.min_size.map(|least| format!("(uint64)({size}) >= {least}")));
        wanted.extend(self.max_size.map(|most| format!("(uint64)({size}) <= {most}")));
        if self.sample_rate > 1 {
            wanted.push(format!("@seen++ % {} == 0", self.sample_rate));
        }
        let place = if name == "posix_memalign" { "; @place[tid] = arg0" } else { "" };
        let given = match name {
            "posix_memalign" => "(int32)retval == 0",
            "mmap" => "(int32)retval != -1",
            _ => "retval != 0",
        };
        let traced = match self.trace {
            true => format!("; printf(\"{name} size = %lu, result = %#lx\\n\", @size[tid], {address})"),
            false => String::new(),
        };
        let process = self.process();
        // What a return takes off the stack: the return address, if a call leaves it there.
        let popped = WORD * usize::from(Isa::with_word(WORD as u8).limits().context.words_before_arguments());
        let (entry, exit) = (self.point("uprobe", name)?, self.point("uretprobe", name)?);
        Ok(format!(
            "{entry} /{}/ {{ @call[tid] = reg(\"sp\"); @size[tid] = (uint64)({size}){place} }}\n\
             {exit} /@call[tid] + {popped} == reg(\"sp\")/ {{\n    \
             if ({given}) {{ @allocs[{process}(uint64){address}] = (@size[tid], nsecs, ustack){traced} }}\n    \
             delete(@call, tid)\n}}\n",
            wanted.join(" && ")
        ))
    }

    /// What stands before an address in keys: of several processes, the one that it is in.
    fn process(&self) -> &'static str {
        if self.run.target.are_several() { "pid, " } else { "" }
    }

    /// Objects of a process with a `malloc` that is not the C library's.
    fn other_allocators(&self, pid: i32) -> BTreeSet<PathBuf> {
        let objects = |object: &str| -> BTreeSet<PathBuf> {
            let Ok(pattern) = pattern::parse(&format!("{object}:malloc"), false) else { return BTreeSet::new() };
            let found = list(&pattern, Some(pid), &self.run.engine.options()).unwrap_or_default();
            found.into_iter().map(|function| function.object).collect()
        };
        &objects("*") - &objects("c")
    }

    fn point(&self, provider: &str, name: &str) -> Result<String, String> {
        spec::point(provider, &self.object, &format!("{}{name}", self.symbols_prefix), false)
    }
}

impl Tool for Memleak {
    const NAME: &'static str = "memleak";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        Output { file: self.file.clone(), format: self.format, detail: self.detail }
    }

    fn script(&self) -> Result<String, String> {
        if self.percpu {
            return Err("--percpu: allocations of the kernel need the kernel: not available in this tool".to_owned());
        }
        if self.min_size.zip(self.max_size).is_some_and(|(least, most)| least > most) {
            return Err("-z must not be above -Z: no allocation is that large and that small".to_owned());
        }
        // So many allocations at a time as bcc's tool knows, if there is room.
        let keys = if WORD == 8 { 1_000_000 } else { 50_000 };
        let mut script = format!(
            "config = {{ print_maps_on_exit = false; show_debug_info = false; missing_probes = \"ignore\"; max_map_keys = {keys} }}\n"
        );
        let frees: Result<Vec<String>, String> = FREE.iter().map(|name| self.point("uprobe", name)).collect();
        let traced = if self.trace { "printf(\"free %#lx\\n\", arg0); " } else { "" };
        let (freed, address) = match self.process() {
            "" => ("(uint64)arg0", "$entry.0"),
            _ => ("(pid, (uint64)arg0)", "$entry.0.1"),
        };
        script += &format!("{} {{ {traced}delete(@allocs, {freed}) }}\n", frees?.join(", "));
        for function in ALLOCATE {
            script += &self.blocks(*function)?;
        }
        let older = if self.combined_only { 0 } else { self.older };
        let older = older.checked_mul(1_000_000).ok_or("-o: that is too old")?;
        let each = match self.show_allocs {
            true => format!(" printf(\"\\taddr = %#lx size = %lu\\n\", {address}, $entry.1.0);"),
            false => String::new(),
        };
        let report = format!(
            "\n    time(\"[%H:%M:%S] Top {top} stacks with outstanding allocations:\\n\");\n    \
             for ($entry : @allocs) {{\n        \
             if (nsecs - $entry.1.1 >= {older}) {{\n           {each} \
             @bytes[$entry.1.2] = sum($entry.1.0); @count[$entry.1.2] = count();\n        }}\n    }}\n    \
             {print} clear(@count); clear(@bytes);\n",
            top = self.top,
            print = match self.sort {
                Sort::Size => format!("print(@count); print(@bytes, {});", self.top),
                Sort::Count => format!("print(@bytes); print(@count, {});", self.top),
            },
        );
        let number = self.count.or(self.number);
        let count = match number {
            Some(number) => format!("    if (++@outputs >= {number}) {{ exit() }}\n"),
            None => String::new(),
        };
        script += &every(self.every.unwrap_or(self.interval), &format!("{report}{count}"));
        // What is left at the end, unless that was asked for already.
        script += &match number {
            Some(number) => format!("END {{ if (@outputs < {number}) {{{report}}} }}\n"),
            None => format!("END {{{report}}}\n"),
        };
        Ok(script)
    }

    /// A program with an allocator of its own seems to leak nothing.
    fn prepare(&self) -> anyhow::Result<()> {
        if self.object == "c" && self.symbols_prefix.is_empty() && !self.detail.quiet {
            for pid in &self.run.target.pid {
                for other in self.other_allocators(*pid) {
                    let other = other.display();
                    say(&format!("sidestep: process {pid} has a malloc in {other}, too, which -O {other} looks at"));
                }
            }
        }
        Ok(())
    }

    fn layout(&self) -> Box<dyn Layout> {
        Box::new(Leaks { pids: self.run.target.pid.clone(), sort: self.sort, others: HashMap::new() })
    }
}

struct Leaks {
    pids: Vec<i32>,
    sort: Sort,
    /// By stack, what it is not sorted by: allocations or bytes.
    others: HashMap<String, String>,
}

impl Layout for Leaks {
    fn progress(&self, _probes: usize) -> String {
        let pids: Vec<String> = self.pids.iter().map(ToString::to_string).collect();
        match &*pids {
            [_, ..] => format!("Attaching to pid {}, Ctrl+C to quit.", pids.join(", ")),
            [] => "Tracing outstanding memory allocations... Hit Ctrl-C to end".to_owned(),
        }
    }

    fn map(&mut self, name: &str, rows: &[Line], is_json: bool) -> Option<String> {
        let row = |row: &Line| match (&*row.keys, &row.cell) {
            ([stack], Cell::Value(value)) => Some((stack.clone(), value.text())),
            _ => None,
        };
        let rows = rows.iter().filter_map(row);
        let sorted = if self.sort == Sort::Size { "@bytes" } else { "@count" };
        if name != sorted {
            self.others = rows.map(|(stack, number)| (stack.text(), number)).collect();
            return Some(String::new());
        }
        let text = |(stack, number): (Shown, String)| {
            let other = self.others.get(&stack.text()).map_or("?", String::as_str);
            let (bytes, count) = if self.sort == Sort::Size { (&*number, other) } else { (other, &*number) };
            if is_json {
                let numbers = [("bytes", bytes), ("allocations", count)];
                let numbers = numbers.into_iter().filter_map(|(name, text)| Some((name, text.parse().ok()?)));
                let numbers = numbers.map(|(name, number)| (name, json::number(number)));
                let data = json::object([("stack", listed(&stack))].into_iter().chain(numbers));
                return json::line("leak", data) + "\n";
            }
            let frames: String = frames(&stack).iter().map(|frame| format!("\t\t{frame}\n")).collect();
            format!("\t{bytes} bytes in {count} allocations from stack\n{frames}")
        };
        Some(rows.map(text).collect())
    }
}
