//! Units: which file and section an entry is in, and which unit has the code at an address.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;

use gimli::{
    DebugInfoOffset, DebugTypeSignature, DebugTypes, Dwarf, DwarfPackage, EndianSlice, LittleEndian, Section,
    UnitHeader, UnitOffset, UnitType,
};
use sidestep_isa::{Isa, Va};

use super::DebugInfo;
use super::read::Slice;
use crate::dwarf::split::{Missing, Skeleton};

/// Units that stay read.
const KEPT: usize = 64;
/// Ranges that begin at most so many places before an address may be around it.
const AROUND: usize = 16;

/// An entry: in which space, and where in it. Sections have at most 4 GiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Die(pub(super) u64);

/// `.debug_info` of the object.
const INFO: u32 = 0;
/// `.debug_types` of the object (DWARF 4).
const TYPES: u32 = 1;
/// From here on those of split units, two for each unit of the object.
const SPLIT: u32 = 2;
/// From here on the type units of a package, by their rows.
const PACKED: u32 = 1 << 31;

impl Die {
    fn new(space: u32, at: usize) -> Die {
        Die(u64::from(space) << 32 | at as u64 & 0xffff_ffff)
    }

    fn space(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn at(self) -> usize {
        self.0 as u32 as usize
    }
}

/// A section with units.
pub(super) struct Space<'d> {
    id: u32,
    dwarf: Rc<Dwarf<Slice<'d>>>,
    /// Where they begin, ascending.
    starts: Cow<'d, [usize]>,
    /// They are in `.debug_types`.
    types: bool,
    /// The unit of the object that these units belong to, by its number.
    skeleton: Option<usize>,
    /// Types of type units by their signatures.
    signatures: OnceCell<HashMap<u64, usize>>,
}

impl<'d> Space<'d> {
    fn new(id: u32, dwarf: Rc<Dwarf<Slice<'d>>>, types: bool, skeleton: Option<usize>) -> gimli::Result<Self> {
        let starts = Cow::Owned(if types { type_units(&dwarf)? } else { units(&dwarf)? });
        Ok(Space { id, dwarf, starts, types, skeleton, signatures: OnceCell::new() })
    }

    fn header(&self, at: usize) -> gimli::Result<UnitHeader<Slice<'d>>> {
        if !self.types {
            return self.dwarf.debug_info.header_from_offset(DebugInfoOffset(at));
        }
        let section = self.dwarf.debug_types.reader().slice();
        let rest = section.get(at..).ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        DebugTypes::new(rest, LittleEndian).units().next()?.ok_or(gimli::Error::NoEntryAtGivenOffset)
    }

    fn of_signature(&self, signature: u64) -> Option<Die> {
        let read = || {
            let types = self.starts.iter().filter_map(|start| match self.header(*start).ok()?.type_() {
                UnitType::Type { type_signature, type_offset }
                | UnitType::SplitType { type_signature, type_offset } => {
                    Some((type_signature.0, start.checked_add(type_offset.0)?))
                }
                _ => None,
            });
            types.collect()
        };
        self.signatures.get_or_init(read).get(&signature).map(|at| Die::new(self.id, *at))
    }
}

/// Where the units of `.debug_info` begin.
pub(super) fn units(dwarf: &Dwarf<Slice<'_>>) -> gimli::Result<Vec<usize>> {
    let (mut found, mut headers) = (Vec::new(), dwarf.units());
    while let Some(header) = headers.next()? {
        found.extend(header.offset().as_debug_info_offset().map(|at| at.0));
    }
    Ok(found)
}

/// Where the units of `.debug_types` begin.
pub(super) fn type_units(dwarf: &Dwarf<Slice<'_>>) -> gimli::Result<Vec<usize>> {
    let (mut found, mut headers) = (Vec::new(), dwarf.type_units());
    while let Some(header) = headers.next()? {
        found.extend(header.offset().as_debug_types_offset().map(|at| at.0));
    }
    Ok(found)
}

/// A unit and where it is.
pub(super) struct Unit<'d> {
    space: Rc<Space<'d>>,
    start: usize,
    unit: gimli::Unit<Slice<'d>>,
}

impl<'d> Deref for Unit<'d> {
    type Target = gimli::Unit<Slice<'d>>;

    fn deref(&self) -> &Self::Target {
        &self.unit
    }
}

impl<'d> Unit<'d> {
    /// The sections that its attributes lead to.
    pub(super) fn dwarf(&self) -> &Dwarf<Slice<'d>> {
        &self.space.dwarf
    }

    /// One of its entries, as others name it.
    pub(super) fn die(&self, at: UnitOffset) -> Die {
        Die::new(self.space.id, self.start.wrapping_add(at.0))
    }

    /// An entry of the same section.
    pub(super) fn die_of_section(&self, at: DebugInfoOffset) -> Die {
        Die::new(self.space.id, at.0)
    }
}

/// The sections as gimli sees them.
pub(super) struct Reading<'d> {
    info: &'d DebugInfo,
    main: Rc<Dwarf<Slice<'d>>>,
    package: OnceCell<Option<DwarfPackage<Slice<'d>>>>,
    spaces: RefCell<HashMap<u32, Option<Rc<Space<'d>>>>>,
    units: RefCell<HashMap<Die, Rc<Unit<'d>>>>,
    missing: RefCell<Option<&'d Missing>>,
}

impl<'d> Reading<'d> {
    pub(super) fn new(info: &'d DebugInfo) -> Reading<'d> {
        let main = Rc::new(info.dwarf());
        let space = |id, starts: &'d [usize], types| {
            let (dwarf, starts) = (Rc::clone(&main), Cow::Borrowed(starts));
            (id, Some(Rc::new(Space { id, dwarf, starts, types, skeleton: None, signatures: OnceCell::new() })))
        };
        let spaces = [space(INFO, &info.units, false), space(TYPES, &info.type_units, true)];
        Reading {
            info,
            main: Rc::clone(&main),
            package: OnceCell::new(),
            spaces: RefCell::new(spaces.into_iter().collect()),
            units: RefCell::default(),
            missing: RefCell::default(),
        }
    }

    /// Its instruction set.
    pub(super) fn isa(&self) -> Isa {
        self.info.isa
    }

    /// How many units the object has.
    pub(super) fn count(&self) -> usize {
        self.info.units.len()
    }

    /// The first split file that was looked for in vain.
    pub(super) fn missing(&self) -> Option<&'d Missing> {
        *self.missing.borrow()
    }

    /// The unit that an entry is in, and where in it.
    pub(super) fn around(&self, die: Die) -> gimli::Result<(Rc<Unit<'d>>, UnitOffset)> {
        let space = self.space(die.space())?.ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        let index = space.starts.partition_point(|start| *start <= die.at());
        let start = index.checked_sub(1).and_then(|index| space.starts.get(index));
        let start = *start.ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        Ok((self.unit(&space, start)?, UnitOffset(die.at() - start)))
    }

    /// The unit that begins at a place.
    fn unit(&self, space: &Rc<Space<'d>>, start: usize) -> gimli::Result<Rc<Unit<'d>>> {
        let key = Die::new(space.id, start);
        if let Some(unit) = self.units.borrow().get(&key) {
            return Ok(Rc::clone(unit));
        }
        let mut unit = space.dwarf.unit(space.header(start)?)?;
        if let Some(index) = space.skeleton {
            unit.copy_relocated_attributes(&self.skeleton(index)?.unit);
        }
        let unit = Rc::new(Unit { space: Rc::clone(space), start, unit });
        let mut kept = self.units.borrow_mut();
        if kept.len() >= KEPT {
            kept.clear();
        }
        kept.insert(key, Rc::clone(&unit));
        Ok(unit)
    }

    /// A unit of the object, by its number.
    fn skeleton(&self, index: usize) -> gimli::Result<Rc<Unit<'d>>> {
        let main = self.space(INFO)?.ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        let start = *self.info.units.get(index).ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        self.unit(&main, start)
    }

    /// A unit of the object with all of its entries; `None`: its file is missing.
    fn compiled(&self, index: usize) -> gimli::Result<Option<Rc<Unit<'d>>>> {
        self.described(index)?.first().map(|at| self.unit_at(*at)).transpose()
    }

    /// The unit that begins at an entry.
    pub(super) fn unit_at(&self, at: Die) -> gimli::Result<Rc<Unit<'d>>> {
        self.around(at).map(|(unit, _)| unit)
    }

    /// What describes a unit of the object: itself, or what it is split into, which is a unit and
    /// type units. None: its file is missing.
    pub(super) fn described(&self, index: usize) -> gimli::Result<Vec<Die>> {
        let unit = self.skeleton(index)?;
        if unit.dwo_id.is_none() || unit.dwo_name()?.is_none() {
            return Ok(vec![Die::new(INFO, unit.start)]);
        }
        let id = SPLIT.saturating_add(2 * index as u32);
        let mut found = Vec::new();
        for id in [id, id + 1] {
            let Some(space) = self.space(id)? else { continue };
            found.extend(space.starts.iter().map(|start| Die::new(id, *start)));
        }
        // Type units may be in front.
        let is_it = |at: &Die| self.unit_at(*at).is_ok_and(|full| full.dwo_id == unit.dwo_id);
        if let Some(position) = found.iter().position(is_it) {
            found[..=position].rotate_right(1);
        }
        Ok(found)
    }

    /// Type units that are of no unit alone.
    pub(super) fn shared(&self) -> gimli::Result<Vec<Die>> {
        let mut found: Vec<Die> = self.info.type_units.iter().map(|start| Die::new(TYPES, *start)).collect();
        let rows = self.package().map_or(0, |package| package.tu_index.unit_count());
        found.extend((1..=rows.min(!PACKED)).map(|row| Die::new(PACKED | row, 0)));
        Ok(found)
    }

    fn space(&self, id: u32) -> gimli::Result<Option<Rc<Space<'d>>>> {
        if let Some(space) = self.spaces.borrow().get(&id) {
            return Ok(space.clone());
        }
        let opened = match id {
            PACKED.. => self.packed(id)?,
            _ => {
                let index = (id - SPLIT) as usize / 2;
                let dwarf = self.split(index)?.map(Rc::new);
                let space =
                    |id, types| dwarf.clone().map(|dwarf| Space::new(id, dwarf, types, Some(index))).transpose();
                let (info, types) = (id & !1, id | 1);
                let pair = [(info, space(info, false)?), (types, space(types, true)?)];
                self.spaces.borrow_mut().extend(pair.map(|(id, space)| (id, space.map(Rc::new))));
                return Ok(self.spaces.borrow().get(&id).cloned().flatten());
            }
        };
        let opened = opened.map(Rc::new);
        self.spaces.borrow_mut().insert(id, opened.clone());
        Ok(opened)
    }

    /// What the file, or the package, of a unit of the object has.
    fn split(&self, index: usize) -> gimli::Result<Option<Dwarf<Slice<'d>>>> {
        let unit = self.skeleton(index)?;
        let (Some(id), Some(name)) = (unit.dwo_id, unit.dwo_name()?) else { return Ok(None) };
        if let Some(package) = self.package() {
            if let Some(found) = package.find_cu(id, &self.main)? {
                return Ok(Some(found));
            }
        }
        let name = self.main.attr_string(&unit, name)?;
        let dir = unit.comp_dir.map_or(&[][..], |dir| dir.slice());
        let open = || self.info.split.open(&Skeleton { id, name: name.slice(), dir }).map(Box::new).map_err(Box::new);
        let file = self.info.files.get(index).ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        match file.get_or_init(open) {
            Ok(sections) => {
                let mut dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, LittleEndian));
                dwarf.make_dwo(&self.main);
                Ok(Some(dwarf))
            }
            Err(missing) => {
                self.missing.borrow_mut().get_or_insert(missing);
                Ok(None)
            }
        }
    }

    fn package(&self) -> Option<&DwarfPackage<Slice<'d>>> {
        let read = || {
            let sections = self.info.package.get_or_init(|| self.info.split.package()).as_ref()?;
            let slice = |bytes: &'d Vec<u8>| EndianSlice::new(bytes, LittleEndian);
            sections.borrow(slice, EndianSlice::new(&[], LittleEndian)).ok()
        };
        self.package.get_or_init(read).as_ref()
    }

    /// A type unit of the package.
    fn packed(&self, id: u32) -> gimli::Result<Option<Space<'d>>> {
        let Some(package) = self.package() else { return Ok(None) };
        let dwarf = Rc::new(package.tu_sections(id - PACKED, &self.main)?);
        let types = !dwarf.debug_types.reader().is_empty();
        Space::new(id, dwarf, types, None).map(Some)
    }

    /// The type of a type unit, which a unit names by its signature.
    pub(super) fn type_unit(&self, unit: &Unit<'d>, signature: DebugTypeSignature) -> gimli::Result<Option<Die>> {
        let id = unit.space.id;
        if id < PACKED {
            for id in [id & !1, id | 1] {
                let found = self.space(id)?.and_then(|space| space.of_signature(signature.0));
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        let Some(row) = self.package().and_then(|package| package.tu_index.find(signature.0)) else { return Ok(None) };
        let space = self.space(PACKED | row & !PACKED)?;
        Ok(space.and_then(|space| space.of_signature(signature.0)))
    }

    /// The unit whose code is at an address, with all of its entries.
    pub(super) fn unit_of(&self, va: Va) -> gimli::Result<Option<Rc<Unit<'d>>>> {
        match self.index_of(va)? {
            Some(index) => self.compiled(index),
            None => Ok(None),
        }
    }

    /// By its number.
    pub(super) fn index_of(&self, va: Va) -> gimli::Result<Option<usize>> {
        let of_table = match self.info.aranges.get_or_init(|| self.aranges()) {
            Ok(table) => find(table, va.0),
            Err(error) => return Err(*error),
        };
        if of_table.is_some() {
            return Ok(of_table);
        }
        match self.info.ranges.get_or_init(|| self.ranges()) {
            Ok(table) => Ok(find(table, va.0)),
            Err(error) => Err(*error),
        }
    }

    /// What compilers have written down of each unit.
    fn aranges(&self) -> gimli::Result<Vec<Range>> {
        let mut table = Vec::new();
        let mut headers = self.main.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            let Ok(unit) = self.info.units.binary_search(&header.debug_info_offset().0) else { continue };
            let mut entries = header.entries();
            while let Some(range) = entries.next()? {
                table.push(Range { begin: range.address(), end: range.address().saturating_add(range.length()), unit });
            }
        }
        table.sort_unstable_by_key(|range| range.begin);
        Ok(table)
    }

    fn ranges(&self) -> gimli::Result<Vec<Range>> {
        let mut table = Vec::new();
        for (index, start) in self.info.units.iter().enumerate() {
            // What is wrong with one unit does not hide the others.
            let header = self.main.debug_info.header_from_offset(DebugInfoOffset(*start));
            let Ok(unit) = header.and_then(|header| self.main.unit(header)) else { continue };
            let Ok(mut ranges) = self.main.unit_ranges(&unit) else { continue };
            while let Ok(Some(range)) = ranges.next() {
                table.push(Range { begin: range.begin, end: range.end, unit: index });
            }
        }
        table.sort_unstable_by_key(|range| range.begin);
        Ok(table)
    }
}

/// Addresses of a unit of the object, which is known by its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    begin: u64,
    end: u64,
    unit: usize,
}

/// The unit around an address.
fn find(table: &[Range], va: u64) -> Option<usize> {
    let behind = table.partition_point(|range| range.begin <= va);
    table[..behind].iter().rev().take(AROUND).find(|range| va < range.end).map(|range| range.unit)
}
