//! `[OBJECT:]FUNC` as bcc's tools take it → an attach point of a script.

use sidestep_engine::pattern;

/// The attach point of a function: `provider` is `uprobe` or `uretprobe`. `regexp`: FUNC is a
/// regular expression.
pub fn function(provider: &str, text: &str, regexp: bool) -> Result<String, String> {
    let parsed = pattern::parse(text, regexp)?;
    let (object, func) = match &parsed.object {
        Some(object) => {
            let rest = text.strip_prefix("p:").filter(|rest| rest.contains(':')).unwrap_or(text);
            (object.as_str(), rest.get(object.len() + 1..).unwrap_or_default())
        }
        None => ("*", text.trim_start_matches(':')),
    };
    point(provider, object, func, regexp)
}

/// The attach point of a function of an object.
pub fn point(provider: &str, object: &str, func: &str, regexp: bool) -> Result<String, String> {
    let is_quoted = func.starts_with('"');
    if object.contains(['"', '\n']) || (!is_quoted && func.contains(['"', '\n'])) {
        return Err(format!("{object}:{func} has a quote in it"));
    }
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_./-+*?@".contains(&byte));
    let object = if plain(object) { object.to_owned() } else { format!("\"{object}\"") };
    let func =
        if !is_quoted && (regexp || !plain(&func.replace("::", ""))) { format!("\"{func}\"") } else { func.to_owned() };
    Ok(format!("{provider}:{object}:{func}"))
}

/// The attach point of `u:OBJECT:[PROVIDER:]NAME`.
pub fn usdt(text: &str) -> Result<String, String> {
    match *text.split(':').collect::<Vec<_>>() {
        ["u" | "usdt", object, name] if !name.is_empty() => Ok(format!("usdt:{object}:{name}")),
        ["u" | "usdt", object, provider, name] if !name.is_empty() => Ok(format!("usdt:{object}:{provider}:{name}")),
        _ => Err(format!("\"{text}\" is not u:OBJECT:[PROVIDER:]NAME")),
    }
}

/// Either of them.
pub fn place(text: &str, regexp: bool) -> Result<String, String> {
    let is_usdt = ["u:", "usdt:"].iter().any(|prefix| text.starts_with(prefix) && !text.starts_with("u::"));
    if is_usdt { usdt(text) } else { function("uprobe", text, regexp) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_become_attach_points() {
        for (text, regexp, point) in [
            ("malloc", false, "uprobe:*:malloc"),
            ("c:malloc", false, "uprobe:c:malloc"),
            ("p:c:malloc", false, "uprobe:c:malloc"),
            ("./a b:f", false, "uprobe:\"./a b\":f"),
            ("c:^(read|write)$", true, "uprobe:c:\"^(read|write)$\""),
            ("./a:ns::f", false, "uprobe:./a:ns::f"),
            ("./a:\"f(int, char)\"", false, "uprobe:./a:\"f(int, char)\""),
            ("./a:f(int)", false, "uprobe:./a:\"f(int)\""),
            ("u:c:setjmp", false, "usdt:c:setjmp"),
            ("u:c:libc:setjmp", false, "usdt:c:libc:setjmp"),
        ] {
            assert_eq!(place(text, regexp).as_deref(), Ok(point), "{text}");
        }
        assert!(place("c:", false).is_err() && place("u:c:", false).is_err());
    }
}
