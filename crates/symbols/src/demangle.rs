//! C++ and Rust names as people write them.

use cpp_demangle::{DemangleOptions, Symbol};

/// Longer names are left as they are: nobody types them, and demangling can make them much longer.
const RAW_MAX: usize = 16 << 10;

/// With parameters, as `c++filt` writes it; Rust without hash.
pub(crate) fn full(raw: &str) -> Option<String> {
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
    // What compilers append to copies of a function (.isra.0, .constprop.1, .llvm.123) is no part of the mangling.
    let (core, suffix) = match raw.find('.') {
        Some(at) if !raw.starts_with("_R") => raw.split_at(at),
        _ => (raw, ""),
    };
    if is_rust(core) {
        let name = rustc_demangle::try_demangle(core).ok()?;
        return Some(format!("{name:#}{suffix}"));
    }
    let name = Symbol::new(core)
        .ok()?
        .demangle_with_options(options)
        .ok()?;
    Some(name + suffix)
}

/// Rust's v0 mangling, or the legacy one: an Itanium name whose last part is `17h` and 16 hexadecimal digits.
fn is_rust(core: &str) -> bool {
    if core.starts_with("_R") {
        return true;
    }
    let Some(body) = core.strip_suffix('E') else {
        return false;
    };
    body.len() > 19
        && body.is_char_boundary(body.len() - 19)
        && body[body.len() - 19..]
            .strip_prefix("17h")
            .is_some_and(|h| h.bytes().all(|b| b.is_ascii_hexdigit()))
}
