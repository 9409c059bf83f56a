//! Entries of `.debug_info` → types.

use gimli::{
    AttributeValue, DebugInfoOffset, DebuggingInformationEntry, DwAt, DwTag, Dwarf, EndianSlice, LittleEndian, Reader,
    UnitOffset, UnitSectionOffset, constants as c,
};
use sidestep_isa::Va;

use super::{DataType, DebugInfo, Enumeration, RecordLayout, RecordMember};

pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
pub(super) type Unit<'d> = gimli::Unit<Slice<'d>>;
pub(super) type Entry<'a, 'd> = DebuggingInformationEntry<'a, 'a, Slice<'d>>;

/// Types within types at most: DWARF that contradicts itself may go in circles.
const DEPTH: u32 = 64;
/// Bytes and elements of one type at most.
const LARGEST: u64 = 1 << 40;
/// Enumerators of a type, and members of a record, at most.
const MEMBERS: usize = 65_536;

/// The sections as gimli sees them.
pub(super) struct Reading<'r, 'd> {
    pub(super) info: &'r DebugInfo,
    pub(super) dwarf: &'r Dwarf<Slice<'d>>,
}

impl<'d> Reading<'_, 'd> {
    pub(super) fn unit(&self, at: usize) -> gimli::Result<Unit<'d>> {
        let header = self.dwarf.debug_info.header_from_offset(DebugInfoOffset(at))?;
        self.dwarf.unit(header)
    }

    /// The unit that an entry of `.debug_info` is in, and where in it.
    pub(super) fn around(&self, at: usize) -> gimli::Result<(Unit<'d>, UnitOffset)> {
        let index = self.info.units.partition_point(|unit| *unit <= at);
        let start = *index
            .checked_sub(1)
            .and_then(|index| self.info.units.get(index))
            .ok_or(gimli::Error::NoEntryAtGivenOffset)?;
        Ok((self.unit(start)?, UnitOffset(at - start)))
    }

    /// Where an attribute leads, from a unit on.
    fn follow(&self, unit: &Unit<'d>, value: AttributeValue<Slice<'d>>) -> gimli::Result<Option<usize>> {
        let start = match unit.header.offset() {
            UnitSectionOffset::DebugInfoOffset(at) => at.0,
            UnitSectionOffset::DebugTypesOffset(_) => return Ok(None),
        };
        Ok(match value {
            AttributeValue::UnitRef(at) => Some(start.wrapping_add(at.0)),
            AttributeValue::DebugInfoRef(at) => Some(at.0),
            AttributeValue::DebugTypesRef(signature) => self.type_unit(signature)?,
            _ => None,
        })
    }

    /// The type of a type unit.
    fn type_unit(&self, signature: gimli::DebugTypeSignature) -> gimli::Result<Option<usize>> {
        for at in &self.info.units {
            let header = self.dwarf.debug_info.header_from_offset(DebugInfoOffset(*at))?;
            if let gimli::UnitType::Type { type_signature, type_offset } = header.type_() {
                if type_signature == signature {
                    return Ok(Some(at.wrapping_add(type_offset.0)));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn reference(
        &self,
        unit: &Unit<'d>,
        entry: &Entry<'_, 'd>,
        attribute: DwAt,
    ) -> gimli::Result<Option<usize>> {
        match entry.attr_value(attribute)? {
            Some(value) => self.follow(unit, value),
            None => Ok(None),
        }
    }

    pub(super) fn text(
        &self,
        unit: &Unit<'d>,
        entry: &Entry<'_, 'd>,
        attribute: DwAt,
    ) -> gimli::Result<Option<String>> {
        let Some(value) = entry.attr_value(attribute)? else { return Ok(None) };
        Ok(Some(self.dwarf.attr_string(unit, value)?.to_string_lossy().into_owned()))
    }

    pub(super) fn number(entry: &Entry<'_, 'd>, attribute: DwAt) -> gimli::Result<Option<u64>> {
        Ok(entry.attr(attribute)?.and_then(|attribute| attribute.udata_value()))
    }

    pub(super) fn flag(entry: &Entry<'_, 'd>, attribute: DwAt) -> gimli::Result<bool> {
        Ok(matches!(entry.attr_value(attribute)?, Some(AttributeValue::Flag(true))))
    }

    /// Where the unit begins whose code is at an address.
    pub(super) fn unit_of(&self, va: Va) -> gimli::Result<Option<usize>> {
        let mut headers = self.dwarf.debug_aranges.headers();
        while let Some(header) = headers.next()? {
            let mut entries = header.entries();
            while let Some(range) = entries.next()? {
                if range.address() <= va.0 && va.0 - range.address() < range.length() {
                    return Ok(Some(header.debug_info_offset().0));
                }
            }
        }
        for at in &self.info.units {
            let unit = self.unit(*at)?;
            let mut ranges = self.dwarf.unit_ranges(&unit)?;
            while let Some(range) = ranges.next()? {
                if range.begin <= va.0 && va.0 < range.end {
                    return Ok(Some(*at));
                }
            }
        }
        Ok(None)
    }

    /// Shows all entries right within one.
    pub(super) fn children(
        &self,
        unit: &Unit<'d>,
        at: UnitOffset,
        mut see: impl FnMut(&Entry<'_, 'd>) -> gimli::Result<()>,
    ) -> gimli::Result<()> {
        let mut tree = unit.entries_tree(Some(at))?;
        let mut children = tree.root()?.children();
        while let Some(child) = children.next()? {
            see(child.entry())?;
        }
        Ok(())
    }

    pub(super) fn data_type(&self, place: usize, depth: u32) -> gimli::Result<DataType> {
        if depth > DEPTH {
            return Err(gimli::Error::NoEntryAtGivenOffset);
        }
        let (unit, at) = self.around(place)?;
        let entry = unit.entry(at)?;
        let inner = |reading: &Self| -> gimli::Result<DataType> {
            match reading.reference(&unit, &entry, c::DW_AT_type)? {
                Some(of) => reading.data_type(of, depth + 1),
                None => Ok(DataType::Void),
            }
        };
        let size = Self::number(&entry, c::DW_AT_byte_size)?;
        Ok(match entry.tag() {
            c::DW_TAG_base_type => {
                let encoding = match entry.attr_value(c::DW_AT_encoding)? {
                    Some(AttributeValue::Encoding(encoding)) => encoding,
                    _ => c::DW_ATE_unsigned,
                };
                let bytes = size.unwrap_or(0);
                let signed = matches!(encoding, c::DW_ATE_signed | c::DW_ATE_signed_char);
                match (encoding, bytes) {
                    (c::DW_ATE_float, 1..=16) => DataType::Float(bytes as u8),
                    (c::DW_ATE_boolean, 1) => DataType::Bool,
                    (c::DW_ATE_signed_char | c::DW_ATE_unsigned_char, 1)
                        if self.text(&unit, &entry, c::DW_AT_name)?.as_deref() == Some("char") =>
                    {
                        DataType::Char
                    }
                    (_, 1 | 2 | 4 | 8) => DataType::Number { bytes: bytes as u8, signed },
                    (_, bytes) => bytes_of(bytes),
                }
            }
            c::DW_TAG_pointer_type | c::DW_TAG_reference_type | c::DW_TAG_rvalue_reference_type => {
                DataType::Pointer(Box::new(inner(self)?))
            }
            c::DW_TAG_unspecified_type => DataType::Pointer(Box::new(DataType::Void)),
            c::DW_TAG_subroutine_type => DataType::Function,
            c::DW_TAG_array_type => {
                let mut ty = inner(self)?;
                for length in self.lengths(&unit, at)?.into_iter().rev() {
                    ty = DataType::Array(Box::new(ty), length);
                }
                ty
            }
            c::DW_TAG_structure_type | c::DW_TAG_class_type | c::DW_TAG_union_type => {
                let keyword = keyword(entry.tag());
                let name = self.text(&unit, &entry, c::DW_AT_name)?;
                let name = name.unwrap_or_else(|| format!("(anonymous {place:#x})"));
                DataType::Record { name: format!("{keyword} {name}"), place: place as u64 }
            }
            c::DW_TAG_enumeration_type => DataType::Enum(self.enumeration(&unit, at)?),
            c::DW_TAG_ptr_to_member_type => bytes_of(size.unwrap_or(8)),
            c::DW_TAG_typedef
            | c::DW_TAG_const_type
            | c::DW_TAG_volatile_type
            | c::DW_TAG_restrict_type
            | c::DW_TAG_atomic_type
            | c::DW_TAG_immutable_type
            | c::DW_TAG_template_alias
            | c::DW_TAG_subrange_type => inner(self)?,
            _ => bytes_of(size.unwrap_or(0)),
        })
    }

    /// Lengths of an array; 0 if one is not known.
    fn lengths(&self, unit: &Unit<'d>, at: UnitOffset) -> gimli::Result<Vec<u64>> {
        let mut lengths = Vec::new();
        self.children(unit, at, |child| {
            if child.tag() == c::DW_TAG_subrange_type {
                let length = match Self::number(child, c::DW_AT_count)? {
                    Some(count) => Some(count),
                    None => Self::number(child, c::DW_AT_upper_bound)?.map(|last| last.wrapping_add(1)),
                };
                lengths.push(length.unwrap_or(0).min(LARGEST));
            }
            Ok(())
        })?;
        Ok(lengths)
    }

    fn enumeration(&self, unit: &Unit<'d>, at: UnitOffset) -> gimli::Result<Enumeration> {
        let entry = unit.entry(at)?;
        let name = self.text(unit, &entry, c::DW_AT_name)?.unwrap_or_default();
        let bytes = match Self::number(&entry, c::DW_AT_byte_size)? {
            Some(bytes @ (1 | 2 | 4 | 8)) => bytes as u8,
            _ => 4,
        };
        let mut values = Vec::new();
        let mut signed = false;
        self.children(unit, at, |child| {
            if child.tag() != c::DW_TAG_enumerator || values.len() >= MEMBERS {
                return Ok(());
            }
            let value = child.attr(c::DW_AT_const_value)?;
            let value = value.and_then(|value| match value.value() {
                AttributeValue::Sdata(n) => {
                    signed |= n < 0;
                    Some(n as u64)
                }
                _ => value.udata_value(),
            });
            if let (Some(name), Some(value)) = (self.text(unit, child, c::DW_AT_name)?, value) {
                values.push((name, value));
            }
            Ok(())
        })?;
        Ok(Enumeration { name: format!("enum {name}").trim_end().to_owned(), bytes, signed, values })
    }

    /// `Err`: it is only declared, under this name.
    pub(super) fn layout(&self, place: u64) -> gimli::Result<Result<RecordLayout, String>> {
        let (unit, at) = self.around(place as usize)?;
        let entry = unit.entry(at)?;
        if Self::flag(&entry, c::DW_AT_declaration)? {
            if let Some(full) = self.reference(&unit, &entry, c::DW_AT_signature)? {
                return self.layout(full as u64);
            }
            let name = self.text(&unit, &entry, c::DW_AT_name)?.unwrap_or_default();
            return Ok(Err(format!("{} {name}", keyword(entry.tag()))));
        }
        let size = Self::number(&entry, c::DW_AT_byte_size)?.unwrap_or(0).min(LARGEST);
        let mut members = Vec::new();
        self.children(&unit, at, |child| {
            let is_member = matches!(child.tag(), c::DW_TAG_member | c::DW_TAG_inheritance);
            // A static member is a variable.
            if !is_member || members.len() >= MEMBERS || Self::flag(child, c::DW_AT_external)? {
                return Ok(());
            }
            let Some(ty) = self.reference(&unit, child, c::DW_AT_type)? else { return Ok(()) };
            let text = self.name(ty, 0)?;
            let data = self.data_type(ty, 0)?;
            let width = Self::number(child, c::DW_AT_bit_size)?;
            let start = Self::number(child, c::DW_AT_data_member_location)?.unwrap_or(0);
            let start = 8 * start.min(LARGEST);
            let bit = match (Self::number(child, c::DW_AT_data_bit_offset)?, Self::number(child, c::DW_AT_bit_offset)?)
            {
                (Some(bit), _) => bit.min(8 * LARGEST),
                // Before DWARF 4: counted from the highest bit of what the field is stored in.
                (None, Some(from_top)) => {
                    let storage = Self::number(child, c::DW_AT_byte_size)?.or(number_size(&data)).unwrap_or(4);
                    (start + 8 * storage.min(LARGEST)).wrapping_sub(from_top).wrapping_sub(width.unwrap_or(0))
                }
                (None, None) => start,
            };
            let name = self.text(&unit, child, c::DW_AT_name)?.unwrap_or_default();
            members.push(RecordMember { name, ty: value_of(data), text, bit, width: width.map(|width| width as u32) });
            Ok(())
        })?;
        Ok(Ok(RecordLayout { size, members }))
    }

    /// A type as the source has it.
    pub(super) fn name(&self, place: usize, depth: u32) -> gimli::Result<String> {
        if depth > DEPTH {
            return Err(gimli::Error::NoEntryAtGivenOffset);
        }
        let (unit, at) = self.around(place)?;
        let entry = unit.entry(at)?;
        let own = self.text(&unit, &entry, c::DW_AT_name)?;
        let inner = |reading: &Self| -> gimli::Result<String> {
            match reading.reference(&unit, &entry, c::DW_AT_type)? {
                Some(of) => reading.name(of, depth + 1),
                None => Ok("void".to_owned()),
            }
        };
        Ok(match entry.tag() {
            c::DW_TAG_pointer_type => match own {
                // Rust names its pointers.
                Some(name) => name,
                None => inner(self)? + "*",
            },
            c::DW_TAG_reference_type => inner(self)? + "&",
            c::DW_TAG_rvalue_reference_type => inner(self)? + "&&",
            c::DW_TAG_const_type => match inner(self)? {
                of if of.ends_with('*') => of + " const",
                of => format!("const {of}"),
            },
            c::DW_TAG_volatile_type => format!("volatile {}", inner(self)?),
            c::DW_TAG_restrict_type | c::DW_TAG_atomic_type => inner(self)?,
            c::DW_TAG_subroutine_type => "func".to_owned(),
            c::DW_TAG_array_type => {
                let lengths = self.lengths(&unit, at)?;
                inner(self)? + &lengths.iter().map(|length| format!("[{length}]")).collect::<String>()
            }
            c::DW_TAG_structure_type | c::DW_TAG_class_type | c::DW_TAG_union_type => {
                let is_c = !matches!(entry.tag(), c::DW_TAG_class_type);
                let prefix = if is_c { keyword(entry.tag()).to_owned() + " " } else { String::new() };
                prefix + &own.unwrap_or_else(|| "(anonymous)".to_owned())
            }
            c::DW_TAG_enumeration_type => format!("enum {}", own.unwrap_or_else(|| "(anonymous)".to_owned())),
            _ => own.unwrap_or_else(|| "?".to_owned()),
        })
    }

    pub(super) fn find(&self, name: &str, near: Option<Va>) -> gimli::Result<Option<DataType>> {
        let (keyword, bare) = match name.split_once(' ') {
            Some((keyword @ ("struct" | "union" | "enum"), bare)) => (keyword, bare),
            _ => ("", name),
        };
        let first = match near {
            Some(va) => self.unit_of(va)?,
            None => None,
        };
        let others = self.info.units.iter().copied().filter(|at| Some(*at) != first);
        let mut declared = None;
        for start in first.into_iter().chain(others) {
            let unit = self.unit(start)?;
            let mut cursor = unit.entries();
            if cursor.next_dfs()?.is_none() || cursor.next_entry()?.is_none() {
                continue;
            }
            let mut entry = cursor.current().cloned();
            while let Some(found) = entry {
                if is_kind(found.tag(), keyword) && self.is_named(&unit, &found, bare)? {
                    let place = start + found.offset().0;
                    if !Self::flag(&found, c::DW_AT_declaration)? {
                        return self.data_type(place, 0).map(Some);
                    }
                    declared.get_or_insert(place);
                }
                // Of the unit where it is wanted, also what is in namespaces and functions.
                entry = match Some(start) == first {
                    true => cursor.next_dfs()?.map(|(_, entry)| entry.clone()),
                    false => cursor.next_sibling()?.cloned(),
                };
            }
        }
        match declared.filter(|_| keyword == "enum") {
            Some(place) => self.data_type(place, 0).map(Some),
            None => Ok(None),
        }
    }

    fn is_named(&self, unit: &Unit<'d>, entry: &Entry<'_, 'd>, name: &str) -> gimli::Result<bool> {
        let Some(value) = entry.attr_value(c::DW_AT_name)? else { return Ok(false) };
        Ok(self.dwarf.attr_string(unit, value)?.to_slice()?.as_ref() == name.as_bytes())
    }

    pub(super) fn constant(&self, name: &str, near: Va) -> gimli::Result<Option<Enumeration>> {
        let Some(start) = self.unit_of(near)? else { return Ok(None) };
        let unit = self.unit(start)?;
        let mut cursor = unit.entries();
        let mut around = None;
        while let Some((_, entry)) = cursor.next_dfs()? {
            match entry.tag() {
                c::DW_TAG_enumeration_type => around = Some(entry.offset()),
                c::DW_TAG_enumerator if self.is_named(&unit, entry, name)? => {
                    return around.map(|at| self.enumeration(&unit, at)).transpose();
                }
                _ => {}
            }
        }
        Ok(None)
    }
}

/// What has no better description.
fn bytes_of(bytes: u64) -> DataType {
    let byte = DataType::Number { bytes: 1, signed: false };
    let word = DataType::Number { bytes: 8, signed: false };
    match bytes {
        16 => DataType::Array(Box::new(word), 2),
        bytes => DataType::Array(Box::new(byte), bytes),
    }
}

fn number_size(ty: &DataType) -> Option<u64> {
    match ty {
        DataType::Number { bytes, .. } => Some((*bytes).into()),
        DataType::Enum(of) => Some(of.bytes.into()),
        DataType::Char | DataType::Bool => Some(1),
        _ => None,
    }
}

fn keyword(tag: DwTag) -> &'static str {
    if tag == c::DW_TAG_union_type { "union" } else { "struct" }
}

/// Whether an entry may have a name that comes with this keyword.
fn is_kind(tag: DwTag, keyword: &str) -> bool {
    match keyword {
        "struct" => matches!(tag, c::DW_TAG_structure_type | c::DW_TAG_class_type),
        "union" => tag == c::DW_TAG_union_type,
        "enum" => tag == c::DW_TAG_enumeration_type,
        _ => matches!(tag, c::DW_TAG_typedef | c::DW_TAG_structure_type | c::DW_TAG_class_type | c::DW_TAG_base_type),
    }
}

/// What holds a value of a type: a function of Go is the address of what it closes over.
pub(super) fn value_of(ty: DataType) -> DataType {
    if ty == DataType::Function { DataType::Pointer(Box::new(DataType::Void)) } else { ty }
}
