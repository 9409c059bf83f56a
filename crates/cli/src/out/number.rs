//! Numbers of things in messages.

/// `1 probe`, `2 probes`: a number in front of a noun whose plural ends in `s`.
pub fn of(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `once`, `2 times`.
pub fn times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([of(0, "probe"), of(1, "probe"), of(2, "probe")], ["0 probes", "1 probe", "2 probes"]);
        assert_eq!([times(1), times(3)], ["once", "3 times"]);
    }
}
