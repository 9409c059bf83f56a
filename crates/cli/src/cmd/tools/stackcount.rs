//! `stackcount`: which stacks lead to functions, and how often?

use super::{Tool, after, every, spec};
use crate::flags::Output;
use crate::flags::tools::{Run, Stackcount};
use crate::out::script::{Cell, Layout, Line, folded, frames, function};

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
        let point = spec::place(&self.pattern, self.regexp)?;
        let keys = if self.perpid { "pid, comm, " } else { "" };
        let time = if self.timing.timestamp { "time(); " } else { "" };
        let mut script = "config = { max_map_keys = 16384 }\n".to_owned();
        script += &format!("{point} {{ @[{keys}ustack({})] = count() }}\n", self.depth);
        if let Some(interval) = self.timing.interval {
            script += &every(interval, &format!("{time}print(@); clear(@)"));
        }
        script += &after(self.timing.duration);
        if !time.is_empty() {
            script += "END { time() }\n";
        }
        Ok(script)
    }

    fn layout(&self) -> Box<dyn Layout> {
        let Stackcount { pattern, perpid, offset, .. } = self;
        Box::new(Stacks { pattern: pattern.clone(), perpid: *perpid, offset: *offset, folded: self.output.folded })
    }
}

struct Stacks {
    pattern: String,
    perpid: bool,
    offset: bool,
    folded: bool,
}

impl Layout for Stacks {
    fn heading(&self, probes: usize) -> String {
        match self.folded {
            true => String::new(),
            false => format!("Tracing {probes} functions for \"{}\"... Hit Ctrl-C to end.", self.pattern),
        }
    }

    fn map(&mut self, _name: &str, rows: &[Line], json: bool) -> Option<String> {
        let mut out = String::new();
        if json {
            return None;
        }
        for row in rows {
            let (Some(stack), Cell::Value(count)) = (row.keys.last(), &row.cell) else { return None };
            let name = |index: usize| row.keys.get(index).map(|key| key.text()).unwrap_or_default();
            if self.folded {
                let root = if self.perpid { format!("{};", name(1)) } else { String::new() };
                out.push_str(&format!("{root}{} {}\n", folded(stack), count.text()));
                continue;
            }
            for frame in frames(stack) {
                out.push_str(&format!("  {}\n", if self.offset { &frame } else { function(&frame) }));
            }
            if self.perpid {
                out.push_str(&format!("    {} [{}]\n", name(1), name(0)));
            }
            out.push_str(&format!("    {}\n\n", count.text()));
        }
        Some(out)
    }
}
