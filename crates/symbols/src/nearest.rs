//! Names that are close to a wrong one.

/// At most `count` of `names` that are close to `wanted`, best first, each once.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>, count: usize) -> Vec<String> {
    let wanted: Vec<char> = wanted.chars().take(128).collect();
    // A third of the letters wrong is a typo; more is another word.
    let limit = (wanted.len() / 3).clamp(1, 6);
    let mut best: Vec<(usize, &str)> = Vec::new();
    let mut row = Vec::new();
    for name in names {
        if name.len() > 4 * (wanted.len() + limit) {
            continue;
        }
        let Some(distance) = distance(&wanted, name, limit, &mut row) else {
            continue;
        };
        let at = best.partition_point(|b| *b < (distance, name));
        if at < count && best.get(at).is_none_or(|b| b.1 != name) {
            best.insert(at, (distance, name));
            best.truncate(count);
        }
    }
    best.into_iter().map(|(_, name)| name.to_owned()).collect()
}

/// Levenshtein distance, upper and lower case alike; `None` if it is over `limit`.
fn distance(a: &[char], b: &str, limit: usize, row: &mut Vec<usize>) -> Option<usize> {
    let length = b.chars().count();
    if length.abs_diff(a.len()) > limit {
        return None;
    }
    row.clear();
    row.extend(0..=a.len());
    for (i, cb) in b.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        let mut smallest = row[0];
        for (j, ca) in a.iter().enumerate() {
            let step = usize::from(!ca.eq_ignore_ascii_case(&cb));
            let next = (diagonal + step).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = row[j + 1];
            row[j + 1] = next;
            smallest = smallest.min(next);
        }
        if smallest > limit {
            return None;
        }
    }
    row.last().copied().filter(|d| *d <= limit)
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
}
