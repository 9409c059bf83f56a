//! A SPEC of `trace` that is a block of a script:
//! `[p:|r:|u:]OBJECT:FUNC[(SIGNATURE)] [(CONDITION)] ["FORMAT", VALUE...]`.

use super::ctype::{CType, WORDS, close, parameters, split, translate};
use super::spec;
use crate::flags::format::Format;
use crate::flags::spec::{as_many, split_quoted};

/// The last argument that scripts know of functions.
const ARG_LAST: usize = 9;

/// When values are looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    Entry,
    Return,
    Usdt,
}

/// A SPEC.
#[derive(Clone, Debug)]
pub struct Call {
    text: String,
    when: When,
    /// Without its kind: `OBJECT:FUNC`.
    place: String,
    params: Vec<(String, CType)>,
    condition: Option<String>,
    format: Option<Format>,
    values: Vec<String>,
}

impl Call {
    /// Parses what the user typed. The error is a clause that says what is wrong.
    pub fn parse(text: &str) -> Result<Call, String> {
        Self::parts(text.trim()).map_err(|error| format!("in the probe '{text}': {error}"))
    }

    fn parts(text: &str) -> Result<Call, String> {
        let (when, rest) = match text.split_once(':') {
            Some(("p" | "", rest)) if !rest.starts_with(':') => (When::Entry, rest),
            Some(("r", rest)) => (When::Return, rest),
            Some(("u" | "usdt", rest)) if rest.contains(':') && !rest.starts_with(':') => (When::Usdt, rest),
            Some(("t", rest)) if rest.contains(':') && !rest.starts_with(':') => {
                return Err("tracepoints need the kernel: not available in this tool".to_owned());
            }
            _ => (When::Entry, text),
        };
        let (place, rest) = rest.split_at(end_of_place(rest)?);
        let mut call = Call {
            text: text.to_owned(),
            when,
            place: place.to_owned(),
            params: Vec::new(),
            condition: None,
            format: None,
            values: Vec::new(),
        };
        let rest = match parentheses(rest)? {
            Some((signature, rest)) => {
                if when == When::Usdt {
                    return Err("USDT probes have no signature; there are arg1, arg2 ...".to_owned());
                }
                call.params = parameters(signature)?;
                rest
            }
            None => rest,
        };
        let rest = match parentheses(rest.trim_start())? {
            Some((condition, rest)) => {
                call.condition = Some(condition.to_owned());
                rest
            }
            None => rest,
        };
        let rest = rest.trim();
        if rest.is_empty() {
            return Ok(call);
        }
        let (format, rest) = split_quoted(rest)?;
        let format = Format::parse(format)?;
        let rest = rest.trim();
        if !rest.is_empty() {
            let rest =
                rest.strip_prefix(',').ok_or_else(|| format!("expected a comma behind the format, found {rest}"))?;
            call.values = split(rest, b',').into_iter().map(|value| value.trim().to_owned()).collect();
        }
        as_many(format.kinds().count(), call.values.len())?;
        call.format = Some(format);
        Ok(call)
    }

    /// How the values are printed.
    pub fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    /// What a static probe is called; functions have names of their own.
    pub fn name(&self) -> Option<&str> {
        let name = self.place.rsplit(':').next().unwrap_or_default();
        (self.when == When::Usdt).then_some(name)
    }

    /// Where it is attached.
    pub fn point(&self) -> Result<String, String> {
        let point = match self.when {
            When::Entry => spec::function("uprobe", &self.place, false),
            When::Return => spec::function("uretprobe", &self.place, false),
            When::Usdt => spec::usdt(&format!("u:{}", self.place)),
        };
        point.map_err(|error| self.named(error))
    }

    /// What must hold, as an expression of scripts.
    pub fn condition(&self) -> Result<Option<String>, String> {
        let condition = self.condition.as_ref().map(|condition| self.translate(condition)).transpose()?;
        Ok(condition.map(|condition| format!("({condition})")))
    }

    /// The values as expressions of scripts, each with the letter that prints it.
    pub fn values(&self) -> Result<Vec<(char, String)>, String> {
        let kinds = self.format.iter().flat_map(Format::kinds);
        let value = |(kind, value): (char, &String)| {
            let value = self.translate(value)?;
            let is_text = ["comm", "func", "probe"].contains(&&*value)
                || ["str(", "usym("].iter().any(|function| value.starts_with(function));
            let value = match kind {
                's' if is_text => value,
                's' => format!("str({value})"),
                'U' => format!("usym({value})"),
                'K' => return Err(self.named("%K: functions of the kernel are not in processes; %U is for theirs")),
                'f' | 'e' => return Err(self.named(format!("%{kind} prints registers such as %xmm0 only"))),
                _ => format!("(uint64)({value})"),
            };
            Ok((kind, value))
        };
        kinds.zip(&self.values).map(value).collect()
    }

    fn named(&self, error: impl std::fmt::Display) -> String {
        format!("in the probe '{}': {error}", self.text)
    }

    /// An expression of C in the language of scripts.
    fn translate(&self, expr: &str) -> Result<String, String> {
        // bcc has to be told what is in user space.
        let expr = expr.replace("@user", "");
        let register = expr.trim().strip_prefix('%');
        if let Some(register) = register.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric())) {
            return Ok(format!("reg(\"{register}\")"));
        }
        let known = |text: &str| Ok(Some(text.to_owned()));
        translate(&expr, &mut |name, inner| match (name, inner) {
            ("STRCMP", Some(arguments)) => {
                let [text, value] = *split(arguments, b',') else {
                    return Err(self.named("STRCMP takes a text and an expression"));
                };
                Ok(Some(format!("(str({}) == {})", self.translate(value.trim())?, text.trim())))
            }
            (_, Some(_)) => Ok(None),
            ("$pid", _) => known("tid"),
            ("$tgid", _) => known("pid"),
            ("$uid" | "$gid" | "$cpu", _) => known(&name[1..]),
            ("retval" | "$retval", _) if self.when == When::Return => known("retval"),
            ("retval" | "$retval", _) => Err(self.named("retval is there at the return only; write r: in front")),
            ("u8" | "u16" | "u32" | "u64", _) => Ok(Some(format!("uint{}", &name[1..]))),
            ("s8" | "s16" | "s32" | "s64", _) => Ok(Some(format!("int{}", &name[1..]))),
            (name, None) => self.name_of(name),
        })
    }

    /// What stands for a name.
    fn name_of(&self, name: &str) -> Result<Option<String>, String> {
        let parameter = self.params.iter().position(|(param, _)| param == name);
        let argument = name.strip_prefix("arg").and_then(|digits| digits.parse::<usize>().ok());
        match (parameter, argument, self.when) {
            (Some(_), _, When::Return) | (_, Some(_), When::Return) => {
                Err(self.named(format!("{name} is gone at the return; there is retval")))
            }
            (Some(index), ..) => Ok(Some(self.params[index].1.cast(&format!("arg{index}")))),
            (_, Some(0), When::Usdt) => Err(self.named("a USDT probe's first argument is arg1, as tplist lists them")),
            (_, Some(number), When::Usdt) => Ok(Some(format!("arg{}", number - 1))),
            (_, Some(..=ARG_LAST), When::Entry) => Ok(None),
            _ if WORDS.contains(&name) => Ok(None),
            _ => Err(self.named(format!(
                "\"{name}\" is no value; there are arg0 ... arg{ARG_LAST}, the names of a signature, retval, $pid, $tgid, \
                 $uid, $gid, $cpu, and registers such as %ax"
            ))),
        }
    }
}

/// Where `OBJECT:FUNC` ends: at a blank or a parenthesis. A name with such of its own is in double
/// quotes.
fn end_of_place(text: &str) -> Result<usize, String> {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => return Ok(at),
            c if c.is_whitespace() && !quoted => return Ok(at),
            _ => {}
        }
    }
    if quoted { Err("a \" is not closed".to_owned()) } else { Ok(text.len()) }
}

/// What is in the parentheses that a text begins with, and what is behind them.
fn parentheses(text: &str) -> Result<Option<(&str, &str)>, String> {
    let Some(inner) = text.strip_prefix('(') else { return Ok(None) };
    let end = close(inner).ok_or("a parenthesis is not closed")?;
    Ok(Some((&inner[..end], &inner[end + 1..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attach point, the condition and the values.
    fn block(text: &str) -> String {
        let block = |call: Call| {
            let values: Vec<String> = call.values()?.into_iter().map(|(_, value)| value).collect();
            Ok(format!("{} {} {}", call.point()?, call.condition()?.unwrap_or_default(), values.join(", ")))
        };
        Call::parse(text).and_then(block).unwrap_or_else(|error| error)
    }

    #[test]
    fn specifications_of_bcc_are_blocks() {
        for (text, expected) in [
            ("c:malloc", "uprobe:c:malloc  "),
            (":c:malloc \"%d\", arg0", "uprobe:c:malloc  (uint64)(arg0)"),
            ("p:c:write (arg0 == 1) \"%d\", arg2", "uprobe:c:write (arg0 == 1) (uint64)(arg2)"),
            ("c:write(int fd, char *s) (fd > 2) \"%s\", s", "uprobe:c:write (((int32)arg0) > 2) str(((int8 *)arg1))"),
            ("c:open (STRCMP(\"a b\", arg0@user))", "uprobe:c:open ((str(arg0) == \"a b\")) "),
            (
                "r:c:malloc (retval) \"%x, %U\", retval, $retval",
                "uretprobe:c:malloc (retval) (uint64)(retval), usym(retval)",
            ),
            (
                "u:c:setjmp (arg2 != 0) \"%lx %s\", (u32)arg1, comm",
                "usdt:c:setjmp (arg1 != 0) (uint64)((uint32)arg0), comm",
            ),
            ("u:c:libc:setjmp", "usdt:c:libc:setjmp  "),
            (
                "./a:\"f(int, char)\" \"%d %d\", $pid, $tgid",
                "uprobe:./a:\"f(int, char)\"  (uint64)(tid), (uint64)(pid)",
            ),
            ("f \"%lx\", %r12", "uprobe:*:f  (uint64)(reg(\"r12\"))"),
        ] {
            assert_eq!(block(text), expected, "{text}");
        }
        assert_eq!(Call::parse("u:c:libc:setjmp").unwrap().name(), Some("setjmp"));
    }

    #[test]
    fn mistakes_are_named() {
        for (text, word) in [
            ("t:sched:switch", "kernel"),
            ("c:open (arg0 == 1", "not closed"),
            ("c:open (arg0 == 1) arg0", "format in double quotes"),
            ("c:open \"%d %d\", arg0", "takes 2 values, but 1 is"),
            ("c:open (fd == 1)", "\"fd\" is no value"),
            ("c:open \"%d\", arg10", "\"arg10\" is no value"),
            ("c:open (retval == 1)", "write r: in front"),
            ("r:c:open (arg0 == 1)", "gone at the return"),
            ("r:c:open(int fd) (fd == 1)", "gone at the return"),
            ("u:c:setjmp \"%d\", arg0", "arg1, as tplist"),
            ("u:c:setjmp(int a)", "no signature"),
            ("c:open \"%K\", arg0", "%U"),
            ("c:sin (arg0) \"%f\", arg0", "%xmm0"),
            ("c:open(what fd)", "'what'"),
        ] {
            let found = block(text);
            assert!(found.contains(word), "{text}: {found}");
        }
    }
}
