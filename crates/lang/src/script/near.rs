//! Names that are nearly others.

/// The one of `names` that was probably meant.
pub(super) fn near<'n>(name: &str, names: &[&'n str]) -> Option<&'n str> {
    let distance = |other: &str| {
        let (a, b): (Vec<char>, Vec<char>) = (name.chars().collect(), other.chars().collect());
        let mut row: Vec<usize> = (0..=b.len()).collect();
        for (i, x) in a.iter().enumerate() {
            let mut diagonal = std::mem::replace(&mut row[0], i + 1);
            for (j, y) in b.iter().enumerate() {
                let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
                diagonal = std::mem::replace(&mut row[j + 1], next);
            }
        }
        row[b.len()]
    };
    // The same letters in another order are the likeliest mistake.
    let swapped = |other: &str| {
        let sorted = |text: &str| {
            let mut chars: Vec<char> = text.chars().collect();
            chars.sort_unstable();
            chars
        };
        name.len() > 3 && sorted(name) == sorted(other)
    };
    let best = names.iter().map(|other| (if swapped(other) { 0 } else { distance(other) }, *other)).min()?;
    (best.0 <= 1 + name.len() / 5).then_some(best.1)
}
