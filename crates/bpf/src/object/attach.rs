//! Where a program wants to be attached, from the name of its section, as libbpf has it
//! (`Documentation/bpf/libbpf/program_types.rst`).

/// What a section name says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Attach {
    /// `uprobe/OBJECT:FUNC[+OFF]`, `uretprobe/...`
    Probe {
        /// At the return.
        on_return: bool,
        /// Where; `None` if the section does not say it.
        target: Option<ProbeTarget>,
    },
    /// `uprobe.post/OBJECT:FUNC[+OFF]`: behind the instruction. Not of libbpf.
    Post {
        /// Where; `None` if the section does not say it.
        target: Option<ProbeTarget>,
    },
    /// `uprobe.multi/OBJECT:PATTERN`, `uretprobe.multi/...`, `uprobe.session/...`
    Multi {
        /// At the return.
        on_return: bool,
        /// At entry and return.
        is_session: bool,
        /// Object, and a glob of functions.
        target: Option<(String, String)>,
    },
    /// `usdt/OBJECT:PROVIDER:NAME`
    Usdt {
        /// Object, provider and name.
        target: Option<(String, String, String)>,
    },
    /// Something that only the kernel has.
    Kernel,
}

/// `OBJECT:FUNC+OFF`
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProbeTarget {
    /// Path or short name.
    pub object: String,
    /// A symbol, or an address `0x...`.
    pub function: String,
    /// From the start of the function, in bytes.
    pub offset: u64,
}

impl Attach {
    /// What the name of a section says. What is behind the kind and not understood counts as not
    /// given, as with libbpf, where such programs are attached by hand.
    #[must_use]
    pub fn parse(section: &str) -> Attach {
        // `?` marks programs that libbpf does not load by itself.
        let section = section.strip_prefix('?').unwrap_or(section);
        let (kind, rest) = match section.split_once('/') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (section, None),
        };
        // `.s`: may sleep. Nothing sleeps here.
        let kind = kind.strip_suffix(".s").unwrap_or(kind);
        match kind {
            "uprobe" | "uretprobe" => {
                Attach::Probe { on_return: kind == "uretprobe", target: rest.and_then(ProbeTarget::parse) }
            }
            "uprobe.post" => Attach::Post { target: rest.and_then(ProbeTarget::parse) },
            "uprobe.multi" | "uretprobe.multi" | "uprobe.session" => Attach::Multi {
                on_return: kind == "uretprobe.multi",
                is_session: kind == "uprobe.session",
                target: rest.and_then(|r| r.split_once(':')).and_then(|(o, p)| Some((some(o)?, some(p)?))),
            },
            "usdt" => Attach::Usdt { target: rest.and_then(usdt) },
            _ => Attach::Kernel,
        }
    }
}

impl ProbeTarget {
    /// `OBJECT:FUNC`, `OBJECT:FUNC+OFF`; offsets in decimal, hexadecimal with `0x`, or octal with
    /// `0`, as C reads them.
    fn parse(text: &str) -> Option<ProbeTarget> {
        let (object, function) = text.split_once(':')?;
        let (function, offset) = match function.split_once('+') {
            Some((function, offset)) => (function, number(offset)?),
            None => (function, 0),
        };
        Some(ProbeTarget { object: some(object)?, function: some(function)?, offset })
    }
}

fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(octal) if !octal.is_empty() => u64::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

fn usdt(text: &str) -> Option<(String, String, String)> {
    let (object, rest) = text.split_once(':')?;
    let (provider, name) = rest.split_once(':')?;
    Some((some(object)?, some(provider)?, some(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(on_return: bool, object: &str, function: &str, offset: u64) -> Attach {
        let target = ProbeTarget { object: object.to_owned(), function: function.to_owned(), offset };
        Attach::Probe { on_return, target: Some(target) }
    }

    #[test]
    fn sections_say_where_to_attach() {
        assert_eq!(Attach::parse("uprobe//usr/bin/bash:readline"), probe(false, "/usr/bin/bash", "readline", 0));
        assert_eq!(Attach::parse("uretprobe/libc.so.6:malloc"), probe(true, "libc.so.6", "malloc", 0));
        assert_eq!(Attach::parse("uprobe.s/libc:read+0x10"), probe(false, "libc", "read", 16));
        assert_eq!(Attach::parse("uprobe/libc:read+010"), probe(false, "libc", "read", 8));
        assert_eq!(Attach::parse("?uprobe/libc:read+10"), probe(false, "libc", "read", 10));
        let by_hand = Attach::Probe { on_return: false, target: None };
        for section in ["uprobe", "uprobe/", "uprobe/readline", "uprobe/libc:read+x", "uprobe/:read"] {
            assert_eq!(Attach::parse(section), by_hand, "{section}");
        }
        let target = Some(("/bin/redis".to_owned(), "process*".to_owned()));
        assert_eq!(
            Attach::parse("uretprobe.multi//bin/redis:process*"),
            Attach::Multi { on_return: true, is_session: false, target: target.clone() },
        );
        assert_eq!(
            Attach::parse("uprobe.session//bin/redis:process*"),
            Attach::Multi { on_return: false, is_session: true, target },
        );
        let target = Some(("libc.so.6".to_owned(), "libc".to_owned(), "setjmp".to_owned()));
        assert_eq!(Attach::parse("usdt/libc.so.6:libc:setjmp"), Attach::Usdt { target });
        let target = ProbeTarget { object: "libc".to_owned(), function: "read".to_owned(), offset: 16 };
        assert_eq!(Attach::parse("uprobe.post/libc:read+16"), Attach::Post { target: Some(target) });
        assert_eq!(Attach::parse("kprobe/do_sys_open"), Attach::Kernel);
        assert_eq!(Attach::parse("uprobes"), Attach::Kernel);
    }
}
