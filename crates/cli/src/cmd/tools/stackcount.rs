//! `stackcount`: which stacks lead to functions, and how often?

use super::{KERNEL_STACKS, Tool, every, spec};
use crate::flags::tools::{Run, Stackcount};
use crate::flags::{Format, Output};
use crate::out::script::{Cell, Layout, Line, Shown, folded, frames, function, listed, merged};
use crate::out::{json, number};

impl Tool for Stackcount {
    const NAME: &'static str = "stackcount";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.output()
    }

    fn regexp(&self) -> bool {
        self.regexp
    }

    fn script(&self) -> Result<String, String> {
        if self.kernel {
            return Err(KERNEL_STACKS.to_owned());
        }
        let point = spec::place(&self.pattern, self.regexp)?;
        let keys = if self.perpid { "pid, comm, " } else { "" };
        let time = if self.timestamp { "time(); " } else { "" };
        let mut script = "config = { max_map_keys = 16384; show_debug_info = false }\n".to_owned();
        let mode = if self.addresses() { "perf, " } else { "" };
        let cpu = self.cpu.map(|cpu| format!(" /cpu == {cpu}/")).unwrap_or_default();
        script += &format!("{point}{cpu} {{ @[{keys}ustack({mode}{})] = count() }}\n", self.depth);
        if let Some(interval) = self.interval {
            script += &every(interval, &format!("{time}print(@); clear(@)"));
        }
        if !time.is_empty() {
            script += "END { time() }\n";
        }
        Ok(script)
    }

    fn layout(&self) -> Box<dyn Layout> {
        let Stackcount { pattern, perpid, offset, .. } = self;
        let addresses = self.addresses();
        let (pattern, folded) = (pattern.clone(), self.output.folded);
        Box::new(Stacks { pattern, perpid: *perpid, offset: *offset, addresses, folded })
    }
}

impl Stackcount {
    /// Frames have addresses.
    fn addresses(&self) -> bool {
        self.output.detail.verbose && !self.output.folded && self.output().format == Format::Text
    }
}

struct Stacks {
    pattern: String,
    perpid: bool,
    offset: bool,
    addresses: bool,
    folded: bool,
}

impl Layout for Stacks {
    fn progress(&self, probes: usize) -> String {
        format!("Tracing {} for \"{}\"... Hit Ctrl-C to end.", number::of(probes, "function"), self.pattern)
    }

    fn map(&mut self, _name: &str, rows: &[Line], is_json: bool) -> Option<String> {
        if is_json {
            return rows.iter().map(|row| Some(self.object(row)? + "\n")).collect();
        }
        let rows: Option<Vec<_>> = rows.iter().map(|row| self.row(row)).collect();
        let line = |(text, count): (String, i128)| match self.folded {
            true => format!("{text} {count}\n"),
            false => format!("{text}    {count}\n\n"),
        };
        Some(merged(rows?).into_iter().map(line).collect())
    }
}

impl Stacks {
    /// A stack as text, and how often.
    fn row(&self, row: &Line) -> Option<(String, i128)> {
        let (Some(stack), Cell::Value(Shown::Int(count))) = (row.keys.last(), &row.cell) else { return None };
        let key = |index: usize| row.keys.get(index).map(Shown::text).unwrap_or_default();
        let text = if self.folded {
            let root = if self.perpid { format!("{};", key(1)) } else { String::new() };
            root + &folded(stack)
        } else {
            let name = |frame: &String| format!("  {}\n", self.frame(frame));
            let thread = if self.perpid { format!("    {} [{}]\n", key(1), key(0)) } else { String::new() };
            frames(stack).iter().map(name).collect::<String>() + &thread
        };
        Some((text, *count))
    }

    /// A stack in JSON.
    fn object(&self, row: &Line) -> Option<String> {
        let (Some(stack), Cell::Value(count)) = (row.keys.last(), &row.cell) else { return None };
        let thread = ["pid", "comm"].into_iter().zip(&row.keys[..row.keys.len() - 1]);
        let members = thread.chain([("stack", stack), ("count", count)]);
        Some(json::line("stack", json::object(members.map(|(name, value)| (name, listed(value))))))
    }

    fn frame(&self, frame: &str) -> String {
        // `ADDRESS FUNC+OFFSET (OBJECT)`.
        let (address, frame) = match frame.split_once(' ').filter(|_| self.addresses) {
            Some((address, rest)) => (format!("{address:<16} "), rest.rsplit_once(" (").map_or(rest, |(name, _)| name)),
            None => (String::new(), frame),
        };
        format!("{address}{}", if self.offset { frame } else { function(frame) })
    }
}
