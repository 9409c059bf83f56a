//! Free address space near code: where a slab can go.

use std::ops::Range;

use sidestep_isa::{Isa, Len, Va};
use sidestep_sys::arch::{ADDRESS_END, ISA, ISAS};

use crate::memory::layout::PAGE;

/// Lowest address that is ever proposed (`vm.mmap_min_addr` is 64 KiB at most on all
/// distributions).
const LOWEST: u64 = 0x10000;
/// Left free above a heap, which grows upwards, and below a stack, which grows downwards.
const GROWTH: u64 = 256 << 20;
/// Where user space ends.
const END: u64 = ISA.limits().address_end;
/// What is left of the reach of a jump, for what lies around its ends.
const MARGIN: u64 = 1 << 20;
/// Where the search for the place of the lookup table begins, which should be below 2 GiB.
pub const LOW: u64 = 0x2000_0000;
/// What is kept free for it.
const LOW_ROOM: u64 = 16 << 20;
/// Is there little address space?
const SMALL: bool = ADDRESS_END <= 1 << 32;
/// What is kept free for all else of ours in 32-bit processes, where jumps reach everything.
const OWN_ROOM: u64 = 320 << 20;

/// A used range of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    pub start: u64,
    pub end: u64,
    /// Leave room above (heap) or below (stack).
    pub grows: Grows,
}

/// Does a mapping grow by itself?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grows {
    No,
    Up,
    Down,
}

/// What is kept free for detours above what else is ours in 32-bit processes.
const CODE_ROOM: u64 = match ISA.limits().reach {
    Some(reach) => reach,
    None => 0,
};

/// Is it so here?
const TIGHT: bool = is_tight(reach(ISA), END);

/// Whether jumps reach only a part of little address space.
const fn is_tight(reach: u64, top: u64) -> bool {
    top <= 1 << 32 && reach < top
}

/// Farthest distance of a jump, in bytes.
const fn reach(isa: Isa) -> u64 {
    match isa.limits().reach {
        Some(reach) => reach - MARGIN,
        None => u64::MAX,
    }
}

/// The instruction set of targets whose jumps lead least far.
pub fn least_reach() -> Isa {
    ISAS.iter().copied().min_by_key(|isa| reach(*isa)).unwrap_or(ISA)
}

/// A free range of `len` bytes from which all of `near` is reachable, as close to it as possible;
/// below it if there is a choice. In 32-bit code of x86, everything reaches everything.
pub fn find(isa: Isa, used: &[Used], near: Range<u64>, len: Len) -> Option<Va> {
    find_within(reach(isa), isa.limits().address_end, used, near, len)
}

/// The same for memory that is not jumped to: generated code names it by its whole address where
/// that has 32 bits, so it may be anywhere there.
pub fn find_own(used: &[Used], near: Range<u64>, len: Len) -> Option<Va> {
    find_within(if SMALL { u64::MAX } else { reach(ISA) }, END, used, near, len)
}

/// The same within so many bytes, below an address.
fn find_within(reach: u64, top: u64, used: &[Used], near: Range<u64>, len: Len) -> Option<Va> {
    let low = near.end.saturating_sub(reach).max(LOWEST);
    let high = near.start.saturating_add(reach).min(top);
    let mut best: Option<(u64, u64)> = None;
    for gap in taken(used, None, is_tight(reach, top)).windows(2) {
        let (start, end) = (gap[0].end, gap[1].start);
        let start = start.max(low).next_multiple_of(PAGE);
        let end = end.min(high) & !(PAGE - 1);
        if end < start || end - start < len.0 {
            continue;
        }
        let below = end <= near.start;
        // Not at the start of a gap in which `near` lies itself.
        let at = if below { end - len.0 } else { near.start.next_multiple_of(PAGE).clamp(start, end - len.0) };
        let distance = if below { near.start - end } else { start.saturating_sub(near.end) + 1 };
        if best.is_none_or(|(d, _)| distance < d) {
            best = Some((distance, at));
        }
    }
    best.map(|(_, at)| Va(at))
}

/// Is all of `near` reachable from a place, as [`find`] would have it?
pub fn reaches(isa: Isa, near: &Range<u64>, place: &Range<u64>) -> bool {
    let reach = reach(isa);
    place.start >= near.end.saturating_sub(reach) && place.end <= near.start.saturating_add(reach)
}

/// An address for `len` bytes of our own that are in no probe's way: no jump from anybody's code
/// reaches them, or in 32-bit processes, none may.
pub fn aside(used: &[Used], len: Len) -> Option<Va> {
    if SMALL {
        return own_room(&taken(used, None, TIGHT), CODE_ROOM)
            .filter(|own| own.end - own.start >= len.0)
            .map(|own| Va(own.end - len.0));
    }
    let taken = forbidden(used);
    let gaps = taken.windows(2).map(|pair| pair[0].end..pair[1].start).rev();
    let mut fitting = gaps.filter_map(|gap| {
        let at = gap.end.checked_sub(2 * reach(ISA) + len.0)? & !(PAGE - 1);
        (at >= gap.start + 2 * reach(ISA)).then_some(Va(at))
    });
    fitting.next()
}

/// What must stay free or is used, also by us, sorted, apart from each other.
pub fn forbidden(used: &[Used]) -> Vec<Range<u64>> {
    let own = if SMALL { own_room(&taken(used, None, TIGHT), CODE_ROOM) } else { None };
    taken(used, own.into_iter().chain(std::iter::once(LOW..LOW + LOW_ROOM)), TIGHT)
}

/// The highest room for all that is ours, given what is taken. Above it, `code` bytes stay free for
/// what jumps have to reach from the libraries that are behind the gap.
fn own_room(taken: &[Range<u64>], code: u64) -> Option<Range<u64>> {
    let gaps = taken.windows(2).map(|pair| pair[0].end..pair[1].start.saturating_sub(code));
    let mut gaps = gaps.filter(|gap| gap.start < END).rev();
    gaps.find(|gap| gap.end.saturating_sub(gap.start) >= OWN_ROOM).map(|gap| gap.end - OWN_ROOM..gap.end)
}

/// What must stay free or is used, and some more, sorted, apart from each other. If it is `tight`,
/// what grows has no room but that up to the next mapping, into which it does not grow.
fn taken(used: &[Used], more: impl IntoIterator<Item = Range<u64>>, tight: bool) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = more.into_iter().collect();
    all.push(0..LOWEST);
    for u in used {
        let (mut start, mut end) = (u.start, u.end);
        if u.grows == Grows::Down {
            let below = used.iter().map(|other| other.end).filter(|end| tight && *end <= u.start).max();
            start = u.start.saturating_sub(GROWTH).max(below.unwrap_or(0));
        }
        if u.grows == Grows::Up {
            let above = used.iter().map(|other| other.start).filter(|start| tight && *start >= u.end).min();
            end = u.end.saturating_add(GROWTH).min(above.unwrap_or(u64::MAX));
        }
        all.push(start..end);
    }
    all.push(END..u64::MAX);
    if SMALL {
        // On 32-bit machines, user space ends where the kernel was built for, right above the main
        // stack.
        let stack = used.iter().filter(|u| u.grows == Grows::Down).map(|u| u.end).max();
        all.extend(stack.map(|end| end..u64::MAX));
    }
    all.sort_unstable_by_key(|range| range.start);
    let mut apart: Vec<Range<u64>> = Vec::new();
    for range in all {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGHEST: u64 = Isa::X64.limits().address_end;
    const HIGHEST_32: u64 = Isa::X86.limits().address_end;
    const REACH: u64 = reach(Isa::X64);

    fn used(start: u64, end: u64, grows: Grows) -> Used {
        Used { start, end, grows }
    }

    #[test]
    fn nearest_gap_below_wins() {
        let map =
            [used(0x5500_0000_0000, 0x5500_0010_0000, Grows::No), used(0x5500_0010_0000, 0x5500_0020_0000, Grows::Up)];
        let at = find(Isa::X64, &map, 0x5500_0000_1000..0x5500_0002_0000, Len(0x4000)).unwrap();
        assert_eq!(at, Va(0x5500_0000_0000 - 0x4000));
    }

    #[test]
    fn the_heap_may_go_on_growing() {
        // Nothing below: the slab has to go above, but not right above the heap.
        let map = [used(LOWEST, 0x50_0000, Grows::No), used(0x50_0000, 0x60_0000, Grows::Up)];
        let at = find(Isa::X64, &map, 0x40_0000..0x41_0000, Len(0x1000)).unwrap();
        assert!(at.0 >= 0x60_0000 + GROWTH, "{at}");
    }

    /// 32-bit kernels put libraries 128 MiB below the main stack, and jumps of T32 reach 16 MiB.
    /// The room around such a library was kept free for the stack.
    #[test]
    fn a_library_below_the_main_stack_had_no_room() {
        let map = [
            used(0x40_0000, 0x50_0000, Grows::No),
            used(0xb6e0_0000, 0xb6f0_0000, Grows::No),
            used(0xbefd_e000, 0xbeff_f000, Grows::Down),
        ];
        let at = find(Isa::T32, &map, 0xb6e0_0000..0xb6f0_0000, Len(0x4000));
        assert_eq!(at, Some(Va(0xb6e0_0000 - 0x4000)));
    }

    /// The lookup table lay right behind a program at low addresses, where stubs may be planned,
    /// and not in the room that is kept for the table.
    #[test]
    fn what_is_wanted_somewhere_is_put_there() {
        let map = [used(0x40_0000, 0x60_0000, Grows::No), used(0x5000_0000, 0x5001_0000, Grows::No)];
        assert_eq!(find(Isa::X64, &map, LOW..LOW, Len(0x4000)), Some(Va(LOW)));
        let map = [used(0x40_0000, LOW + 0x1000, Grows::No)];
        assert_eq!(find(Isa::X64, &map, LOW..LOW, Len(0x4000)), Some(Va(LOW + 0x1000)));
    }

    #[test]
    fn in_32_bit_code_everything_is_within_reach() {
        let map = [used(LOWEST, 0xf000_0000, Grows::No)];
        assert_eq!(find(Isa::X86, &map, LOWEST..0x2_0000, Len(0x1000)), Some(Va(0xf000_0000)));
        let full = [used(LOWEST, HIGHEST_32 - 0x1000, Grows::No)];
        assert_eq!(find(Isa::X86, &full, LOWEST..0x2_0000, Len(0x2000)), None);
    }

    #[test]
    fn out_of_reach_is_none() {
        let map = [used(0x1_0000_0000, 0x7000_0000_0000, Grows::No)];
        assert_eq!(find(Isa::X64, &map, 0x6000_0000_0000..0x6000_0000_1000, Len(0x1000)), None);
    }

    #[test]
    fn what_nobody_jumps_to_is_far_from_all_code() {
        let map = [
            used(0x5500_0000_0000, 0x5500_0010_0000, Grows::No),
            used(0x7f00_0000_0000, 0x7f00_0010_0000, Grows::No),
            used(0x7f00_4000_0000, 0x7f00_4010_0000, Grows::No),
            used(0x7fff_0000_0000, 0x7fff_0001_0000, Grows::Down),
        ];
        let at = aside(&map, Len(0x10_0000)).unwrap().0;
        assert!(map.iter().all(|u| at + 0x10_0000 + REACH < u.start || at > u.end + REACH), "{at:#x}");
        assert!(at > 0x7f00_4010_0000);
        let full = [used(0x10000, HIGHEST - (4 << 30), Grows::No)];
        assert_eq!(aside(&full, Len(0x1000)), None);
    }

    #[test]
    fn the_room_of_a_32_bit_process_is_below_its_libraries() {
        let taken = [0..LOWEST, 0x5655_5000..0x6655_9000, 0xf7cf_a000..0xf7f6_1000, 0xefea_f000..HIGHEST_32];
        assert_eq!(own_room(&taken[..3], 0), Some(0xf7cf_a000 - OWN_ROOM..0xf7cf_a000));
        // Jumps of Arm do not reach over it.
        assert_eq!(own_room(&taken[..3], 1 << 25), Some(0xf5cf_a000 - OWN_ROOM..0xf5cf_a000));
        // Not in a gap that is too narrow.
        let narrow = [taken[0].clone(), taken[1].clone(), 0x7000_0000..HIGHEST_32];
        assert_eq!(own_room(&narrow, 0), Some(0x5655_5000 - OWN_ROOM..0x5655_5000));
    }

    #[test]
    fn what_is_forbidden_is_apart() {
        let map = [used(0x40_0000, 0x50_0000, Grows::No), used(0x50_0000, 0x60_0000, Grows::Up)];
        let all = forbidden(&map);
        assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start), "{all:?}");
        assert!(all.contains(&(0x40_0000..0x60_0000 + GROWTH)) && all.contains(&(LOW..LOW + LOW_ROOM)), "{all:?}");
    }

    #[test]
    fn everything_of_the_module_is_within_two_gigabytes() {
        let map = [used(0x7f00_0000_0000, 0x7f00_4000_0000, Grows::No)];
        let near = 0x7f00_0000_0000..0x7f00_4000_0000;
        let at = find(Isa::X64, &map, near.clone(), Len(0x10000)).unwrap().0;
        assert!(at.abs_diff(near.end) < 2 << 30 && (at + 0x10000).abs_diff(near.start) < 2 << 30);
    }
}
