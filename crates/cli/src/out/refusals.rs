//! What an attach says of the functions that it left out.

use sidestep_engine::Refused;

use crate::out::number;

/// One line about all functions that were found and cannot be probed: which, if it is one; else
/// how many, and the most common reason with an example. `None`: there are none.
pub fn summary(refused: &[Refused]) -> Option<String> {
    // What was found nowhere has no object: that is the tool's business.
    let found: Vec<&Refused> = refused.iter().filter(|refused| !refused.object.as_os_str().is_empty()).collect();
    if let [one] = found[..] {
        return Some(line(one));
    }
    let mut kinds: Vec<(String, &Refused, usize)> = Vec::new();
    for refused in &found {
        let kind = kind(&refused.reason);
        match kinds.iter_mut().find(|known| known.0 == kind) {
            Some(known) => known.2 += 1,
            None => kinds.push((kind, refused, 1)),
        }
    }
    let (_, first, times) = kinds.into_iter().rev().max_by_key(|(_, _, times)| *times)?;
    let why = match times {
        _ if found.iter().all(|refused| refused.reason == first.reason) => format!(" ({})", first.reason),
        1 => String::new(),
        times => format!(" ({times} of them like {}: {})", first.name, first.reason),
    };
    Some(format!("{} cannot be probed{why}; -v says which and why", number::of(found.len(), "function")))
}

/// A line about one of them.
pub fn line(refused: &Refused) -> String {
    let (object, name) = (refused.object.display(), &refused.name);
    let place = if refused.object.as_os_str().is_empty() { name.clone() } else { format!("{object}:{name}") };
    format!("{place} cannot be probed: {}", refused.reason)
}

/// What reasons have in common that differ in a number, an address or an instruction alone.
fn kind(reason: &str) -> String {
    let plain = |(number, part): (usize, &str)| if number % 2 == 0 { part.to_owned() } else { String::new() };
    let plain: String = reason.split('`').enumerate().map(plain).collect();
    plain.split(' ').filter(|word| !word.starts_with(|c: char| c.is_ascii_digit())).collect::<Vec<_>>().join(" ")
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
        let beside = [("f", 0x10), ("g", 0x20)].map(|(name, at)| {
            let reason = format!("process 7 has a probe at {at:#x}, on `nop`");
            refused("/lib/c", name, &reason)
        });
        let three = summary(&[vec![never.clone()], beside.to_vec()].concat()).unwrap();
        let like = "2 of them like f: process 7 has a probe at 0x10, on `nop`";
        assert_eq!(three, format!("3 functions cannot be probed ({like}); -v says which and why"));
        let differ = summary(&[never, beside[0].clone()]).unwrap();
        assert_eq!(differ, "2 functions cannot be probed; -v says which and why");
    }
}
