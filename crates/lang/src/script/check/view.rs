//! Records that are texts or lists to the programmer, or have some inside: they are read as what
//! they stand for.

use super::super::ast::BinaryOp;
use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Field, Layout, Record, Variants};
use super::super::diagnostic::Span;
use super::super::types::{Form, Parts, Type};
use super::expr::{int, truth};
use super::memory::{Place, value};
use super::{Checker, Checking};

/// Texts and lists in one record that are read with it at most.
const SEEN: usize = 32;
/// Members of one record that are read one by one at most.
const MEMBERS: usize = 4096;

impl Checker<'_> {
    /// What is in a place, as its programmer thinks of it; `None`: as it lies there.
    pub(super) fn view(&mut self, place: &Place, span: Span) -> Checking<Option<Value>> {
        if let Some(counted) = self.counted_in(place, span)? {
            return Ok(Some(counted));
        }
        let CType::Record(record) = &place.ty else { return Ok(None) };
        let record = record.clone();
        // What contains itself has no end of members.
        self.look_inside(&record, span)?;
        if !(1..=SEEN).contains(&self.seen(&record)) {
            return Ok(None);
        }
        let layout = self.layout(&record, span)?;
        if let Some(variants) = &layout.variants {
            return self.variants(place, &layout, variants, span).map(Some);
        }
        let mut members = Members { names: Vec::new(), items: Vec::new(), left: MEMBERS };
        self.members(place, &record, false, span, &mut members)?;
        Ok(Some(named(members.names, members.items)))
    }

    /// An enumeration of Rust with texts or lists in some variants ([`Form::Variants`]). Only
    /// those of the variant that is there are read.
    fn variants(&mut self, place: &Place, layout: &Layout, variants: &Variants, span: Span) -> Checking<Value> {
        let whole = self.plain(place, span)?;
        let member = |field: &Field| place.member(field.bit, field.ty.clone(), field.width);
        let tag = variants.tag.and_then(|tag| layout.fields.get(tag)).map(member);
        let (mut which, mut members, mut views) = (int(0), Vec::new(), Vec::new());
        for (variant, index) in &variants.fields {
            let Some(field) = layout.fields.get(*index) else { continue };
            let CType::Record(record) = &field.ty else { continue };
            if self.seen(record) == 0 {
                continue;
            }
            let Some(view) = self.view(&member(field), span)? else { continue };
            let is_there = match &tag {
                Some(tag) => {
                    let others = variants.fields.iter().filter_map(|(number, _)| *number);
                    let Some(is_there) = self.is_variant(tag, *variant, others) else { continue };
                    is_there
                }
                None => truth(ValueKind::Int(1)),
            };
            members.push(*index);
            which = either(&is_there, int(members.len() as u64), which);
            let nothing = nothing(&view.ty);
            views.push(either(&is_there, view, nothing));
        }
        if members.is_empty() {
            return Ok(whole);
        }
        let nothing = nothing(&whole.ty);
        let whole = self.meant(whole);
        let whole = either(&which, nothing, whole);
        let items: Vec<Value> = [which, whole].into_iter().chain(views).collect();
        let types = items.iter().map(|item| item.ty.clone()).collect();
        Ok(value(Type::Tuple(Parts::of(Form::Variants(members), types)), ValueKind::Tuple(items)))
    }

    /// Whether the tag has the number of a variant; without a number, it has none of the others.
    fn is_variant(&self, tag: &Place, number: Option<u64>, others: impl Iterator<Item = u64>) -> Option<Value> {
        let CType::Int { bytes, .. } = tag.ty else { return None };
        let told = tag.number(bytes, false)?;
        let mask = u64::MAX >> (64 - 8 * u32::from(bytes));
        let is = |op, number: u64| {
            let number = value(Type::UINT, ValueKind::Int(number & mask));
            truth(ValueKind::Binary(op, true, Box::new(told.clone()), Box::new(number)))
        };
        match number {
            Some(number) => Some(is(BinaryOp::Eq, number)),
            None => others.map(|other| is(BinaryOp::Ne, other)).reduce(|all, other| {
                truth(ValueKind::Binary(BinaryOp::LogicalAnd, false, Box::new(all), Box::new(other)))
            }),
        }
    }

    /// How many texts and lists are read with a record that does not contain itself, none if it
    /// is one of them. Counting stops above [`SEEN`]. Of the members of a union nobody knows
    /// which one is there; of an enumeration, only one is read.
    fn seen(&mut self, record: &Record) -> usize {
        if let Some(known) = self.types.seen.get(&record.key()) {
            return *known;
        }
        let mut count = 0;
        if !record.name.starts_with("union") && self.weight(record).is_none() {
            let is_known = |layout: &Layout| layout.variants.as_ref().is_none_or(|of| !of.fields.is_empty());
            let layout = self.known_layout(record).filter(is_known).unwrap_or_default();
            for field in layout.fields {
                let own = match &field.ty {
                    CType::Record(of) => self.weight(of).unwrap_or_else(|| self.seen(of)),
                    CType::Reference(of) => match &**of {
                        CType::Record(of) => self.weight(of).unwrap_or(0),
                        _ => 0,
                    },
                    _ => 0,
                };
                count = if layout.variants.is_some() { count.max(own) } else { count + own };
                if count > SEEN {
                    break;
                }
            }
        }
        self.types.seen.insert(record.key(), count);
        count
    }

    /// Adds the members of a record. `plain`: as they lie there.
    fn members(
        &mut self,
        place: &Place,
        record: &Record,
        plain: bool,
        span: Span,
        found: &mut Members,
    ) -> Checking<()> {
        // Only one member of a union is what it says.
        let plain = plain || record.name.starts_with("union");
        for field in self.layout(record, span)?.fields {
            let Some(left) = found.left.checked_sub(1) else {
                return self.error(span, format!("'{}' has more than {MEMBERS} members: name one", record.name));
            };
            found.left = left;
            let member = place.member(field.bit, field.ty, field.width);
            // Members of what has no name are members of what it is in.
            match &member.ty {
                CType::Record(of) if field.name.is_empty() && self.is_open(of, plain) => {
                    self.members(&member, of, plain, span, found)?;
                }
                _ => {
                    let item = if plain { self.plain(&member, span) } else { self.read(&member, span) }?;
                    found.names.push(field.name);
                    found.items.push(item);
                }
            }
        }
        Ok(())
    }

    /// Whether a record is all of its members, and not a text or one of several.
    fn is_open(&mut self, record: &Record, plain: bool) -> bool {
        let has_variants = self.known_layout(record).is_some_and(|layout| layout.variants.is_some());
        !has_variants && (plain || self.weight(record).is_none())
    }
}

/// Members on their way to a record of the script.
struct Members {
    names: Vec<String>,
    items: Vec<Value>,
    /// As many may follow.
    left: usize,
}

/// A record of the script.
pub(super) fn named(names: Vec<String>, items: Vec<Value>) -> Value {
    let types = items.iter().map(|item| item.ty.clone()).collect();
    value(Type::Tuple(Parts::named(names, types)), ValueKind::Tuple(items))
}

/// A value of this type that is empty: zeros.
fn nothing(ty: &Type) -> Value {
    let kind = match ty {
        Type::Text(_) => ValueKind::Text(Vec::new()),
        Type::List(_) => ValueKind::ReadBytes(Box::new(int(0)), Box::new(int(0))),
        Type::Tuple(parts) => ValueKind::Tuple(parts.iter().map(nothing).collect()),
        Type::Data { size, .. } => ValueKind::Words(vec![int(0); size.div_ceil(8)]),
        _ => ValueKind::Int(0),
    };
    value(ty.clone(), kind)
}

/// One of two values of the same type.
pub(super) fn either(cond: &Value, then: Value, otherwise: Value) -> Value {
    match cond.kind {
        ValueKind::Int(0) => otherwise,
        ValueKind::Int(_) => then,
        _ => {
            let ty = then.ty.clone();
            value(ty, ValueKind::Ternary(Box::new(cond.clone()), Box::new(then), Box::new(otherwise)))
        }
    }
}
