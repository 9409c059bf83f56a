//! Cycles of a directed graph.

use std::collections::{BTreeMap, BTreeSet};

/// A shortest cycle through each edge that is part of one, each once and beginning with its
/// smallest node.
pub fn cycles<N: Copy + Ord>(edges: &[(N, N)]) -> BTreeSet<Vec<N>> {
    let mut next: BTreeMap<N, Vec<N>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(*from).or_default().push(*to);
    }
    let cycle = |&(from, to): &(N, N)| {
        let mut path = path(&next, to, from)?;
        let smallest = path.iter().enumerate().min_by_key(|(_, node)| **node)?.0;
        path.rotate_left(smallest);
        Some(path)
    };
    edges.iter().filter_map(cycle).collect()
}

/// The nodes of a shortest path, with both ends.
fn path<N: Copy + Ord>(next: &BTreeMap<N, Vec<N>>, from: N, to: N) -> Option<Vec<N>> {
    let mut before = BTreeMap::from([(from, from)]);
    let mut round = vec![from];
    while !before.contains_key(&to) {
        let mut reached = Vec::new();
        for node in &round {
            for behind in next.get(node).into_iter().flatten() {
                if !before.contains_key(behind) {
                    before.insert(*behind, *node);
                    reached.push(*behind);
                }
            }
        }
        if reached.is_empty() {
            return None;
        }
        round = reached;
    }
    let mut path = vec![to];
    while let Some(node) = path.last().filter(|node| **node != from) {
        path.push(before[node]);
    }
    path.reverse();
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::cycles;

    #[test]
    fn cycles_are_found_once() {
        let found = |edges: &[(u64, u64)]| cycles(edges).into_iter().collect::<Vec<_>>();
        assert_eq!(found(&[(1, 2), (2, 3), (1, 3)]), Vec::<Vec<u64>>::new());
        assert_eq!(found(&[(2, 1), (1, 2)]), [[1, 2]]);
        assert_eq!(found(&[(3, 1), (1, 2), (2, 3), (3, 4), (5, 1)]), [[1, 2, 3]]);
        assert_eq!(found(&[(1, 2), (2, 1), (2, 3), (3, 2)]), [[1, 2], [2, 3]]);
        // The way back may be longer than the edge: each edge has its own cycle.
        assert_eq!(found(&[(1, 2), (2, 1), (2, 3), (3, 1)]), [vec![1, 2], vec![1, 2, 3]]);
    }
}
