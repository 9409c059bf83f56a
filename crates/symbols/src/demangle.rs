//! C++ and Rust names as people write them.

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are left as they are: nobody types them, and demangling can make them much longer.
const RAW_MAX: usize = 16 << 10;

/// A name with parameters, as `c++filt` writes it, or Rust's path without the hash; `None` if it is
/// not mangled.
#[must_use]
pub fn full(raw: &str) -> Option<String> {
    demangle(raw, &DemangleOptions::new())
}

/// Without parameters and return type.
pub(crate) fn short(raw: &str) -> Option<String> {
    demangle(raw, &DemangleOptions::new().no_params().no_return_type())
}

/// Whether a name has a form that [`full`] may demangle. Cheap.
pub(crate) fn is_mangled(raw: &str) -> bool {
    raw.starts_with("_Z") || raw.starts_with("_R")
}

fn demangle(raw: &str, options: &DemangleOptions) -> Option<String> {
    if !is_mangled(raw) || raw.len() > RAW_MAX {
        return None;
    }
    if is_rust(raw) {
        return rustc_demangle::try_demangle(raw).ok().map(|name| format!("{name:#}"));
    }
    // What compilers append to copies of a function (.isra.0, .constprop.1, .cold) is no part of
    // the mangling.
    let (core, suffix) = raw.split_at(raw.find('.').unwrap_or(raw.len()));
    if let Some((kind, function)) = thunk(core) {
        let function = itanium(&format!("_Z{function}"), options)?;
        return Some(format!("{kind} to {function}{suffix}"));
    }
    Some(itanium(core, options)? + suffix)
}

fn itanium(core: &str, options: &DemangleOptions) -> Option<String> {
    let symbol = Symbol::new(core).ok()?;
    symbol.demangle_with_options(options).ok()
}

/// Thunks (Itanium C++ ABI, 5.1.4.4) are written as binutils does. `_ZThn16_N1A1fEv` is `_ZTh`,
/// offset, `_`, function; `_ZTv0_n24_N1A1fEv` is `_ZTv`, offset, `_`, offset, `_`, function.
fn thunk(core: &str) -> Option<(&'static str, &str)> {
    let is_offset = |text: &str| {
        let digits = text.strip_prefix('n').unwrap_or(text);
        digits.bytes().all(|b| b.is_ascii_digit())
    };
    if let Some(rest) = core.strip_prefix("_ZTh") {
        let (offset, function) = rest.split_once('_')?;
        return is_offset(offset).then_some(("non-virtual thunk", function));
    }
    let (first, rest) = core.strip_prefix("_ZTv")?.split_once('_')?;
    let (second, function) = rest.split_once('_')?;
    (is_offset(first) && is_offset(second)).then_some(("virtual thunk", function))
}

/// Rust's v0 mangling, or the legacy one: an Itanium name whose last part is `17h` and 16
/// hexadecimal digits. It may have points itself (`drop_in_place$LT$std..rt..Foo$GT$`).
pub(crate) fn is_rust(raw: &str) -> bool {
    if raw.starts_with("_R") {
        return true;
    }
    let is_end = |rest: &[u8]| {
        let (hash, tail) = rest.split_at(rest.len().min(16));
        hash.len() == 16 && hash.iter().all(u8::is_ascii_hexdigit) && matches!(tail, [b'E'] | [b'E', b'.', ..])
    };
    raw.match_indices("17h").any(|(at, _)| is_end(&raw.as_bytes()[at + 3..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rust_names_lose_their_hash_and_clones_keep_their_suffix() {
        for (raw, wanted) in [
            // From a program that rustc compiled.
            ("_ZN3std2rt10lang_start17h0123456789abcdefE", "std::rt::lang_start"),
            (
                "_ZN4core3ptr42drop_in_place$LT$alloc..string..String$GT$17h0123456789abcdefE.llvm.7",
                "core::ptr::drop_in_place<alloc::string::String>",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            // From the Itanium C++ ABI and GCC.
            ("_ZN1A1fEv.isra.0", "A::f().isra.0"),
            ("_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"),
            ("_ZTv0_n24_N1A1fEv", "virtual thunk to A::f()"),
            ("_ZNK1AcvbEv", "A::operator bool() const"),
        ] {
            assert_eq!(full(raw).as_deref(), Some(wanted), "{raw}");
        }
        assert_eq!(short("_ZN1A1fIiEEvT_").as_deref(), Some("A::f<int>"));
        for raw in ["malloc", "_Z", "_Zfoo", "_ZTh", "_R", ""] {
            assert_eq!(full(raw), None, "{raw}");
        }
    }

    #[test]
    fn deeply_nested_names_do_no_harm() {
        for inner in ["P", "S_", "IiE", "N1a", "Dp", "L_Z"] {
            let raw = format!("_Z1f{}", inner.repeat(5000 / inner.len()));
            let _ = full(&raw);
        }
    }
}
