//! Names that are nearly others.

use std::cmp::Reverse;

use strsim::{levenshtein, osa_distance};

/// The one of `names` that was probably meant.
#[must_use]
pub fn near<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |other: &&'n str| osa_distance(name, other);
    let close = names.iter().filter(|other| distance(other) <= 1 + name.len() / 5);
    // Of two that are equally close, swapped letters are likelier: they are two mistakes to
    // `levenshtein`.
    close.min_by_key(|other| (distance(other), Reverse(levenshtein(name, other)), **other)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swapped_letters_are_one_mistake() {
        assert_eq!(near("raed", &["rand", "reads", "read"]), Some("read"));
    }
}
