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

/// A batch of so many sites is full: all of them are traps at the same time, which costs the target
/// some time.
const BATCH: usize = 1024;

/// What a site is for its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// An exit, and nothing else, that looks for the entry of its call.
    Paired,
    /// An exit, and nothing else.
    Exit,
    /// An exit, and something else.
    Mixed,
    /// At the entry, or at any other instruction.
    Other,
}

impl Kind {
    /// Of a site that has exits, or `only` exits, of which some are paired.
    pub fn new(exits: bool, only: bool, paired: bool) -> Kind {
        match (exits, only) {
            (true, true) if paired => Kind::Paired,
            (true, true) => Kind::Exit,
            (true, false) => Kind::Mixed,
            (false, _) => Kind::Other,
        }
    }
}

/// Where a site is in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    is_unpaired: bool,
    /// The address of the function, or of a paired exit. Or the number of its page.
    at: u64,
    kind: Kind,
}

impl Rank {
    /// Of a site at an address. `function` is the function that it is of; if there are several, the
    /// lowest one. So an exit comes before the entries of all of them.
    pub fn new(kind: Kind, site: u64, function: u64) -> Rank {
        let is_unpaired = kind != Kind::Paired;
        Rank { is_unpaired, at: if is_unpaired { function } else { site }, kind }
    }

    /// Of a site whose probes are known.
    pub fn of(site: &Site) -> Rank {
        let exits = site.users().filter(|(_, desc)| desc.flow == Flow::Exit as u32).count();
        let is_paired = site.users().any(|(_, desc)| desc.pair != 0);
        let kind = Kind::new(exits != 0, exits == site.users().count(), is_paired);
        Rank::new(kind, site.entry.site, site.function())
    }

    pub fn kind(self) -> Kind {
        self.kind
    }

    pub fn is_paired(self) -> bool {
        !self.is_unpaired
    }

    /// The same for all sites of a function that change together.
    pub fn function(self) -> Rank {
        Rank { kind: Kind::Other, ..self }
    }

    /// The same for all sites of functions that begin on one page.
    pub fn page(self) -> Rank {
        Rank { at: self.at / PAGE, ..self.function() }
    }
}

/// Whether sites are enabled, or disabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Enable,
    Disable,
}

impl Order {
    /// These, in their order.
    fn in_order<T, const N: usize>(self, mut all: [T; N]) -> [T; N] {
        if self == Order::Disable {
            all.reverse();
        }
        all
    }

    /// Whether those sites are paired exits that change first, and those that change last.
    pub fn paired(self) -> [bool; 2] {
        self.in_order([true, false])
    }

    /// The kinds of sites.
    pub fn kinds(self) -> [Kind; 4] {
        self.in_order([Kind::Paired, Kind::Exit, Kind::Mixed, Kind::Other])
    }

    /// Divides sites into batches of functions, in their order.
    pub fn batches<T>(self, sites: Vec<T>, rank: impl Fn(&T) -> Rank) -> Vec<Vec<T>> {
        let mut batches: Vec<Vec<T>> = Vec::new();
        for mut sites in self.pieces(sites, |site| rank(site).function(), |_| 0) {
            match batches.last_mut() {
                Some(batch) if batch.len() < BATCH => batch.append(&mut sites),
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

    /// 2000 functions, each with an entry and two exits.
    fn sites() -> Vec<Rank> {
        let kinds = [Kind::Other, Kind::Exit, Kind::Exit];
        let site = |site: u64| Rank::new(kinds[(site % 3) as usize], site, site / 3 * 3);
        (0..6000).rev().map(site).collect()
    }

    fn first(batch: &[Rank]) -> u64 {
        batch.iter().min().unwrap().at
    }

    fn last(batch: &[Rank]) -> u64 {
        batch.iter().max().unwrap().at
    }

    #[test]
    fn the_exits_of_a_function_were_enabled_long_before_its_entry() {
        let batches = Order::Enable.batches(sites(), |site| *site);
        assert_eq!(batches.concat().len(), 6000);
        assert!(batches.iter().all(|batch| batch.len() < BATCH + 3));
        assert!(batches.windows(2).all(|pair| last(&pair[0]) < first(&pair[1])), "a function in two batches");
    }

    #[test]
    fn sites_are_disabled_the_other_way_round() {
        let batches = Order::Disable.batches(sites(), |site| *site);
        assert!(batches.windows(2).all(|pair| first(&pair[0]) > last(&pair[1])));
        assert_eq!(Order::Disable.kinds()[0], Kind::Other);
        assert_eq!(Order::Disable.paired(), [false, true]);
    }
}
