//! Functions: what they take and give.

mod kept;

use std::collections::HashSet;

use gimli::{AttributeValue, UnitOffset, constants as c};
use sidestep_isa::Va;

use self::kept::kept;
use super::read::{Entry, value_of};
use super::units::{Die, Reading, Unit};
use super::{Convention, DataType, FunctionParameter, FunctionType, Passed};

impl<'d> Reading<'d> {
    pub(super) fn function(&self, va: Va) -> gimli::Result<Option<FunctionType>> {
        let Some(unit) = self.unit_of(va)? else { return Ok(None) };
        let mut cursor = unit.entries();
        while let Some((_, entry)) = cursor.next_dfs()? {
            if entry.tag() == c::DW_TAG_subprogram && self.begins_at(&unit, entry, va)? {
                return self.function_type(&unit, entry.offset(), va).map(Some);
            }
        }
        Ok(None)
    }

    fn begins_at(&self, unit: &Unit<'d>, entry: &Entry<'_, 'd>, va: Va) -> gimli::Result<bool> {
        if let Some(value) = entry.attr_value(c::DW_AT_low_pc)? {
            return Ok(unit.dwarf().attr_address(unit, value)? == Some(va.0));
        }
        if entry.attr_value(c::DW_AT_ranges)?.is_none() {
            return Ok(false);
        }
        let first = unit.dwarf().die_ranges(unit, entry)?.next()?;
        Ok(first.is_some_and(|range| range.begin == va.0))
    }

    fn function_type(&self, unit: &Unit<'d>, at: UnitOffset, va: Va) -> gimli::Result<FunctionType> {
        let convention = self.convention(unit)?;
        // The copy that has the address, what it is a copy of, and what that was declared as: all
        // parameters are in the first that has some and is no copy.
        let mut chain = vec![unit.die(at)];
        while let Some(&last) = chain.last().filter(|_| chain.len() < 4) {
            let (unit, at) = self.around(last)?;
            let entry = unit.entry(at)?;
            let origin = match self.reference(&unit, &entry, c::DW_AT_abstract_origin)? {
                Some(origin) => Some(origin),
                None => self.reference(&unit, &entry, c::DW_AT_specification)?,
            };
            match origin {
                Some(origin) => chain.push(origin),
                None => break,
            }
        }
        let is_copy = {
            let (unit, at) = self.around(chain[0])?;
            unit.entry(at)?.attr_value(c::DW_AT_abstract_origin)?.is_some()
        };
        let (mut parameters, mut is_external) = (Vec::new(), false);
        let mut described = chain[0];
        let mut result = None;
        for place in &chain {
            let (unit, at) = self.around(*place)?;
            is_external |= Self::flag(&unit.entry(at)?, c::DW_AT_external)?;
            if result.is_none() {
                result = self.reference(&unit, &unit.entry(at)?, c::DW_AT_type)?;
            }
            if parameters.is_empty() && !(is_copy && *place == chain[0] && chain.len() > 1) {
                parameters = self.parameters(&unit, at)?;
                described = *place;
            }
        }
        let entered = self.entered(unit, at, va, is_external)?;
        let mut parameters: Vec<FunctionParameter> = parameters
            .into_iter()
            .map(|(place, parameter): (Die, FunctionParameter)| match &entered {
                Some(entered) => FunctionParameter { passed: entered.parameter(place), ..parameter },
                None => parameter,
            })
            .collect();
        let (result, result_text) = match result {
            Some(result) => (self.data_type(result, 0)?, self.name(result, 0)?),
            None => (DataType::Void, "void".to_owned()),
        };
        let (mut result, mut result_text, mut result_in_memory) = (result, result_text, false);
        match self.passing(&result)? {
            Passing::Value => {}
            Passing::Address => result_in_memory = true,
            // The address of the result may be in front of the arguments.
            Passing::Unknown => {
                result = DataType::Void;
                let known = |parameter: &&mut FunctionParameter| parameter.passed == Passed::Abi;
                parameters.iter_mut().filter(known).for_each(|parameter| parameter.passed = Passed::Unknown);
            }
        }
        let kept = match convention {
            Convention::Go { .. } => {
                let (unit, at) = self.around(described)?;
                let name = self.text(&unit, &unit.entry(at)?, c::DW_AT_name)?.unwrap_or_default();
                if let Some(first) = self.first_result(&unit, at)? {
                    (result, result_text) = (value_of(self.data_type(first, 0)?), self.name(first, 0)?);
                }
                add_dictionary(&name, &mut parameters);
                vec![true; parameters.len()]
            }
            _ if self.is_llvm(unit)? => {
                let places = self.places(va, chain[0], described)?;
                let (unit, at) = self.around(chain[0])?;
                // Since LLVM 17: arguments were left out.
                let number = Self::number(&unit.entry(at)?, c::DW_AT_calling_convention)?;
                let is_changed = number == Some(c::DW_CC_nocall.0.into());
                kept(&places, &mut parameters, &result, self.isa(), convention, is_changed)
            }
            _ => vec![true; parameters.len()],
        };
        Ok(FunctionType { parameters, result, result_text, result_in_memory, convention, kept })
    }

    /// The type of the first result of a function of Go.
    fn first_result(&self, unit: &Unit<'d>, at: UnitOffset) -> gimli::Result<Option<Die>> {
        let mut first = None;
        self.children(unit, at, |child| {
            let is_result = child.tag() == c::DW_TAG_formal_parameter && !Self::is_parameter(child)?;
            if is_result && first.is_none() {
                first = self.reference(unit, child, c::DW_AT_type)?;
            }
            Ok(())
        })?;
        Ok(first)
    }

    /// By the language of a unit. Go's compiler says in its name whether it uses registers.
    fn convention(&self, unit: &Unit<'d>) -> gimli::Result<Convention> {
        let mut cursor = unit.entries();
        let Some((_, root)) = cursor.next_dfs()? else { return Ok(Convention::C) };
        Ok(match root.attr_value(c::DW_AT_language)? {
            Some(AttributeValue::Language(c::DW_LANG_Go)) => {
                let producer = self.text(unit, root, c::DW_AT_producer)?.unwrap_or_default();
                Convention::Go { registers: producer.contains("regabi") }
            }
            Some(AttributeValue::Language(c::DW_LANG_Rust | c::DW_LANG_Swift | c::DW_LANG_Zig)) => Convention::Compiler,
            _ => Convention::C,
        })
    }

    /// How something of this type is passed.
    fn passing(&self, ty: &DataType) -> gimli::Result<Passing> {
        match ty {
            DataType::Record { place, .. } => self.passing_of(Die(*place), &mut HashSet::new()),
            _ => Ok(Passing::Value),
        }
    }

    /// Whether a class of C++ is passed by its address, as copying or destroying it is a call. Only
    /// some compilers say so. Of the others, what is seen is a destructor or a copying constructor
    /// of its own, a table of virtual functions, and the same of a base or a member (Itanium C++
    /// ABI, "Definitions": "Non-trivial for the purposes of calls").
    fn passing_of(&self, class: Die, seen: &mut HashSet<u64>) -> gimli::Result<Passing> {
        /// Classes that are looked at, at most.
        const CLASSES: usize = 64;
        if seen.len() == CLASSES || !seen.insert(class.0) {
            return Ok(Passing::Value);
        }
        let (unit, at) = self.around(class)?;
        let entry = unit.entry(at)?;
        if let Some(convention) = Self::number(&entry, c::DW_AT_calling_convention)? {
            let is_by_address = convention == u64::from(c::DW_CC_pass_by_reference.0);
            return Ok(if is_by_address { Passing::Address } else { Passing::Value });
        }
        let class_name = self.text(&unit, &entry, c::DW_AT_name)?.unwrap_or_default();
        let class_name = class_name.split('<').next().unwrap_or_default();
        let (mut parts, mut copies, mut deleted) = (Vec::new(), 0, 0);
        let (mut is_by_address, mut has_own_copy) = (false, false);
        self.children(&unit, at, |child| {
            match child.tag() {
                c::DW_TAG_subprogram if !Self::flag(child, c::DW_AT_artificial)? => {
                    let is_defaulted =
                        Self::number(child, c::DW_AT_defaulted)? == Some(c::DW_DEFAULTED_in_class.0.into());
                    let name = self.text(&unit, child, c::DW_AT_name)?;
                    let name = name.as_deref().unwrap_or_default();
                    is_by_address |= !is_defaulted && name.starts_with('~');
                    if name == class_name && self.takes_reference(&unit, child.offset(), class)? {
                        let is_deleted = Self::flag(child, c::DW_AT_deleted)?;
                        copies += 1;
                        deleted += u32::from(is_deleted);
                        has_own_copy |= !is_defaulted && !is_deleted;
                    }
                }
                c::DW_TAG_inheritance | c::DW_TAG_member if !Self::flag(child, c::DW_AT_external)? => {
                    let name = self.text(&unit, child, c::DW_AT_name)?;
                    is_by_address |= name.is_some_and(|name| name.starts_with("_vptr"));
                    parts.extend(self.reference(&unit, child, c::DW_AT_type)?);
                }
                _ => {}
            }
            Ok(())
        })?;
        let tells = self.tells_defaulted(&unit)?;
        // What cannot be copied or moved is not in registers, as nobody can put it there.
        is_by_address |= copies > 0 && copies == deleted || tells && has_own_copy;
        let mut all = match (is_by_address, has_own_copy) {
            (true, _) => return Ok(Passing::Address),
            (false, true) => Passing::Unknown,
            (false, false) => Passing::Value,
        };
        for part in parts {
            let mut part = self.data_type(part, 0)?;
            while let DataType::Array(of, _) = part {
                part = *of;
            }
            if let DataType::Record { place, .. } = part {
                match self.passing_of(Die(place), seen)? {
                    Passing::Address => return Ok(Passing::Address),
                    Passing::Unknown => all = Passing::Unknown,
                    Passing::Value => {}
                }
            }
        }
        Ok(all)
    }

    /// Whether the compiler says of a constructor that it is `= default`. Version 5 of DWARF has a
    /// word for that; GCC uses the word in older versions, too, since GCC 7.
    fn tells_defaulted(&self, unit: &Unit<'d>) -> gimli::Result<bool> {
        if unit.header.version() >= 5 {
            return Ok(true);
        }
        let mut cursor = unit.entries();
        let Some((_, root)) = cursor.next_dfs()? else { return Ok(false) };
        let producer = self.text(unit, root, c::DW_AT_producer)?.unwrap_or_default();
        let mut words = producer.split_whitespace();
        let version = words.by_ref().nth(2).and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        Ok(producer.starts_with("GNU C++")
            && version.is_some_and(|version| version >= 7)
            && words.all(|word| word != "-gstrict-dwarf"))
    }

    /// Whether a constructor takes a reference to its own class: it copies or moves.
    fn takes_reference(&self, unit: &Unit<'d>, constructor: UnitOffset, class: Die) -> gimli::Result<bool> {
        let mut is_own = None;
        self.children(unit, constructor, |child| {
            if child.tag() != c::DW_TAG_formal_parameter || Self::flag(child, c::DW_AT_artificial)? {
                return Ok(());
            }
            let Some(ty) = self.reference(unit, child, c::DW_AT_type)? else { return Ok(()) };
            let is_class = match self.data_type(ty, 0)? {
                DataType::Reference(of) => matches!(*of, DataType::Record { place, .. } if place == class.0),
                _ => false,
            };
            is_own.get_or_insert(is_class);
            Ok(())
        })?;
        Ok(is_own == Some(true))
    }

    /// With the places of their entries.
    fn parameters(&self, unit: &Unit<'d>, at: UnitOffset) -> gimli::Result<Vec<(Die, FunctionParameter)>> {
        let (mut parameters, mut is_lost) = (Vec::new(), false);
        self.children(unit, at, |child| {
            if !Self::is_parameter(child)? {
                return Ok(());
            }
            let mut name = self.text(unit, child, c::DW_AT_name)?;
            let mut ty = self.reference(unit, child, c::DW_AT_type)?;
            if let Some(origin) = self.reference(unit, child, c::DW_AT_abstract_origin)? {
                let (unit, at) = self.around(origin)?;
                let origin = unit.entry(at)?;
                name = name.or(self.text(&unit, &origin, c::DW_AT_name)?);
                ty = ty.or(self.reference(&unit, &origin, c::DW_AT_type)?);
            }
            let Some(place) = ty else { return Ok(()) };
            let mut ty = self.data_type(place, 0)?;
            match self.passing(&ty)? {
                Passing::Value => {}
                Passing::Address => ty = DataType::Reference(Box::new(ty)),
                // It may take one register or several.
                Passing::Unknown => is_lost = true,
            }
            let passed = if is_lost { Passed::Unknown } else { Passed::Abi };
            let (name, text) = (name.unwrap_or_default(), self.name(place, 0)?);
            parameters.push((
                unit.die(child.offset()),
                FunctionParameter { name, ty: value_of(ty), text, passed, parts: Vec::new() },
            ));
            Ok(())
        })?;
        Ok(parameters)
    }
}

/// How a class of C++ is passed and returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passing {
    /// As a structure of C is.
    Value,
    /// The caller has it in memory, and passes the address.
    Address,
    /// The debug information does not say whether a copy is a call.
    Unknown,
}

/// What a generic function of Go gets beside its parameters: a table of the types that it is for,
/// which methods have behind their receiver.
fn add_dictionary(name: &str, parameters: &mut Vec<FunctionParameter>) {
    let Some((_, behind)) = name.split_once("[go.shape.") else { return };
    let ty = DataType::Number { bytes: 8, signed: false };
    let text = "uintptr".to_owned();
    let dictionary = FunctionParameter { name: ".dict".to_owned(), ty, text, passed: Passed::Abi, parts: Vec::new() };
    let is_method = !behind.ends_with(']');
    parameters.insert(usize::from(is_method).min(parameters.len()), dictionary);
}
