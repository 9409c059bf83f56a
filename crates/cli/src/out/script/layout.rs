//! What a tool that is a script prints instead of what the language would.

use std::collections::BTreeMap;

use super::map::Line;
use super::value::Shown;
use crate::out::json;

/// How results are shown. Each function has the language's own way as its default.
pub trait Layout {
    /// What the tool does from now on, with how many probes there are.
    fn progress(&self, _probes: usize) -> String {
        String::new()
    }

    /// The first line of its table.
    fn heading(&self) -> String {
        String::new()
    }

    /// A map with its rows in order, in text or JSON.
    fn map(&mut self, _name: &str, _rows: &[Line], _json: bool) -> Option<String> {
        None
    }

    /// What a map is called in JSON.
    fn title(&self, name: &str) -> String {
        name.to_owned()
    }

    /// The names of the values of a `printf`, which is an object in JSON if it has as many.
    fn columns(&self) -> &[&str] {
        &[]
    }

    /// A `printf`, whole lines; in JSON only if it has not as many values as there are columns.
    fn line(&mut self, _values: &[Shown], _json: bool) -> Option<String> {
        None
    }

    /// Enough has been printed.
    fn is_done(&self) -> bool {
        false
    }

    /// The last lines.
    fn end(&mut self, _json: bool) -> String {
        String::new()
    }
}

/// The frames of a stack, innermost first, as the language prints them.
pub fn frames(stack: &Shown) -> Vec<String> {
    match stack {
        Shown::Stack(text) => text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// A value of a tool in JSON: a stack is a list of its frames, innermost first; bytes are text, in
/// which those that are no ASCII are escaped as in `%r`.
pub fn listed(value: &Shown) -> String {
    match value {
        Shown::Stack(_) => json::array(frames(value).iter().map(|frame| json::string(frame))),
        Shown::Bytes(_) => json::string(&value.key()),
        value => value.json(),
    }
}

/// A frame without the offset in its function and its place in the source.
pub fn function(frame: &str) -> &str {
    let frame = frame.strip_prefix("[inlined] ").unwrap_or(frame);
    let is_line = |place: &str| place.rsplit_once(':').is_some_and(|(_, line)| line.parse::<u32>().is_ok());
    let frame = frame.rsplit_once('@').filter(|(_, place)| is_line(place)).map_or(frame, |(name, _)| name);
    match frame.rsplit_once('+') {
        Some((name, offset)) if !name.is_empty() && offset.parse::<u64>().is_ok() => name,
        _ => frame,
    }
}

/// A stack for flame graphs: from the outermost to the innermost function. A semicolon in a name
/// would be two frames.
pub fn folded(stack: &Shown) -> String {
    let frames = frames(stack);
    frames.iter().rev().map(|frame| function(frame).replace(';', ":")).collect::<Vec<_>>().join(";")
}

/// Rows whose texts are the same as one, with the sum of their numbers, by number and then text:
/// frames that differ in their offsets only have one name.
pub fn merged(rows: impl IntoIterator<Item = (String, i128)>) -> Vec<(String, i128)> {
    let mut sums: BTreeMap<String, i128> = BTreeMap::new();
    for (text, number) in rows {
        *sums.entry(text).or_default() += number;
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    rows.sort_by_key(|(_, number)| *number);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_folded() {
        let stack = Shown::Stack("\n        malloc+0\n        operator+(A, B)+12\n        0x55d0\n".to_owned());
        assert_eq!(folded(&stack), "0x55d0;operator+(A, B);malloc");
        assert_eq!(frames(&stack), ["malloc+0", "operator+(A, B)+12", "0x55d0"]);
        assert_eq!(folded(&Shown::Stack("\n        f(a;b)+1\n".to_owned())), "f(a:b)");
        assert_eq!(function("operator+"), "operator+");
        assert_eq!(function("left+16@/src/a.c:7"), "left");
        assert_eq!(function("[inlined] serve@/src/a.h:30"), "serve");
    }

    #[test]
    fn equal_rows_are_one() {
        let rows = [("b", 1), ("a", 5), ("c", 1), ("b", 1)].map(|(text, n)| (text.to_owned(), n));
        assert_eq!(merged(rows), [("c".to_owned(), 1), ("b".to_owned(), 2), ("a".to_owned(), 5)]);
    }
}
