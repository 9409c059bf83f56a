//! Entries of `.debug_info` → types.

use gimli::{
    AttributeValue, DebuggingInformationEntry, DwAt, DwTag, EndianSlice, LittleEndian, Reader, UnitOffset,
    constants as c,
};
use sidestep_isa::Va;

use super::units::{Die, Reading, Unit};
use super::{DataType, Enumeration, Language, RecordLayout, RecordMember, Variants};

pub(super) type Slice<'d> = EndianSlice<'d, LittleEndian>;
pub(super) type Entry<'a, 'd> = DebuggingInformationEntry<'a, 'a, Slice<'d>>;

/// Types within types at most: DWARF that contradicts itself may go in circles.
const DEPTH: u32 = 64;
/// Bytes and elements of one type at most.
const LARGEST: u64 = 1 << 40;
/// Enumerators of a type, and members of a record, at most.
const MEMBERS: usize = 65_536;

impl<'d> Reading<'d> {
    /// Where an attribute leads, from a unit on.
    fn follow(&self, unit: &Unit<'d>, value: AttributeValue<Slice<'d>>) -> gimli::Result<Option<Die>> {
        Ok(match value {
            AttributeValue::UnitRef(at) => Some(unit.die(at)),
            AttributeValue::DebugInfoRef(at) => Some(unit.die_of_section(at)),
            AttributeValue::DebugTypesRef(signature) => self.type_unit(unit, signature)?,
            _ => None,
        })
    }

    pub(super) fn reference(
        &self,
        unit: &Unit<'d>,
        entry: &Entry<'_, 'd>,
        attribute: DwAt,
    ) -> gimli::Result<Option<Die>> {
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
        Ok(Some(unit.dwarf().attr_string(unit, value)?.to_string_lossy().into_owned()))
    }

    pub(super) fn number(entry: &Entry<'_, 'd>, attribute: DwAt) -> gimli::Result<Option<u64>> {
        Ok(entry.attr(attribute)?.and_then(|attribute| attribute.udata_value()))
    }

    pub(super) fn flag(entry: &Entry<'_, 'd>, attribute: DwAt) -> gimli::Result<bool> {
        Ok(matches!(entry.attr_value(attribute)?, Some(AttributeValue::Flag(true))))
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

    pub(super) fn data_type(&self, place: Die, depth: u32) -> gimli::Result<DataType> {
        if depth > DEPTH {
            return Err(gimli::Error::NoEntryAtGivenOffset);
        }
        let (unit, at) = self.around(place)?;
        let entry = unit.entry(at)?;
        // What stands for the type of a type unit has nothing else, not even a name.
        if let Some(full) = self.reference(&unit, &entry, c::DW_AT_signature)? {
            return self.data_type(full, depth + 1);
        }
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
                    // Where Rust passes its own, only the compiler knows.
                    (c::DW_ATE_signed | c::DW_ATE_unsigned, 16)
                        if self.isa().limits().bits == 64 && language(&unit)? != Some(Language::Rust) =>
                    {
                        DataType::Wide
                    }
                    (_, bytes) => bytes_of(bytes),
                }
            }
            // Rust has its references among the pointers, by name.
            c::DW_TAG_pointer_type => match self.text(&unit, &entry, c::DW_AT_name)? {
                Some(name) if name.starts_with('&') => DataType::Reference(Box::new(inner(self)?)),
                _ => DataType::Pointer(Box::new(inner(self)?)),
            },
            c::DW_TAG_reference_type | c::DW_TAG_rvalue_reference_type => DataType::Reference(Box::new(inner(self)?)),
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
                let name = name.unwrap_or_else(|| format!("(anonymous {:#x})", place.0));
                DataType::Record { name: format!("{keyword} {name}"), place: place.0 }
            }
            c::DW_TAG_enumeration_type => DataType::Enum(self.enumeration(&unit, at)?),
            c::DW_TAG_ptr_to_member_type => {
                let word = u64::from(unit.header.address_size());
                // Of a function: also how far the object is moved (Itanium C++ ABI, 2.3).
                let words = if inner(self)? == DataType::Function { 2 } else { 1 };
                bytes_of(size.unwrap_or(words * word))
            }
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
    pub(super) fn layout(&self, place: Die) -> gimli::Result<Result<RecordLayout, String>> {
        let (unit, at) = self.around(place)?;
        let entry = unit.entry(at)?;
        if Self::flag(&entry, c::DW_AT_declaration)? {
            let name = self.text(&unit, &entry, c::DW_AT_name)?.unwrap_or_default();
            return Ok(Err(format!("{} {name}", keyword(entry.tag()))));
        }
        let size = Self::number(&entry, c::DW_AT_byte_size)?.unwrap_or(0).min(LARGEST);
        let mut layout =
            RecordLayout { size, members: Vec::new(), variants: None, language: language(&unit)?, parameter: None };
        let mut told = true;
        self.children(&unit, at, |child| match child.tag() {
            c::DW_TAG_variant_part => {
                // Of two parts, each would have its own.
                told &= layout.variants.is_none();
                told &= self.variants(&unit, child, &mut layout)?;
                Ok(())
            }
            c::DW_TAG_template_type_parameter if layout.parameter.is_none() => {
                if let Some(of) = self.reference(&unit, child, c::DW_AT_type)? {
                    // Nobody needs it for the members.
                    layout.parameter = self.data_type(of, 0).ok();
                }
                Ok(())
            }
            _ => self.member(&unit, child, "", &mut layout).map(|_| ()),
        })?;
        if !told {
            layout.variants = Some(Variants::default());
        }
        Ok(Ok(layout))
    }

    /// Adds the variants of one of Rust's enumerations, which are members, too, and so is what
    /// tells which it is. `false`: not all of them can be told from each other.
    fn variants(&self, unit: &Unit<'d>, part: &Entry<'_, 'd>, layout: &mut RecordLayout) -> gimli::Result<bool> {
        let (mut found, mut told) = (Variants::default(), true);
        self.children(unit, part.offset(), |child| {
            match child.tag() {
                c::DW_TAG_member => {
                    found.tag = self.member(unit, child, "discriminant", layout)?;
                    told &= found.tag.is_some();
                }
                c::DW_TAG_variant => {
                    let number = discriminant(child)?;
                    // Some variants have several members, or none.
                    let mut only = None;
                    self.children(unit, child.offset(), |inner| {
                        if let Some(index) = self.member(unit, inner, "", layout)? {
                            told &= only.replace(index).is_none();
                        }
                        Ok(())
                    })?;
                    match (number, only) {
                        (Some(number), Some(index)) => found.members.push((number, index)),
                        _ => told = false,
                    }
                }
                _ => {}
            }
            Ok(())
        })?;
        // It may also be a member of what the variants are in.
        told &= found.tag.is_some() || part.attr(c::DW_AT_discr)?.is_none();
        // Without a tag there is only one, and those that cannot be have no bytes.
        if found.tag.is_none() && found.members.len() > 1 {
            let mut there = Vec::new();
            for (number, index) in found.members {
                let DataType::Record { place, .. } = layout.members[index].ty else { continue };
                let (unit, at) = self.around(Die(place))?;
                if Self::number(&unit.entry(at)?, c::DW_AT_byte_size)?.unwrap_or(0) > 0 {
                    there.push((number, index));
                }
            }
            told &= there.len() == 1;
            found.members = there;
        }
        layout.variants = Some(found);
        Ok(told)
    }

    /// Adds a member, and gives its index; `None`: it is none, or one too many. `unnamed`: what it
    /// is called if it has no name.
    fn member(
        &self,
        unit: &Unit<'d>,
        child: &Entry<'_, 'd>,
        unnamed: &str,
        layout: &mut RecordLayout,
    ) -> gimli::Result<Option<usize>> {
        if !matches!(child.tag(), c::DW_TAG_member | c::DW_TAG_inheritance) {
            return Ok(None);
        }
        // A static member is a variable.
        if layout.members.len() >= MEMBERS || Self::flag(child, c::DW_AT_external)? {
            return Ok(None);
        }
        let Some(ty) = self.reference(unit, child, c::DW_AT_type)? else { return Ok(None) };
        let text = self.name(ty, 0)?;
        let data = self.data_type(ty, 0)?;
        let width = Self::number(child, c::DW_AT_bit_size)?;
        let start = Self::number(child, c::DW_AT_data_member_location)?.unwrap_or(0);
        let start = 8 * start.min(LARGEST);
        let bit = match (Self::number(child, c::DW_AT_data_bit_offset)?, Self::number(child, c::DW_AT_bit_offset)?) {
            (Some(bit), _) => bit.min(8 * LARGEST),
            // Before DWARF 4: counted from the highest bit of what the field is stored in.
            (None, Some(from_top)) => {
                let storage = Self::number(child, c::DW_AT_byte_size)?.or(number_size(&data)).unwrap_or(4);
                (start + 8 * storage.min(LARGEST)).wrapping_sub(from_top).wrapping_sub(width.unwrap_or(0))
            }
            (None, None) => start,
        };
        let name = self.text(unit, child, c::DW_AT_name)?.unwrap_or_else(|| unnamed.to_owned());
        let width = width.map(|width| width as u32);
        layout.members.push(RecordMember { name, ty: value_of(data), text, bit, width });
        Ok(Some(layout.members.len() - 1))
    }

    /// A type as the source has it.
    pub(super) fn name(&self, place: Die, depth: u32) -> gimli::Result<String> {
        if depth > DEPTH {
            return Err(gimli::Error::NoEntryAtGivenOffset);
        }
        let (unit, at) = self.around(place)?;
        let entry = unit.entry(at)?;
        if let Some(full) = self.reference(&unit, &entry, c::DW_AT_signature)? {
            return self.name(full, depth + 1);
        }
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
            Some(va) => self.index_of(va)?,
            None => None,
        };
        let mut declared = None;
        if let Some(first) = first {
            for at in self.described(first)? {
                let found = self.find_in(&*self.unit_at(at)?, keyword, bare, true, &mut declared)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for index in (0..self.count()).filter(|index| Some(*index) != first) {
            for at in self.described(index)? {
                let found = self.find_in(&*self.unit_at(at)?, keyword, bare, false, &mut declared)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        for at in self.shared()? {
            let found = self.find_in(&*self.unit_at(at)?, keyword, bare, false, &mut declared)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        match declared.filter(|_| keyword == "enum") {
            Some(place) => self.data_type(place, 0).map(Some),
            None => Ok(None),
        }
    }

    /// In one unit. `deep`: also what is in namespaces and functions.
    fn find_in(
        &self,
        unit: &Unit<'d>,
        keyword: &str,
        bare: &str,
        deep: bool,
        declared: &mut Option<Die>,
    ) -> gimli::Result<Option<DataType>> {
        let mut cursor = unit.entries();
        if cursor.next_dfs()?.is_none() || cursor.next_entry()?.is_none() {
            return Ok(None);
        }
        let mut entry = cursor.current().cloned();
        while let Some(found) = entry {
            if is_kind(found.tag(), keyword) && self.is_named(unit, &found, bare)? {
                let place = unit.die(found.offset());
                if !Self::flag(&found, c::DW_AT_declaration)? {
                    return self.data_type(place, 0).map(Some);
                }
                declared.get_or_insert(place);
            }
            entry =
                if deep { cursor.next_dfs()?.map(|(_, entry)| entry.clone()) } else { cursor.next_sibling()?.cloned() };
        }
        Ok(None)
    }

    fn is_named(&self, unit: &Unit<'d>, entry: &Entry<'_, 'd>, name: &str) -> gimli::Result<bool> {
        let Some(value) = entry.attr_value(c::DW_AT_name)? else { return Ok(false) };
        Ok(unit.dwarf().attr_string(unit, value)?.to_slice()?.as_ref() == name.as_bytes())
    }

    pub(super) fn constant(&self, name: &str, near: Va) -> gimli::Result<Option<Enumeration>> {
        let Some(unit) = self.unit_of(near)? else { return Ok(None) };
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

/// The number of a variant: `Some(None)` is the one of all other numbers, `None` one that is given
/// in another way, as a list or with more than 64 bits.
fn discriminant(variant: &Entry<'_, '_>) -> gimli::Result<Option<Option<u64>>> {
    if variant.attr(c::DW_AT_discr_list)?.is_some() {
        return Ok(None);
    }
    Ok(match variant.attr(c::DW_AT_discr_value)? {
        None => Some(None),
        Some(value) => match value.value() {
            AttributeValue::Sdata(n) => Some(Some(n as u64)),
            _ => value.udata_value().map(Some),
        },
    })
}

fn language(unit: &Unit<'_>) -> gimli::Result<Option<Language>> {
    let mut cursor = unit.entries();
    let Some((_, root)) = cursor.next_dfs()? else { return Ok(None) };
    let Some(AttributeValue::Language(language)) = root.attr_value(c::DW_AT_language)? else { return Ok(None) };
    Ok(Some(match language {
        c::DW_LANG_Go => Language::Go,
        c::DW_LANG_Rust => Language::Rust,
        c::DW_LANG_C_plus_plus
        | c::DW_LANG_C_plus_plus_03
        | c::DW_LANG_C_plus_plus_11
        | c::DW_LANG_C_plus_plus_14
        | c::DW_LANG_C_plus_plus_17
        | c::DW_LANG_C_plus_plus_20 => Language::Cpp,
        _ => Language::Other,
    }))
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
