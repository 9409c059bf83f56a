//! `argdist`: how often do arguments and returns have which values?

use super::call::When;
use super::ctype::{CType, WORDS, close, parameters, split, translate};
use super::{Tool, every, spec};
use crate::flags::Output;
use crate::flags::tools::{Argdist, Run};
use crate::out::distribution;
use crate::out::script::{Cell, Layout, Line};

impl Tool for Argdist {
    const NAME: &'static str = "argdist";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        let specs = self.specs()?;
        if specs.is_empty() {
            return Err(
                "nothing to count: add -C SPEC or -H SPEC, for example -H 'p:c:malloc(size_t n):size_t:n'".into()
            );
        }
        let mut script = format!("config = {{ max_strlen = {}; print_maps_on_exit = false }}\n", self.string_size);
        let (mut show, mut forget) = (String::new(), String::new());
        for (number, spec) in specs.iter().enumerate() {
            script += &spec.blocks(number, self.tid)?;
            show += &format!("print(@p{number}); ");
            if !self.cumulative {
                forget += &format!("clear(@p{number}); ");
            }
        }
        let time = "time(\"[%H:%M:%S]\\n\"); ";
        let count = self.number.map(|number| format!("if (++@outputs >= {number}) {{ exit() }} ")).unwrap_or_default();
        script += &every(self.interval, &format!("{time}{show}{forget}{count}"));
        // What has come since the last output, unless there can be nothing.
        script += &match self.number {
            Some(number) => format!("END {{ if (@outputs < {number}) {{ {time}{show}}} }}\n"),
            None => format!("END {{ {time}{show}}}\n"),
        };
        Ok(script)
    }

    fn layout(&self) -> Box<dyn Layout> {
        let top = self.top.and_then(|top| usize::try_from(top).ok());
        Box::new(Distributions { specs: self.specs().unwrap_or_default(), top })
    }
}

impl Argdist {
    fn specs(&self) -> Result<Vec<Spec>, String> {
        let counts = self.count.iter().map(|text| Spec::parse(text, false));
        let histograms = self.histogram.iter().map(|text| Spec::parse(text, true));
        counts.chain(histograms).collect()
    }
}

/// A specification of bcc.
#[derive(Clone, Debug)]
struct Spec {
    text: String,
    label: String,
    when: When,
    /// Without its kind and signature: `OBJECT:FUNC`.
    place: String,
    params: Vec<(String, CType)>,
    /// What is counted. None: how often it happens, or what is returned.
    exprs: Vec<(CType, String)>,
    filter: Option<String>,
    histogram: bool,
}

impl Spec {
    fn parse(text: &str, histogram: bool) -> Result<Spec, String> {
        Self::parts(text, histogram).map_err(|error| format!("in '{text}': {error}"))
    }

    fn parts(text: &str, histogram: bool) -> Result<Spec, String> {
        let labels = split(text, b'#');
        let (body, label) = match *labels {
            [body, label] => (body, label),
            [body] => (body, body),
            _ => return Err("there are several labels".to_owned()),
        };
        if split(body, b';').len() > 1 {
            return Err("a label comes behind '#', not behind ';'".to_owned());
        }
        let (head, behind) = body.split_once('(').ok_or("it has no signature: write FUNC() at least")?;
        let end = close(behind).ok_or("the parenthesis of the signature is not closed")?;
        let params = parameters(&behind[..end])?;
        let (when, place) = match head.split_once(':') {
            Some(("p", place)) => (When::Entry, place),
            Some(("r", place)) => (When::Return, place),
            Some(("u", place)) => (When::Usdt, place),
            Some(("t", _)) => return Err("tracepoints need the kernel: not available in this tool".to_owned()),
            Some((_, place)) if place.replace("::", "").contains(':') => {
                return Err("it does not begin with p:, r: or u:".to_owned());
            }
            // An entry, as with stackcount and funccount.
            Some(_) => (When::Entry, head),
            None => return Err("it names no object: write c:FUNC(), or p::FUNC() for the program itself".to_owned()),
        };
        let rest = &behind[end + 1..];
        let parts = match rest.strip_prefix(':') {
            Some(rest) => split(rest, b':'),
            None if rest.trim().is_empty() => Vec::new(),
            None => return Err(format!("'{rest}' behind the signature: expected :TYPE:EXPR")),
        };
        let (types, exprs, filter) = match *parts {
            [] => ("", "", None),
            [types, exprs] => (types, exprs, None),
            [types, exprs, filter] => (types, exprs, Some(filter.trim().to_owned())),
            _ => return Err("expected TYPE:EXPR or TYPE:EXPR:FILTER behind the signature".to_owned()),
        };
        let types = split(types, b',').into_iter().filter(|ty| !ty.trim().is_empty());
        let types = types.map(CType::parse).collect::<Result<Vec<_>, _>>()?;
        let exprs: Vec<&str> = split(exprs, b',').into_iter().map(str::trim).filter(|expr| !expr.is_empty()).collect();
        if types.len() != exprs.len() {
            return Err(format!("{} types for {} expressions", types.len(), exprs.len()));
        }
        if histogram && exprs.len() > 1 {
            return Err("a histogram has one expression".to_owned());
        }
        if histogram && exprs.is_empty() && when != When::Return {
            return Err("a histogram needs an expression".to_owned());
        }
        Ok(Spec {
            text: body.to_owned(),
            label: label.to_owned(),
            when,
            place: place.to_owned(),
            params,
            exprs: types.into_iter().zip(exprs.into_iter().map(str::to_owned)).collect(),
            filter: filter.filter(|filter| !filter.is_empty()),
            histogram,
        })
    }

    /// The blocks that fill the map `@pNUMBER`.
    fn blocks(&self, number: usize, thread: Option<i32>) -> Result<String, String> {
        let mut carried = Vec::new();
        let mut values = Vec::new();
        for (ty, expr) in &self.exprs {
            let value = self.translate(expr, number, &mut carried)?;
            match (ty, self.histogram) {
                (CType::Text, true) => return Err(format!("in '{}': a histogram is of numbers", self.text)),
                _ => values.push(ty.shown(&value)),
            }
        }
        if values.is_empty() && self.when == When::Return {
            values.push("retval".to_owned());
        }
        let mut filters: Vec<String> = thread.map(|tid| format!("tid == {tid}")).into_iter().collect();
        if let Some(filter) = &self.filter {
            filters.push(format!("({})", self.translate(filter, number, &mut carried)?));
        }
        let point = |provider| -> Result<String, String> {
            let place = self.place.trim_start_matches(':');
            spec::function(provider, place, false).map_err(|error| format!("in '{}': {error}", self.text))
        };
        let mut out = String::new();
        if !carried.is_empty() {
            let saves: Vec<String> = carried.iter().map(|(name, index)| format!("{name} = arg{index}")).collect();
            out += &format!("{} {{ {} }}\n", point("uprobe")?, saves.join("; "));
        }
        let point = match self.when {
            When::Entry => point("uprobe")?,
            When::Return => point("uretprobe")?,
            When::Usdt => spec::usdt(&format!("u:{}", self.place))?,
        };
        let predicate = if filters.is_empty() { String::new() } else { format!(" /{}/", filters.join(" && ")) };
        let count = match self.histogram {
            true => format!("@p{number} = hist({})", values.join(", ")),
            false if values.is_empty() => format!("@p{number} = count()"),
            false => format!("@p{number}[{}] = count()", values.join(", ")),
        };
        out += &format!("{point}{predicate} {{ {count} }}\n");
        Ok(out)
    }

    /// An expression in the language of scripts. `carried` collects what a call has to keep from
    /// its entry: its name, argument.
    fn translate(&self, expr: &str, number: usize, carried: &mut Vec<(String, usize)>) -> Result<String, String> {
        let find = |name: &str| self.params.iter().position(|(param, _)| param == name);
        let missing = |name: &str| format!("in '{}': the signature has no '{name}'", self.text);
        let translated = translate(expr, &mut |name, inner| match (name, inner) {
            ("$entry", Some(param)) => {
                let index = find(param.trim()).ok_or_else(|| missing(param.trim()))?;
                let kept = format!("self.{}_{number}", self.params[index].0);
                if !carried.iter().any(|(known, _)| *known == kept) {
                    carried.push((kept.clone(), index));
                }
                Ok(Some(self.params[index].1.cast(&kept)))
            }
            ("STRCMP", Some(arguments)) => {
                let [text, value] = *split(arguments, b',') else {
                    return Err(format!("in '{}': STRCMP takes a string and an expression", self.text));
                };
                let value = self.translate(value.trim(), number, carried)?;
                Ok(Some(format!("(str({value}) == {})", text.trim())))
            }
            ("$retval" | "$latency" | "$entry", _) if self.when != When::Return => {
                Err(format!("in '{}': {name} is known at the return only; write r:", self.text))
            }
            ("$retval", None) => Ok(Some("retval".to_owned())),
            ("$latency", None) => Ok(Some("latency()".to_owned())),
            ("$pid" | "$PID", None) => Ok(Some("pid".to_owned())),
            ("$COMM", None) => Ok(Some("comm".to_owned())),
            ("$tid", None) => Ok(Some("tid".to_owned())),
            ("u8" | "u16" | "u32" | "u64" | "s8" | "s16" | "s32" | "s64", None) => {
                Ok(Some(name.replace('u', "uint").replace('s', "int")))
            }
            (name, None) => match find(name) {
                Some(_) if self.when == When::Return => {
                    Err(format!("in '{}': '{name}' may be gone at the return; write $entry({name})", self.text))
                }
                Some(index) => Ok(Some(self.params[index].1.cast(&format!("arg{index}")))),
                // bcc counts the arguments of static probes from 1.
                None => match name.strip_prefix("arg").and_then(|n| n.parse::<usize>().ok()) {
                    Some(n @ 1..) if self.when == When::Usdt => Ok(Some(format!("arg{}", n - 1))),
                    _ if WORDS.contains(&name) => Ok(None),
                    _ => Err(missing(name)),
                },
            },
            _ => Ok(None),
        })?;
        Ok(translated)
    }

    /// What a value is called.
    fn names(&self) -> Vec<&str> {
        match self.exprs.is_empty() {
            true => vec!["retval"],
            false => self.exprs.iter().map(|(_, expr)| expr.as_str()).collect(),
        }
    }
}

struct Distributions {
    specs: Vec<Spec>,
    top: Option<usize>,
}

impl Distributions {
    /// Whose map it is.
    fn spec(&self, map: &str) -> Option<&Spec> {
        self.specs.get(map.strip_prefix("@p")?.parse::<usize>().ok()?)
    }
}

impl Layout for Distributions {
    fn title(&self, name: &str) -> String {
        self.spec(name).map_or(name, |spec| &spec.label).to_owned()
    }

    fn map(&mut self, name: &str, rows: &[Line], json: bool) -> Option<String> {
        let spec = self.spec(name)?;
        if json {
            return None;
        }
        let mut out = format!("{}\n", spec.label);
        if !spec.histogram {
            out.push_str(&format!("\t{:<10} EVENT\n", "COUNT"));
        }
        let skipped = self.top.map_or(0, |top| rows.len().saturating_sub(top));
        for row in &rows[skipped..] {
            match &row.cell {
                Cell::Rows(buckets) => {
                    let buckets = buckets.iter().filter_map(|b| {
                        let (low, high) = (u64::try_from(b.min?).ok()?, u64::try_from(b.max?).ok()?);
                        Some((low, high, b.count))
                    });
                    for line in distribution::histogram_of(buckets, &spec.names().concat()) {
                        out.push_str(&format!("{line}\n"));
                    }
                }
                Cell::Value(count) => {
                    let names = spec.names();
                    let values = names.iter().zip(&row.keys).map(|(name, key)| format!("{name} = {}", key.text()));
                    let event = match row.keys.is_empty() {
                        true => "total calls".to_owned(),
                        false => values.collect::<Vec<_>>().join(", "),
                    };
                    out.push_str(&format!("\t{:<10} {event}\n", count.text()));
                }
                Cell::Stats { .. } | Cell::Series(_) => return None,
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(text: &str) -> String {
        Spec::parse(text, false).and_then(|spec| spec.blocks(0, None)).unwrap_or_else(|error| error)
    }

    #[test]
    fn specifications_become_blocks() {
        for (text, expected) in [
            ("p:c:malloc(size_t n):size_t:n", "uprobe:c:malloc { @p0[(uint64)(((uint64)arg0))] = count() }\n"),
            ("p::f()", "uprobe:*:f { @p0 = count() }\n"),
            ("p:c:fork():int,char*:$PID,$COMM", "uprobe:c:fork { @p0[(int32)(pid), comm] = count() }\n"),
            ("r:c:getpid()", "uretprobe:c:getpid { @p0[retval] = count() }\n"),
            (
                "p:c:open(char *p, int f):char*:p:f == 0#opens",
                "uprobe:c:open /(((int32)arg1) == 0)/ { @p0[str(((int8 *)arg0))] = count() }\n",
            ),
            (
                "r:c:gets():char*:(char*)$retval:$retval!=0",
                "uretprobe:c:gets /(retval!=0)/ { @p0[str((char*)retval)] = count() }\n",
            ),
            (
                "p:c:puts(char *s):int:1:STRCMP(\"a\", s)",
                "uprobe:c:puts /((str(((int8 *)arg0)) == \"a\"))/ { @p0[(int32)(1)] = count() }\n",
            ),
            ("u:./a:demo:fired():u64:arg1", "usdt:./a:demo:fired { @p0[(uint64)(arg0)] = count() }\n"),
        ] {
            assert_eq!(blocks(text), expected, "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("malloc", "signature"),
            ("p:c:malloc(size_t n):size_t:n, n", "1 types for 2 expressions"),
            ("p:c:malloc(what n):size_t:n", "'what'"),
            ("p:c:malloc(size_t n):size_t:$retval", "$retval"),
            ("r:c:malloc(size_t n):size_t:n", "$entry(n)"),
            ("r:c:malloc(size_t n):size_t:$entry(m)", "'m'"),
            ("p:c:malloc(size_t n):size_t:m", "the signature has no 'm'"),
            ("t:sched:switch()", "kernel"),
            ("x:c:malloc()", "p:, r: or u:"),
            ("p:c:malloc(size_t n", "not closed"),
            // As bcc's manual page still has it.
            ("p:c:fork():int:$PID;fork per process", "behind '#'"),
        ] {
            let found = blocks(text);
            assert!(found.contains(word), "{text}: {found}");
        }
    }
}
