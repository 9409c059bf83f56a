//! `trace` as a script: for conditions, stacks, signatures and USDT probes, which no record of the
//! kernel's has.

use std::slice::Iter;

use super::call::Call;
use super::{Tool, quoted};
use crate::cmd::trace::rows::{Hit, Rows};
use crate::flags::format::{Format, Value};
use crate::flags::tools::Run;
use crate::flags::{Output, Trace};
use crate::out::script::{Layout, Shown, frames};

/// Bytes of a string, as records have it.
const STRING: u32 = 256;

impl Tool for Trace {
    const NAME: &'static str = "trace";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        let mut script = format!(
            "config = {{ max_strlen = {}; str_trunc_trailer = \"\"; show_debug_info = false }}\n",
            self.string_size.unwrap_or(STRING)
        );
        let mut filters: Vec<String> = Vec::new();
        filters.extend(self.tid.map(|tid| format!("tid == {tid}")));
        filters.extend(self.uid.map(|uid| format!("uid == {uid}")));
        filters.extend(self.name.as_ref().map(|name| format!("strcontains(comm, {})", quoted(name))));
        for (number, text) in self.specs.iter().enumerate() {
            let call = Call::parse(text)?;
            let mut formats = vec!["%lu", "%lu", "%d", "%d", "%s"];
            let mut values = vec![number.to_string(), "nsecs".into(), "pid".into(), "tid".into(), "comm".into()];
            if self.cpu {
                formats.push("%lu");
                values.push("cpu".into());
            }
            // Static probes are called by their own names.
            if call.name().is_none() {
                formats.push("%s");
                values.push("func".into());
            }
            for (kind, value) in call.values()? {
                formats.push(if matches!(kind, 's' | 'U') { "%s" } else { "%lu" });
                values.push(value);
            }
            if self.user_stack {
                formats.push("%s");
                values.push("ustack(perf)".into());
            }
            let wanted = filters.iter().cloned().chain(call.condition()?);
            let wanted = wanted.collect::<Vec<_>>().join(" && ");
            let predicate = if wanted.is_empty() { String::new() } else { format!(" /{wanted}/") };
            let print = format!("printf(\"{}\\n\", {})", formats.join(" "), values.join(", "));
            script += &format!("{}{predicate} {{ {print} }}\n", call.point()?);
        }
        Ok(script)
    }

    fn layout(&self) -> Box<dyn Layout> {
        let calls: Vec<Call> = self.specs.iter().filter_map(|text| Call::parse(text).ok()).collect();
        let plain = calls.iter().all(|call| call.format().is_none());
        Box::new(Calls { calls, cpu: self.cpu, address: self.address, rows: Rows::new(self, plain) })
    }
}

struct Calls {
    calls: Vec<Call>,
    cpu: bool,
    address: bool,
    rows: Rows,
}

impl Layout for Calls {
    fn heading(&self) -> String {
        self.rows.heading()
    }

    fn line(&mut self, values: &[Shown], json: bool) -> Option<String> {
        let mut values = values.iter();
        let call = self.calls.get(usize::try_from(word(&mut values)?).ok()?)?;
        let (nsecs, pid, tid) = (word(&mut values)?, word(&mut values)?, word(&mut values)?);
        let comm = values.next()?.text();
        let cpu = if self.cpu { Some(word(&mut values)?) } else { None };
        let func = match call.name() {
            Some(name) => name.to_owned(),
            None => values.next()?.text(),
        };
        let kinds = call.format().map(Format::kinds).into_iter().flatten();
        let args: Vec<&Shown> = kinds.map_while(|_| values.next()).collect();
        let plain: Vec<Value> = args.iter().map(|arg| plain(arg)).collect();
        let message = call.format().map_or(String::new(), |format| format.render(&plain));
        let stack = values.next().map(frames).unwrap_or_default();
        let hit = Hit {
            nsecs,
            cpu,
            pid: i32::try_from(pid).ok()?,
            tid: i32::try_from(tid).ok()?,
            comm: &comm,
            func: &func,
            args: if json { args.iter().map(|arg| arg.json()).collect() } else { Vec::new() },
            message,
            stack: stack.iter().map(|frame| self.frame(frame)).collect(),
        };
        Some(self.rows.show(&hit, json))
    }

    fn is_done(&self) -> bool {
        self.rows.is_done()
    }

    fn end(&mut self, json: bool) -> String {
        self.rows.end(json)
    }
}

impl Calls {
    /// `ADDRESS FUNC+OFFSET (OBJECT)` as bcc prints it: `[ADDRESS] FUNC+OFFSET [FILE]`.
    fn frame(&self, frame: &str) -> String {
        let (address, rest) = frame.split_once(' ').unwrap_or(("", frame));
        let address = if self.address { format!("{address:>16} ") } else { String::new() };
        let object = rest.rsplit_once(" (").and_then(|(name, object)| Some((name, object.strip_suffix(')')?)));
        match object {
            Some((name, object)) => format!("{address}{name} [{}]", object.rsplit('/').next().unwrap_or(object)),
            None => format!("{address}{rest}"),
        }
    }
}

fn word(values: &mut Iter<Shown>) -> Option<u64> {
    values.next()?.number().map(|n| n as u64)
}

fn plain(value: &Shown) -> Value {
    match value.number() {
        Some(n) => Value::Int(n as u64),
        None => Value::Str(value.bytes()),
    }
}
