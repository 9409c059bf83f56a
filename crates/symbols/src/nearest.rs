//! Names that are close to a wrong one.

use std::cmp::Reverse;

use strsim::{levenshtein, osa_distance};

/// At most `count` of `names` that are close to `wanted`, upper and lower case alike, best first,
/// each once.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>, count: usize) -> Vec<String> {
    let wanted: String = wanted.chars().take(128).map(|c| c.to_ascii_lowercase()).collect();
    let length = wanted.chars().count();
    // A third of the letters wrong is a typo; more is another word.
    let limit = (length / 3).clamp(1, 6);
    let mut best: Vec<(usize, Reverse<usize>, &str)> = Vec::new();
    for name in names {
        if name.chars().count().abs_diff(length) > limit {
            continue;
        }
        let lower = name.to_ascii_lowercase();
        let distance = osa_distance(&wanted, &lower);
        if distance > limit {
            continue;
        }
        // Of two that are equally close, swapped letters are likelier: they are two mistakes to
        // `levenshtein`.
        let found = (distance, Reverse(levenshtein(&wanted, &lower)), name);
        let at = best.partition_point(|better| *better < found);
        if at < count && best.get(at).is_none_or(|same| same.2 != name) {
            best.insert(at, found);
            best.truncate(count);
        }
    }
    best.into_iter().map(|(_, _, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_found_and_other_words_are_not() {
        let names = ["malloc", "mallopt", "calloc", "realloc", "free", "printf"];
        let near = |w| nearest(w, names.into_iter(), 3);
        assert_eq!(near("maloc"), ["malloc"]);
        assert_eq!(near("MALLOC"), ["malloc", "calloc", "mallopt"]);
        assert_eq!(near("fre"), ["free"]);
        assert!(near("processCommand").is_empty());
        assert!(near("").is_empty());
    }

    #[test]
    fn swapped_letters_are_one_mistake() {
        assert_eq!(nearest("raed", ["rand", "read", "reads", "fred"].into_iter(), 3), ["read", "rand"]);
    }
}
