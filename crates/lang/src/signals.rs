//! Signals by their names.

/// The names without `SIG`, from 1 on (include/uapi/asm-generic/signal.h; x86 and Arm have the
/// same).
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The number of a signal: `"KILL"`, `"SIGKILL"` and `"sigkill"` are 9.
///
/// ```
/// assert_eq!(sidestep_lang::signals::number("SIGSEGV"), Some(11));
/// assert_eq!(sidestep_lang::signals::number("EGV"), None);
/// ```
#[must_use]
pub fn number(name: &str) -> Option<u32> {
    let name = name.to_ascii_uppercase();
    let name = match name.strip_prefix("SIG").unwrap_or(&name) {
        "POLL" => "IO",
        "IOT" => "ABRT",
        "CLD" => "CHLD",
        name => name,
    };
    (1..).zip(NAMES).find_map(|(number, known)| (known == name).then_some(number))
}

/// What a signal is called. Real-time signals are counted from the first one, 34, as in C
/// libraries.
///
/// ```
/// assert_eq!(sidestep_lang::signals::name(11), "SIGSEGV");
/// assert_eq!(sidestep_lang::signals::name(36), "SIGRTMIN+2");
/// ```
#[must_use]
pub fn name(number: i32) -> String {
    /// `SIGRTMIN` in C libraries: the two before are their own.
    const FIRST: i32 = 34;
    let known = usize::try_from(number - 1).ok().and_then(|index| NAMES.get(index));
    match (known, number - FIRST) {
        (Some(known), _) => format!("SIG{known}"),
        (None, 0) => "SIGRTMIN".to_owned(),
        (None, more @ 1..) => format!("SIGRTMIN+{more}"),
        (None, _) => format!("signal {number}"),
    }
}
