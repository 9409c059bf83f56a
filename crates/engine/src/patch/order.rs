//! The order in which sites change.
//!
//! Each call that is seen to begin has to be seen to end, so the exits of a function are enabled
//! before its entry, and disabled after it. Where an exit looks for the entry of its call, what
//! returns in between is not counted: all such exits are enabled before all other sites, and
//! disabled after them, so that calls have the time to end. Where an exit counts by itself, it is
//! counted without its entry: so these exits change right before or after the entry of their
//! function.

use sidestep_wire::Flow;

use crate::memory::layout::PAGE;
use crate::target::discovery::Site;

/// So many sites change together, which costs the target some time.
const BATCH: usize = 1024;

/// What a site is for its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An exit, and nothing else, that looks for the entry of its call.
    Paired,
    /// An exit, and nothing else.
    Exit,
    /// At the entry, or at any other instruction.
    Other,
}

/// Where a site is in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    is_unpaired: bool,
    /// The function, a run-time address. Of a paired exit, the site.
    of: u64,
    kind: Kind,
}

impl Rank {
    /// Of a site at an address. `function` is the function that it is of; if there are several, the
    /// lowest one. So an exit comes before the entries of all of them.
    pub fn new(kind: Kind, site: u64, function: u64) -> Rank {
        let is_unpaired = kind != Kind::Paired;
        Rank { is_unpaired, of: if is_unpaired { function } else { site }, kind }
    }

    /// Of a site whose probes are known.
    pub fn of(site: &Site) -> Rank {
        let is_exit = site.users().all(|(_, desc)| desc.flow == Flow::Exit as u32);
        let kind = match site.users().any(|(_, desc)| desc.pair != 0) {
            _ if !is_exit => Kind::Other,
            true => Kind::Paired,
            false => Kind::Exit,
        };
        let function = site.users().map(|(_, desc)| desc.asked).min();
        Rank::new(kind, site.entry.site, function.unwrap_or(site.entry.site))
    }

    pub fn is_exit(self) -> bool {
        self.kind != Kind::Other
    }

    /// The same for all sites of a function that change together.
    pub fn function(self) -> Rank {
        Rank { kind: Kind::Other, ..self }
    }

    /// The same for all sites of functions that begin on one page.
    pub fn page(self) -> Rank {
        Rank { of: self.of / PAGE, ..self.function() }
    }
}

/// Whether sites are enabled, or disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Enable,
    Disable,
}

impl Order {
    /// Whether those are exits that change first, and those that change last.
    pub fn exits(self) -> [bool; 2] {
        match self {
            Order::Enable => [true, false],
            Order::Disable => [false, true],
        }
    }

    /// Divides sites into batches, in their order.
    pub fn batches<T>(self, sites: Vec<T>, rank: impl Fn(&T) -> Rank) -> Vec<Vec<T>> {
        let mut batches: Vec<Vec<T>> = Vec::new();
        let mut pairs = None;
        for mut sites in self.pieces(sites, |site| rank(site).function(), |_| 0) {
            let same = pairs.replace(rank(&sites[0]).is_unpaired) == Some(rank(&sites[0]).is_unpaired);
            match batches.last_mut() {
                Some(batch) if same && batch.len() < BATCH => batch.append(&mut sites),
                _ => batches.push(sites),
            }
        }
        batches
    }

    /// Divides sites into those of the same rank, in their order. The sites of a piece are in the
    /// order of their addresses.
    pub fn pieces<T>(self, mut sites: Vec<T>, rank: impl Fn(&T) -> Rank, address: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
        sites.sort_by_key(|site| (rank(site), address(site)));
        let mut pieces: Vec<Vec<T>> = Vec::new();
        for site in sites {
            match pieces.last_mut() {
                Some(piece) if rank(&piece[0]) == rank(&site) => piece.push(site),
                _ => pieces.push(vec![site]),
            }
        }
        if self == Order::Disable {
            pieces.reverse();
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2000 functions, each with an entry, an exit and a paired exit.
    fn sites() -> Vec<Rank> {
        let kinds = [Kind::Other, Kind::Exit, Kind::Paired];
        let site = |site: u64| Rank::new(kinds[(site % 3) as usize], site, site / 3 * 3);
        (0..6000).rev().map(site).collect()
    }

    #[test]
    fn the_exits_of_a_function_were_enabled_long_before_its_entry() {
        let batches = Order::Enable.batches(sites(), |site| *site);
        assert_eq!(batches.concat().len(), 6000);
        assert!(batches.iter().all(|batch| batch.len() <= BATCH + 1));
        let last = |batch: &Vec<Rank>| batch.iter().max().unwrap().function();
        let first = |batch: &Vec<Rank>| batch.iter().min().unwrap().function();
        assert!(batches.windows(2).all(|pair| last(&pair[0]) < first(&pair[1])), "a function in two batches");
        let paired: Vec<bool> =
            batches.iter().map(|batch| batch.iter().all(|site| site.kind == Kind::Paired)).collect();
        assert_eq!(paired, [true, true, false, false, false, false], "paired exits come first");
    }

    #[test]
    fn sites_are_disabled_the_other_way_round() {
        let batches = Order::Disable.batches(sites(), |site| *site);
        let last = |batch: &Vec<Rank>| batch.iter().max().unwrap().function();
        let first = |batch: &Vec<Rank>| batch.iter().min().unwrap().function();
        assert!(batches.windows(2).all(|pair| first(&pair[0]) > last(&pair[1])));
    }
}
