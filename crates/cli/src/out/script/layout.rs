//! What a tool that is a script prints instead of what the language would.

use super::map::Line;
use super::value::Shown;

/// How results are shown. Each function has the language's own way as its default.
pub trait Layout {
    /// The first lines, with how many probes there are.
    fn heading(&self, _probes: usize) -> String {
        String::new()
    }

    /// A map with its rows in order, in text or JSON.
    fn map(&mut self, _name: &str, _rows: &[Line], _json: bool) -> Option<String> {
        None
    }

    /// The names of the values of a `printf`, which is an object in JSON if it has as many.
    fn columns(&self) -> &[&str] {
        &[]
    }

    /// A `printf` as text.
    fn line(&self, _values: &[Shown]) -> Option<String> {
        None
    }
}

/// The frames of a stack, innermost first, as the language prints them.
pub fn frames(stack: &Shown) -> Vec<String> {
    match stack {
        Shown::Text(_) => stack.text().lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// A frame without the offset in its function.
pub fn function(frame: &str) -> &str {
    match frame.rsplit_once('+') {
        Some((name, offset)) if !name.is_empty() && offset.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => frame,
    }
}

/// A stack for flame graphs: from the outermost to the innermost function. A semicolon in a name would be two frames.
pub fn folded(stack: &Shown) -> String {
    let frames = frames(stack);
    frames.iter().rev().map(|frame| function(frame).replace(';', ":")).collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_folded() {
        let stack = Shown::Text(b"\n        malloc+0\n        operator+(A, B)+12\n        0x55d0\n".to_vec());
        assert_eq!(folded(&stack), "0x55d0;operator+(A, B);malloc");
        assert_eq!(frames(&stack), ["malloc+0", "operator+(A, B)+12", "0x55d0"]);
        assert_eq!(folded(&Shown::Text(b"\n        f(a;b)+1\n".to_vec())), "f(a:b)");
        assert_eq!(function("operator+"), "operator+");
    }
}
