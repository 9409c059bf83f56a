//! What an attach says of the functions that it left out.

use sidestep_engine::Refused;

use crate::out::number;

/// One line about all functions that were found and cannot be probed: which, if it is one; else
/// how many, and the most common reason. `None`: there are none.
pub fn summary(refused: &[Refused]) -> Option<String> {
    // What was found nowhere has no object: that is the tool's business.
    let found: Vec<&Refused> = refused.iter().filter(|refused| !refused.object.as_os_str().is_empty()).collect();
    if let [one] = found[..] {
        return Some(line(one));
    }
    let mut reasons: Vec<(String, &str, usize)> = Vec::new();
    for refused in &found {
        let kind = without_numbers(&refused.reason);
        match reasons.iter_mut().find(|known| known.0 == kind) {
            Some(known) => known.2 += 1,
            None => reasons.push((kind, &refused.reason, 1)),
        }
    }
    let (_, reason, times) = reasons.into_iter().rev().max_by_key(|(_, _, times)| *times)?;
    let reason = if times == found.len() { reason.to_owned() } else { format!("{times} of them: {reason}") };
    let all = number::of(found.len(), "function");
    Some(format!("{all} cannot be probed ({reason}); -v says which and why"))
}

/// A line about one of them.
pub fn line(refused: &Refused) -> String {
    let (object, name) = (refused.object.display(), &refused.name);
    let place = if refused.object.as_os_str().is_empty() { name.clone() } else { format!("{object}:{name}") };
    format!("{place} cannot be probed: {}", refused.reason)
}

/// Reasons that differ in an address or a process alone are one.
fn without_numbers(reason: &str) -> String {
    let words = reason.split(' ').map(|word| if word.starts_with(|c: char| c.is_ascii_digit()) { "#" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(object: &str, name: &str, reason: &str) -> Refused {
        Refused { object: object.into(), name: name.to_owned(), reason: reason.to_owned() }
    }

    #[test]
    fn the_most_common_reason_is_said() {
        let (never, nowhere) = (refused("/lib/c", "abort", "it never returns"), refused("", "nope", "no function"));
        assert_eq!(summary(&[]), None);
        assert_eq!(summary(std::slice::from_ref(&nowhere)), None);
        let one = "/lib/c:abort cannot be probed: it never returns";
        assert_eq!(summary(&[never.clone(), nowhere]).unwrap(), one);
        let both = summary(&[never.clone(), never.clone()]).unwrap();
        assert_eq!(both, "2 functions cannot be probed (it never returns); -v says which and why");
        let beside = [0x10, 0x20].map(|at| refused("/lib/c", "f", &format!("process 7 has a probe at {at:#x}")));
        let three = summary(&[vec![never], beside.to_vec()].concat()).unwrap();
        let expected = "3 functions cannot be probed (2 of them: process 7 has a probe at 0x10); -v says which and why";
        assert_eq!(three, expected);
    }
}
