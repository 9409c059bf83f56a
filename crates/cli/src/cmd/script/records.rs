//! `sidestep -lv 'struct NAME'`: what a type consists of.

use std::fmt::Write;

use anyhow::anyhow;
use clap::error::ErrorKind;
use sidestep_engine::types::{DataType, DebugInfo};
use sidestep_engine::{Options, Typed};

use crate::cmd::usage;
use crate::out::escape;

/// The lines for `struct NAME`, `union NAME` or `enum NAME` as these objects, or those of a
/// process, describe it; `None`: it is no type that is asked for. `whole`: with its members.
pub fn lines(
    text: &str,
    objects: &[String],
    pid: Option<i32>,
    whole: bool,
    options: &Options,
) -> anyhow::Result<Option<Vec<String>>> {
    let is_type = ["struct ", "union ", "enum "].iter().any(|word| text.starts_with(word));
    if !is_type {
        return Ok(None);
    }
    if objects.is_empty() && pid.is_none() {
        let message = format!(
            "where is `{text}` described? Name an object behind it, or add -p PID; a type of the kernel needs the kernel: not available in this tool"
        );
        usage(ErrorKind::MissingRequiredArgument, &message);
    }
    let mut why = None;
    for (_, info) in Typed::new(pid.as_slice(), options).objects(objects)? {
        let described = info.and_then(|info| describe(&info, text, whole));
        match described {
            Ok(lines) => return Ok(Some(vec![lines])),
            Err(error) => why = why.or(Some(error)),
        }
    }
    Err(match why {
        Some(error) => anyhow!("{error}"),
        None => anyhow!("nothing describes {text}"),
    })
}

fn describe(info: &DebugInfo, name: &str, whole: bool) -> Result<String, sidestep_engine::types::TypeError> {
    let mut out = name.to_owned();
    match info.find(name, None)? {
        _ if !whole => {}
        DataType::Record { place, .. } => {
            let layout = info.layout(place)?;
            let _ = write!(out, " {{  /* {} bytes */", layout.size);
            for member in &layout.members {
                let width = member.width.map_or(String::new(), |width| format!(" : {width}"));
                let bit = if member.width.is_some() { format!(", bit {}", member.bit % 8) } else { String::new() };
                let space = if member.name.is_empty() { "" } else { " " };
                let (text, name, offset) = (escape::row(&member.text), escape::row(&member.name), member.bit / 8);
                let _ = write!(out, "\n    {text}{space}{name}{width};  /* offset {offset}{bit} */");
            }
            out.push_str("\n};");
        }
        DataType::Enum(of) => {
            let _ = write!(out, " {{  /* {} bytes */", of.bytes);
            for (name, value) in &of.values {
                let value = if of.signed { (*value as i64).to_string() } else { value.to_string() };
                let _ = write!(out, "\n    {} = {value},", escape::row(name));
            }
            out.push_str("\n};");
        }
        _ => {}
    }
    Ok(out)
}
