//! Settings of a script: `config = { … }`, and the environment variables of the same names.

use super::checked::{Config, MissingProbes, StackMode};

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The values that it takes.
    pub values: &'static str,
    /// The value that it has unless it is set.
    pub default: &'static str,
    /// What it is.
    pub help: &'static str,
}

/// Settings that there are.
pub const SETTINGS: [Setting; 9] = [
    Setting { name: "max_strlen", values: "1 to 16384", default: "1024", help: "bytes of a string" },
    Setting {
        name: "max_cat_bytes",
        values: "1 to 16777216",
        default: "10240",
        help: "bytes that cat() prints of a file",
    },
    Setting { name: "max_map_keys", values: "1 to 10000000", default: "4096", help: "keys of a map" },
    Setting { name: "max_probes", values: A_NUMBER, default: "1024", help: "attach points, if a script sets it" },
    Setting {
        name: "missing_probes",
        values: "error, warn or ignore",
        default: "error",
        help: "what becomes of an attach point that means nothing, beside others",
    },
    Setting { name: "print_maps_on_exit", values: "0 or 1", default: "1", help: "whether maps are printed at the end" },
    Setting {
        name: "show_debug_info",
        values: "0 or 1",
        default: "1",
        help: "whether stacks have lines of source files and inlined functions, where these are known",
    },
    Setting {
        name: "stack_mode",
        values: "bpftrace, perf, raw or build_id",
        default: "bpftrace",
        help: "how ustack is printed",
    },
    Setting {
        name: "str_trunc_trailer",
        values: "a text",
        default: "..",
        help: "what is printed behind a text that was cut",
    },
];

/// What is said of a setting that is a number.
const A_NUMBER: &str = "a number";
/// Whether something is done.
const A_BOOL: &str = "true, false, 1 or 0";

/// A setting of bpftrace about the kernel's machinery, or about what is not limited here: it is
/// checked and told, and means nothing.
struct Unused {
    name: &'static str,
    values: &'static str,
    default: &'static str,
}

const fn unused(name: &'static str, values: &'static str, default: &'static str) -> Unused {
    Unused { name, values, default }
}

const UNUSED: [Unused; 18] = [
    unused("cache_user_symbols", "PER_PID, PER_PROGRAM, NONE, true, false, 1 or 0", "PER_PID"),
    unused("cpp_demangle", "true: names are always demangled", "true"),
    unused("lazy_symbolication", A_BOOL, "true"),
    // No program is given to the kernel.
    unused("license", LICENSES, "GPL"),
    unused("log_size", A_NUMBER, "1000000"),
    unused("max_ast_nodes", A_NUMBER, "0"),
    unused("max_bpf_progs", A_NUMBER, "1024"),
    unused("max_type_res_iterations", A_NUMBER, "0"),
    unused("on_stack_limit", A_NUMBER, "32"),
    unused("perf_rb_pages", A_NUMBER, "0"),
    unused("unstable_addr", UNSTABLE, "warn"),
    unused("unstable_dw_ustack", UNSTABLE, "warn"),
    unused("unstable_import", UNSTABLE, "warn"),
    unused("unstable_import_statement", UNSTABLE, "error"),
    unused("unstable_map_decl", UNSTABLE, "warn"),
    unused("unstable_tseries", UNSTABLE, "warn"),
    unused("unstable_typeinfo", UNSTABLE, "error"),
    unused("use_blazesym", A_BOOL, "true"),
];

/// The settings of `print(config)`, in bpftrace's order.
pub const TOLD: [&str; 21] = [
    "cpp_demangle",
    "lazy_symbolication",
    "print_maps_on_exit",
    "use_blazesym",
    "show_debug_info",
    "log_size",
    "max_bpf_progs",
    "max_cat_bytes",
    "max_map_keys",
    "max_probes",
    "max_strlen",
    "on_stack_limit",
    "perf_rb_pages",
    "str_trunc_trailer",
    "unstable_import_statement",
    "unstable_tseries",
    "unstable_typeinfo",
    "unstable_dw_ustack",
    "missing_probes",
    "stack_mode",
    "license",
];

impl Unused {
    fn takes(&self, value: &str) -> bool {
        match self.values {
            A_NUMBER => value.parse::<u64>().is_ok(),
            LICENSES => LICENSES.split(", ").any(|license| license == value),
            _ if self.name == "cpp_demangle" => matches!(value, "true" | "1"),
            values => values.replace(" or ", ", ").split(", ").any(|known| known == value),
        }
    }

    fn told(&self, value: &str) -> Told {
        match (self.values, value) {
            (A_NUMBER, value) => Told::Number(value.parse().unwrap_or(0)),
            (A_BOOL, value) => Told::Bool(matches!(value, "true" | "1")),
            _ if self.name == "cpp_demangle" => Told::Bool(true),
            (UNSTABLE, "true" | "1") => Told::Text("enable".to_owned()),
            (UNSTABLE, "false" | "0") => Told::Text("error".to_owned()),
            (_, value) => Told::Text(value.to_owned()),
        }
    }
}

/// What is done about a feature that may change: nothing here.
const UNSTABLE: &str = "enable, warn, error, true, false, 1 or 0";

/// What bpftrace reads of the environment alone; it concerns the kernel.
const ENVIRONMENT: &[&str] = &["btf", "kernel_build", "kernel_source", "vmlinux"];

/// Licenses that the kernel takes for programs. No program is given to the kernel here: a license
/// is checked, and means nothing.
const LICENSES: &str = "Dual MIT/GPL, Dual BSD/GPL, Dual MPL/GPL, GPL and additional rights, GPL v2, GPL";

/// A name without capitals, and without what environment variables begin with.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().trim_start_matches("bpftrace_").to_owned()
}

/// What a setting is called now that had this name.
fn renamed(name: &str) -> Option<&'static str> {
    match name {
        "strlen" => Some("max_strlen"),
        "map_keys_max" => Some("max_map_keys"),
        _ => None,
    }
}

/// What is said of a setting that has another name now, or no effect.
#[must_use]
pub fn outdated(name: &str) -> Option<String> {
    let name = plain(name);
    match renamed(&name) {
        Some(new) => Some(format!("{name} has been renamed, please use {new}")),
        None => (name == "symbol_source").then(|| format!("{name} is deprecated and has no effect")),
    }
}

/// Why a setting cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoSetting {
    /// There is none of this name.
    Unknown,
    /// It is an environment variable, and nothing else.
    Environment,
    /// It takes other values: which.
    Value(&'static str),
}

/// The value of a setting, as scripts see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// A number.
    Number(u64),
    /// Whether something is done.
    Bool(bool),
    /// A word, or any text.
    Text(String),
}

impl Config {
    /// The value of the setting with this name; `None`: there is none.
    #[must_use]
    pub fn told(&self, name: &str) -> Option<Told> {
        let word = |word: &str| Told::Text(word.to_owned());
        Some(match name {
            "max_strlen" => Told::Number(self.max_strlen as u64),
            "max_cat_bytes" => Told::Number(self.max_cat_bytes),
            "max_map_keys" => Told::Number(self.max_map_keys.into()),
            // Nothing is limited by what bpftrace begins with.
            "max_probes" => Told::Number(self.max_probes.unwrap_or(1024)),
            "print_maps_on_exit" => Told::Bool(self.print_maps_on_exit),
            "show_debug_info" => Told::Bool(self.show_debug_info),
            "str_trunc_trailer" => Told::Text(self.trailer.clone()),
            "missing_probes" => word(match self.missing_probes {
                MissingProbes::Error => "error",
                MissingProbes::Warn => "warn",
                MissingProbes::Ignore => "ignore",
            }),
            "stack_mode" => word(match self.stack_mode {
                StackMode::Bpftrace => "bpftrace",
                StackMode::Perf => "perf",
                StackMode::Raw => "raw",
                StackMode::BuildId => "build_id",
            }),
            name => {
                let known = UNUSED.iter().find(|known| known.name == name)?;
                let set = self.unused.iter().rev().find(|(set, _)| *set == name);
                known.told(set.map_or(known.default, |(_, value)| value))
            }
        })
    }

    /// Makes one setting. `name` may be in capital letters and begin with `BPFTRACE_`.
    ///
    /// # Errors
    /// There is no such setting, or no such value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), NoSetting> {
        let name = plain(name);
        let name = renamed(&name).unwrap_or(&name);
        let number: Option<u64> = value.parse().ok();
        match (name, number, value) {
            ("max_strlen", Some(n @ 1..=16384), _) => self.max_strlen = n as usize,
            ("max_cat_bytes", Some(n @ 1..=16_777_216), _) => self.max_cat_bytes = n,
            ("max_map_keys", Some(n @ 1..=10_000_000), _) => self.max_map_keys = n as u32,
            ("max_probes", Some(n), _) => self.max_probes = Some(n),
            ("print_maps_on_exit", Some(1), _) | ("print_maps_on_exit", _, "true") => self.print_maps_on_exit = true,
            ("print_maps_on_exit", Some(0), _) | ("print_maps_on_exit", _, "false") => self.print_maps_on_exit = false,
            ("show_debug_info", Some(1), _) | ("show_debug_info", _, "true") => self.show_debug_info = true,
            ("show_debug_info", Some(0), _) | ("show_debug_info", _, "false") => self.show_debug_info = false,
            ("missing_probes", _, "error") => self.missing_probes = MissingProbes::Error,
            ("missing_probes", _, "warn") => self.missing_probes = MissingProbes::Warn,
            ("missing_probes", _, "ignore") => self.missing_probes = MissingProbes::Ignore,
            ("stack_mode", _, "bpftrace") => self.stack_mode = StackMode::Bpftrace,
            ("stack_mode", _, "perf") => self.stack_mode = StackMode::Perf,
            ("stack_mode", _, "build_id") => self.stack_mode = StackMode::BuildId,
            ("stack_mode", _, "raw") => self.stack_mode = StackMode::Raw,
            ("dummy_ts_map", ..) => self.series_clock = Some(value.trim_start_matches('@').to_owned()),
            ("str_trunc_trailer", ..) => value.clone_into(&mut self.trailer),
            // Any name; it has no effect in bpftrace either.
            ("symbol_source", ..) => {}
            (name, ..) if ENVIRONMENT.contains(&name) => return Err(NoSetting::Environment),
            (name, ..) => {
                if let Some(known) = UNUSED.iter().find(|known| known.name == name) {
                    if !known.takes(value) {
                        return Err(NoSetting::Value(known.values));
                    }
                    self.unused.push((known.name, value.to_owned()));
                    return Ok(());
                }
                let known = SETTINGS.iter().find(|setting| setting.name == name);
                return Err(known.map_or(NoSetting::Unknown, |setting| NoSetting::Value(setting.values)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::check;
    use super::super::parser::parse;
    use super::*;

    #[test]
    fn environment_variables_are_the_same_settings() {
        let mut config = Config::default();
        for (name, value) in [("BPFTRACE_MAX_STRLEN", "64"), ("BPFTRACE_MAP_KEYS_MAX", "9"), ("BPFTRACE_LOG_SIZE", "1")]
        {
            config.set(name, value).unwrap();
        }
        assert_eq!((config.max_strlen, config.max_map_keys), (64, 9));
        assert_eq!(config.set("BPFTRACE_NO_SUCH", "1"), Err(NoSetting::Unknown));
        assert_eq!(config.set("BPFTRACE_BTF", "1"), Err(NoSetting::Environment));
    }

    #[test]
    fn settings_without_a_meaning_take_their_own_values() {
        for known in UNUSED {
            let mut config = Config::default();
            let told = config.told(known.name);
            assert_eq!(config.set(known.name, "nonsense"), Err(NoSetting::Value(known.values)), "{}", known.name);
            assert_eq!(config, Config::default(), "{}", known.name);
            assert_eq!(config.set(known.name, known.default), Ok(()), "{}", known.name);
            assert_eq!(config.told(known.name), told, "{}", known.name);
        }
        let mut config = Config::default();
        for (name, value) in [("unstable_tseries", "1"), ("log_size", "7"), ("lazy_symbolication", "0")] {
            config.set(name, value).unwrap();
        }
        assert_eq!(config.told("unstable_tseries"), Some(Told::Text("enable".to_owned())));
        assert_eq!(config.told("log_size"), Some(Told::Number(7)));
        assert_eq!(config.told("lazy_symbolication"), Some(Told::Bool(false)));
    }

    #[test]
    fn stacks_are_printed_as_the_setting_says() {
        let script = "config = { stack_mode = raw } u:a:b { print(ustack); print(ustack(perf, 3)) }";
        let (checked, _) = check(&parse(script, &[]).unwrap(), &[]).unwrap();
        let modes: Vec<StackMode> = checked.stacks.iter().map(|stack| stack.mode).collect();
        assert_eq!(modes, [StackMode::Raw, StackMode::Perf]);
    }

    #[test]
    fn every_setting_refuses_other_values_and_tells_its_own() {
        for setting in SETTINGS {
            let mut config = Config::default();
            if setting.values != "a text" {
                assert_eq!(config.set(setting.name, "nonsense"), Err(NoSetting::Value(setting.values)), "{setting:?}");
            }
            config.set(setting.name, setting.default).unwrap();
            config.max_probes = None;
            assert_eq!(config, Config::default(), "{setting:?}");
            let told = match config.told(setting.name).unwrap() {
                Told::Number(n) => n.to_string(),
                Told::Bool(truth) => u8::from(truth).to_string(),
                Told::Text(text) => text,
            };
            assert_eq!(told, setting.default, "{setting:?}");
        }
    }
}
