//! What plans have to fit in with: the sites of a session, and the address space of its target.
//! Jumps that cannot lead everywhere go to *stubs*, many of which share a page.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use sidestep_isa::{Isa, Va};
use sidestep_plan::room::STUB;
use sidestep_plan::{Fixed, Reason, Room};

use crate::memory::layout::PAGE;
use crate::target::space::{self, Used};
/// Most pages of stubs: each may be a mapping of its own, of which a process can have 65,530
/// (`vm.max_map_count`).
const PAGES_MAX: usize = 12 * 1024;
/// The sites and stubs of a session.
#[derive(Clone, Default)]
pub(crate) struct Surroundings {
    /// What no stub may lie in, sorted, apart from each other.
    forbidden: Vec<Range<u64>>,
    /// Pages of stubs, with what is taken of them.
    pages: BTreeMap<u64, Vec<Range<u64>>>,
    /// The upper half of the displacement that went well last.
    hints: HashMap<Fixed, i16>,
    /// By bias and first address of the object.
    objects: HashMap<(i64, u64), Sites>,
}

/// What is taken of an object's code; link-time addresses.
#[derive(Clone, Default)]
struct Sites {
    sites: BTreeSet<Va>,
    /// Start → end, and who needs it.
    claims: BTreeMap<Va, (Va, Va)>,
    /// Where jumps will be when sites are not blocked any more, by site.
    wanted: BTreeMap<Va, Range<Va>>,
    /// Where jumps are that become traps when a site comes there, by site.
    yielding: BTreeMap<Va, Range<Va>>,
}

impl Sites {
    /// Jumps with a site inside need no more than a trap does, until they are alone again.
    fn make_way(&mut self) {
        let Sites { sites, claims, wanted, yielding } = self;
        yielding.retain(|site, inside| {
            let stays = sites.range(inside.clone()).next().is_none();
            if !stays {
                claims.insert(*site, (inside.start, *site));
                wanted.insert(*site, inside.clone());
            }
            stays
        });
    }
}

/// The surroundings of one object.
pub(crate) struct ObjectRoom<'s> {
    all: &'s mut Surroundings,
    isa: Isa,
    object: (i64, u64),
    /// What claims have replaced, by their start, in order.
    replaced: Vec<(Va, Option<(Va, Va)>)>,
}

impl Surroundings {
    /// The address space is as it is now.
    pub fn look(&mut self, used: &[Used]) {
        self.forbidden = space::forbidden(used);
    }

    /// The room of the object that lies `bias` above its link-time addresses, the first of which is
    /// `start`.
    pub fn of(&mut self, isa: Isa, bias: i64, start: u64) -> ObjectRoom<'_> {
        ObjectRoom { all: self, isa, object: (bias, start), replaced: Vec::new() }
    }

    /// Sites, given by their run-time addresses, that are nobody's any more.
    pub fn release(&mut self, sites: &HashSet<u64>) {
        for ((bias, _), taken) in &mut self.objects {
            let gone = |site: &Va| sites.contains(&site.offset(*bias).0);
            taken.sites.retain(|site| !gone(site));
            taken.claims.retain(|_, (_, owner)| !gone(owner));
            taken.wanted.retain(|site, _| !gone(site));
            taken.yielding.retain(|site, _| !gone(site));
        }
    }

    /// Stubs, given by their run-time addresses, that nobody needs any more. Their pages stay ours.
    pub fn release_stubs(&mut self, stubs: &[u64]) {
        for at in stubs {
            if let Some(taken) = self.pages.get_mut(&(at & !(PAGE - 1))) {
                taken.retain(|range| range.start != *at);
            }
        }
    }

    /// A place for a stub that a jump which ends at `end` leads to, and the upper half of its
    /// displacement. The `hints` are tried first.
    fn find(&self, isa: Isa, end: Va, fixed: Fixed, hints: &HashMap<Fixed, i16>) -> Option<(i16, u64)> {
        hints.get(&fixed).copied().into_iter().chain(fixed.highs()).find_map(|high| {
            // In 32-bit code the sum wraps.
            let base = isa.wrap(end.offset(i64::from(high) << 16));
            let at = self.place(isa, base.0 as i64, fixed.low(high)?)?;
            Some((high, at))
        })
    }

    /// A place for a stub at `base` plus one of `low` (first, last, step), in a page that has some
    /// already, or in a new one.
    fn place(&self, isa: Isa, base: i64, low: (u16, u16, u16)) -> Option<u64> {
        let (first, last, step) = (base + i64::from(low.0), base + i64::from(low.1), u64::from(low.2));
        let (first, last) = (u64::try_from(first).ok()?, u64::try_from(last).ok()?.min(isa.limits().address_end));
        if last < first {
            return None;
        }
        let mut shared = self.pages.range(first & !(PAGE - 1)..=last);
        if let Some(at) = shared.find_map(|(page, taken)| gap(*page, taken, first, last, step)) {
            return Some(at);
        }
        if self.pages.len() >= PAGES_MAX {
            return None;
        }
        let mut pages = (first & !(PAGE - 1)..=last).step_by(PAGE as usize);
        pages.find_map(|page| {
            let free = !self.pages.contains_key(&page) && self.is_free(page);
            if free { gap(page, &[], first, last, step) } else { None }
        })
    }

    fn take(&mut self, at: u64) {
        let taken = self.pages.entry(at & !(PAGE - 1)).or_default();
        taken.insert(taken.partition_point(|t| t.start < at), at..at + STUB);
    }

    fn is_free(&self, page: u64) -> bool {
        let before = self.forbidden.partition_point(|range| range.end <= page);
        self.forbidden.get(before).is_none_or(|range| page + PAGE <= range.start)
    }
}

/// The lowest address from `first` to `last`, in steps, at which a stub fits into what is left of a
/// page.
fn gap(page: u64, taken: &[Range<u64>], first: u64, last: u64, step: u64) -> Option<u64> {
    let from = |address: u64| first + address.saturating_sub(first).div_ceil(step) * step;
    let mut at = from(page);
    for range in taken {
        if range.start < at + STUB && at < range.end {
            at = from(range.end);
        }
    }
    (at <= last && at + STUB <= page + PAGE).then_some(at)
}

impl ObjectRoom<'_> {
    /// Sites of probes to come: no other probe may touch their first byte. Jumps that can make way
    /// for them do.
    pub fn expect(&mut self, sites: impl IntoIterator<Item = Va>) {
        let all = self.all.objects.entry(self.object).or_default();
        all.sites.extend(sites);
        all.make_way();
    }

    /// The jump of a site becomes a trap when a site comes into this range.
    pub fn may_yield(&mut self, site: Va, range: Range<Va>) {
        self.all.objects.entry(self.object).or_default().yielding.insert(site, range);
    }

    /// The sites in a range, if nothing else keeps a jump from being there.
    pub fn inside(&self, site: Va, range: Range<Va>) -> Vec<Va> {
        let Some(all) = self.all.objects.get(&self.object) else { return Vec::new() };
        let inside: Vec<Va> = all.sites.range(range.clone()).copied().collect();
        let mut claims = all.claims.range(range.clone()).map(|(_, (_, owner))| owner);
        if claims.all(|owner| *owner == site || inside.contains(owner)) { inside } else { Vec::new() }
    }

    /// Does a site that was there before need its first byte?
    pub fn is_taken(&self, site: Va) -> bool {
        self.is_free(site, site..Va(site.0 + 1)).is_err()
    }

    /// How many claims have been made so far: for [`ObjectRoom::release_since`].
    pub fn claimed(&self) -> usize {
        self.replaced.len()
    }

    /// Takes back the claims since then.
    pub fn release_since(&mut self, claimed: usize) {
        let claims = &mut self.all.objects.entry(self.object).or_default().claims;
        for (start, before) in self.replaced.drain(claimed..).rev() {
            match before {
                Some(claim) => claims.insert(start, claim),
                None => claims.remove(&start),
            };
        }
    }

    /// A site needs nothing but its first byte any more.
    pub fn release(&mut self, site: Va) {
        let all = self.all.objects.entry(self.object).or_default();
        all.claims.retain(|_, (_, owner)| *owner != site);
        all.wanted.remove(&site);
    }

    /// A jump will be there when the site is not blocked any more.
    pub fn want(&mut self, site: Va, range: Range<Va>) {
        self.all.objects.entry(self.object).or_default().wanted.insert(site, range);
    }

    /// Where jumps will be.
    pub fn wanted(&self) -> impl Iterator<Item = Range<Va>> {
        let all = self.all.objects.get(&self.object).map(|all| &all.wanted);
        all.into_iter().flat_map(|wanted| wanted.values().cloned())
    }
}

impl Room for ObjectRoom<'_> {
    fn is_free(&self, site: Va, range: Range<Va>) -> Result<(), Reason> {
        let Some(all) = self.all.objects.get(&self.object) else { return Ok(()) };
        if let Some(other) = all.sites.range(range.clone()).find(|other| **other != site) {
            return Err(Reason::OtherProbe { at: *other });
        }
        let claims = all.claims.range(..range.end).map(|(start, (end, owner))| (*start, *end, *owner));
        // No claim is longer than two instructions.
        let mut near = claims.rev().take_while(|(start, ..)| range.start.since(*start) < 64);
        match near.find(|(_, end, owner)| *end > range.start && *owner != site) {
            Some((at, _, owner)) => Err(Reason::Claimed { owner, at }),
            None => Ok(()),
        }
    }

    fn claim(&mut self, site: Va, range: Range<Va>) {
        let claims = &mut self.all.objects.entry(self.object).or_default().claims;
        self.replaced.push((range.start, claims.get(&range.start).copied()));
        let claim = claims.entry(range.start).or_insert((range.end, site));
        claim.0 = claim.0.max(range.end);
    }

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let bias = self.object.0;
        let (high, at) = self.all.find(self.isa, end.offset(bias), fixed, &self.all.hints)?;
        self.all.hints.insert(fixed, high);
        self.all.take(at);
        Some(Va(at).offset(-bias))
    }
}

/// The surroundings of one probe that is alone in a process. It takes nothing, so that the next
/// site is alone, too.
pub(crate) struct Alone<'s> {
    all: &'s Surroundings,
    isa: Isa,
    bias: i64,
    hints: HashMap<Fixed, i16>,
}

impl Surroundings {
    /// The room of any probe of an object that lies `bias` above its link-time addresses, if it
    /// were the only one.
    pub fn alone(&self, isa: Isa, bias: i64) -> Alone<'_> {
        Alone { all: self, isa, bias, hints: HashMap::new() }
    }
}

impl Room for Alone<'_> {
    fn is_free(&self, _site: Va, _range: Range<Va>) -> Result<(), Reason> {
        Ok(())
    }

    fn claim(&mut self, _site: Va, _range: Range<Va>) {}

    fn stub(&mut self, end: Va, fixed: Fixed) -> Option<Va> {
        let (high, at) = self.all.find(self.isa, end.offset(self.bias), fixed, &self.hints)?;
        self.hints.insert(fixed, high);
        Some(Va(at).offset(-self.bias))
    }
}

/// The address space of a process that has mapped nothing but an object, where the loader would.
pub(crate) fn assumed(image: Range<u64>, heap: bool) -> Vec<Used> {
    let grows = if heap { space::Grows::Up } else { space::Grows::No };
    vec![Used { start: image.start, end: image.end, grows }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::space::Grows;

    const BIAS: i64 = 0x5500_0000_0000;

    fn surroundings() -> Surroundings {
        let mut all = Surroundings::default();
        let image = BIAS as u64..BIAS as u64 + 0x20_0000;
        all.look(&[Used { start: image.start, end: image.end, grows: Grows::No }]);
        all
    }

    #[test]
    fn claims_are_taken_back_as_they_were() {
        let mut all = surroundings();
        let mut room = all.of(Isa::X64, BIAS, 0);
        room.claim(Va(0x1000), Va(0x1000)..Va(0x1005));
        let claimed = room.claimed();
        room.claim(Va(0x1000), Va(0x1000)..Va(0x1008));
        room.claim(Va(0x1010), Va(0x1010)..Va(0x1015));
        assert!(room.is_free(Va(0x1006), Va(0x1006)..Va(0x1007)).is_err());
        room.release_since(claimed);
        assert_eq!(room.is_free(Va(0x1006), Va(0x1006)..Va(0x1020)), Ok(()));
        assert!(room.is_free(Va(0x1004), Va(0x1004)..Va(0x1007)).is_err());
    }

    #[test]
    fn stubs_are_where_jumps_lead_and_apart() {
        let mut all = surroundings();
        let mut taken: Vec<u64> = Vec::new();
        let guard = Fixed([Some(0xcc), None, None, Some(0xcc)]);
        for site in (0x1000..0x3000).step_by(7) {
            for fixed in [Fixed([None, None, Some(0x89), Some(0x48)]), guard, Fixed([None, None, None, Some(0x0f)])] {
                let end = Va(site + 5);
                let at = all.of(Isa::X64, BIAS, 0).stub(end, fixed).unwrap();
                let bytes = i32::try_from(at.since(end)).unwrap().to_le_bytes();
                assert!(bytes.iter().zip(fixed.0).all(|(byte, fixed)| fixed.is_none_or(|fixed| fixed == *byte)));
                let at = at.offset(BIAS).0;
                assert!(at % PAGE + STUB <= PAGE);
                assert!(at + STUB <= BIAS as u64 || at >= BIAS as u64 + 0x20_0000);
                taken.push(at);
            }
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0] + STUB <= pair[1]));
        // Many share a page: 3513 of 14 bytes.
        assert!(all.pages.len() < 40, "{}", all.pages.len());
    }

    #[test]
    fn an_address_in_the_object_is_none() {
        let exact = Fixed([Some(0), Some(0x10), Some(0), Some(0)]);
        assert_eq!(surroundings().of(Isa::X64, BIAS, 0).stub(Va(0x1000), exact), None);
        let far = Fixed([Some(0), Some(0x10), Some(0), Some(0x10)]);
        let mut all = surroundings();
        assert_eq!(all.of(Isa::X64, BIAS, 0).stub(Va(0x1000), far), Some(Va(0x1000_2000)));
        // Once.
        assert_eq!(all.of(Isa::X64, BIAS, 0).stub(Va(0x1000), far), None);
    }

    #[test]
    fn distances_wrap_in_32_bit_code() {
        let mut all = Surroundings::default();
        all.look(&[Used { start: 0x0804_8000, end: 0x0810_0000, grows: Grows::No }]);
        // Up over the end of the address space, and down from its beginning.
        let mut stub = |end: u64, high: u8| {
            let fixed = Fixed([None, None, Some(0), Some(high)]);
            all.of(Isa::X86, 0, 0).stub(Va(end), fixed).map(|at| at.0)
        };
        assert_eq!(stub(0xf7c0_1000, 0x24), Some(0x1bc0_1000));
        assert_eq!(stub(0x0805_0000, 0x84), Some(0x8c05_0000));
        assert_eq!(stub(0x0805_0000, 0xf8), Some(0x0005_0000));
        assert_eq!(stub(0x0800_0000, 0xf8), None, "there are the lowest pages");
        assert_eq!(stub(0xf7c1_0000, 0x08), Some(0xffc1_0000));
        assert_eq!(stub(0xf7ff_f800, 0x08), None, "there is the kernel");
    }

    #[test]
    fn a_site_is_nobody_elses() {
        let mut all = surroundings();
        let mut room = all.of(Isa::X64, BIAS, 0);
        room.expect([Va(0x1000), Va(0x1004)]);
        assert!(room.is_free(Va(0x1000), Va(0x1000)..Va(0x1004)).is_ok());
        assert!(room.is_free(Va(0x1000), Va(0x1000)..Va(0x1005)).is_err());
        room.claim(Va(0x1000), Va(0x2000)..Va(0x2005));
        assert!(room.is_free(Va(0x1000), Va(0x2003)..Va(0x2008)).is_ok());
        assert!(room.is_free(Va(0x1004), Va(0x2004)..Va(0x2008)).is_err());
        assert!(room.is_free(Va(0x1004), Va(0x2005)..Va(0x2008)).is_ok());
        all.release(&HashSet::from([0x1000 + BIAS as u64]));
        assert!(all.of(Isa::X64, BIAS, 0).is_free(Va(0x1004), Va(0x1000)..Va(0x2008)).is_ok());
        assert!(all.of(Isa::X64, BIAS, 0).is_free(Va(0x1000), Va(0x1000)..Va(0x1005)).is_err());
        // Another object at the same link-time addresses.
        assert!(all.of(Isa::X64, BIAS + 0x1000, 0x1000).is_free(Va(0x1004), Va(0x1000)..Va(0x2008)).is_ok());
    }
}
