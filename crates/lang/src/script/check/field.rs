//! Members, elements and what pointers lead to.

use super::super::ast::{Expr, ExprKind, Sized, TypeName, UnaryOp};
use super::super::checked::{Action, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::{Diagnostic, Span, Unknown};
use super::super::types::Type;
use super::counted::Counted;
use super::expr::{int, is_config};
use super::failure::access;
use super::memory::{Base, Place, plus, times};
use super::{Checker, Checking};

/// Where members or elements are.
struct Found {
    place: Place,
    /// A pointer leads there.
    by_pointer: bool,
    /// The list that it is.
    list: Option<Counted>,
}

impl Checker<'_> {
    /// The place that an expression names; `None`: it names none.
    pub(super) fn place(&mut self, expr: &Expr) -> Checking<Option<Place>> {
        let place = self.place_of(expr)?;
        Ok(place.map(|place| Place { read: self.note_read(access(expr)), ..place }))
    }

    fn place_of(&mut self, expr: &Expr) -> Checking<Option<Place>> {
        Ok(Some(match &expr.kind {
            ExprKind::Member(of, name) => match &of.kind {
                ExprKind::Ident(word) if word == "args" => self.argument(name, of.span.to(expr.span))?,
                ExprKind::Ident(word) if word == "self" => return Ok(None),
                _ if is_config(of) || self.is_stats(of) => return Ok(None),
                _ if name.starts_with(|c: char| c.is_ascii_digit()) => return Ok(None),
                _ => return self.member(of, name, expr.span),
            },
            ExprKind::Index(of, index) => return self.element(of, index, expr.span),
            ExprKind::Unary(UnaryOp::Deref, of) => {
                let pointer = match self.place(of)? {
                    Some(place) if matches!(place.ty, CType::Reference(_)) => self.plain(&place, of.span)?,
                    Some(place) => self.read(&place, of.span)?,
                    None => self.expr(of)?,
                };
                match pointer.ty {
                    Type::Pointer(to) => Place::new(Base::Address(Value { ty: Type::UINT, ..pointer }), *to),
                    Type::None if !self.last => return self.unknown(),
                    // What is there is not said: a word.
                    ref ty if ty.is_int() && !ty.is_bool() => {
                        let word = CType::Int { bytes: 8, signed: false };
                        Place::new(Base::Address(Value { ty: Type::UINT, ..pointer }), word)
                    }
                    ty => {
                        let message = format!("The * operator can not be used on expressions of type '{}'", ty.name());
                        return self.error(expr.span, message);
                    }
                }
            }
            ExprKind::Ident(name) if name == "retval" => return self.result(expr.span),
            _ => return Ok(None),
        }))
    }

    /// What the members or elements of an expression are looked for in; else, what type it has.
    fn base(&mut self, of: &Expr) -> Checking<Result<Found, Type>> {
        let (value, list) = match self.place(of)? {
            Some(place) => {
                let list = self.list(&place);
                if !matches!(place.ty, CType::Pointer(_) | CType::Reference(_)) {
                    return Ok(Ok(Found { place, by_pointer: false, list }));
                }
                (self.plain(&place, of.span)?, list)
            }
            None => (self.expr(of)?, None),
        };
        Ok(match value.ty {
            Type::Pointer(to) => {
                let place = Place::new(Base::Address(Value { ty: Type::UINT, ..value }), *to);
                Ok(Found { place, by_pointer: true, list })
            }
            Type::Data { ref ty, .. } => {
                let ty = ty.clone();
                Ok(Found { place: Place::new(Base::Own(value), ty), by_pointer: false, list })
            }
            Type::None if !self.last => return self.unknown(),
            ty => Err(ty),
        })
    }

    /// `None`: it is a part of a record of the script, which lies in no memory of the program.
    fn member(&mut self, of: &Expr, name: &str, span: Span) -> Checking<Option<Place>> {
        let base = match self.base(of)? {
            Ok(found) => found.place,
            Err(Type::Tuple(parts)) if !parts.names().is_empty() => return Ok(None),
            Err(ty) => {
                let ty = ty.name();
                let is_result = of.kind == ExprKind::Ident("retval".to_owned());
                let why = if is_result { self.no_result() } else { None };
                if let Some(why) = why {
                    return self.error(span, why);
                }
                let hint = match ty.starts_with('(') {
                    true => "parts of a tuple are .0, .1 and so on".to_owned(),
                    false => format!("say what it is: ((struct NAME *)x)->{name}"),
                };
                let message = format!("Can not access field '{name}' on expression of type '{ty}'");
                return self.error_with(span, message, hint);
            }
        };
        let CType::Record(record) = &base.ty else {
            let message = format!("Can not access field '{name}' on expression of type '{}'", base.ty.name());
            return self.error(span, message);
        };
        let record = record.clone();
        let layout = self.layout(&record, of.span)?;
        if let Some(field) = self.field(&layout, name, of.span)? {
            return Ok(Some(base.member(field.bit, field.ty, field.width)));
        }
        let message = format!("{} does not contain a field named '{name}'", describe(&record.name));
        let names: Vec<&str> = layout.fields.iter().map(|field| &*field.name).filter(|n| !n.is_empty()).collect();
        match super::super::near::near(name, &names) {
            Some(near) => self.error_with(span, message, format!("did you mean '{near}'?")),
            None => self.error(span, message),
        }
    }

    /// `None`: it is a part of a tuple of the script, which lies in no memory of the program.
    fn element(&mut self, of: &Expr, index: &Expr, span: Span) -> Checking<Option<Place>> {
        let base = self.base(of)?;
        let mut at = self.expr(index)?;
        let cannot =
            |ty: &str| format!("The array index operator [] can only be used on arrays and pointers, found {ty}.");
        let Found { place, by_pointer, list } = match base {
            Ok(found) => found,
            Err(Type::Tuple(parts)) if parts.is_tuple() => return Ok(None),
            Err(Type::Text(_)) => return Ok(None),
            Err(ty) => return self.error(span, cannot(&ty.name())),
        };
        if !at.ty.is_int() {
            let message = format!("The array index operator [] only accepts integer indices, found {}.", at.ty.name());
            return self.error(index.span, message);
        }
        if let Some(Counted { first, length }) = list {
            let (at, size) = (self.within(at, length, span), self.size(&first.ty, of.span)?);
            let Base::Address(address) = first.base else { return self.unknown() };
            return Ok(Some(Place::new(Base::Address(plus(address, times(at, size))), first.ty)));
        }
        let ty = match &place.ty {
            to if by_pointer => to.clone(),
            CType::Array(ty, length) => match at.kind {
                ValueKind::Int(n) if n >= *length && *length > 0 => {
                    let message = format!("the index {n} is out of bounds for array of size {length}");
                    return self.error(span, message);
                }
                _ => {
                    let element = (**ty).clone();
                    if !matches!(at.kind, ValueKind::Int(_)) && *length > 0 {
                        at = self.within(at, int(*length), span);
                    }
                    element
                }
            },
            other => return self.error(span, cannot(&other.name())),
        };
        let size = self.size(&ty, of.span)?;
        let whole = self.size(&place.ty, of.span)?;
        if !matches!(at.kind, ValueKind::Int(_)) {
            self.is_there(&place, of.span)?;
        }
        match (place.base, &at.kind) {
            (base, ValueKind::Int(n)) => {
                let (there, bit) = (place.there, place.bit.wrapping_add(n.wrapping_mul(size.wrapping_mul(8))));
                // An index below zero is an address, not a place behind one.
                match base {
                    Base::Address(address) => {
                        let address = plus(address, int(bit / 8));
                        Ok(Some(Place::new(Base::Address(address), ty)))
                    }
                    base => Ok(Some(Place { base, bit, ty, width: None, there, read: None })),
                }
            }
            (Base::Address(address), _) => {
                let first = plus(address, int(place.bit / 8));
                Ok(Some(Place::new(Base::Address(plus(first, times(at, size))), ty)))
            }
            (base, _) => {
                let array = Place { base, ..place }.data(whole as usize);
                let kind = ValueKind::Element(Box::new(array), Box::new(at));
                let element = Value { ty: Type::Data { ty: ty.clone(), size: size as usize }, kind };
                Ok(Some(Place::new(Base::Own(element), ty)))
            }
        }
    }

    /// An index, with a warning if it is not below the length.
    fn within(&mut self, at: Value, length: Value, span: Span) -> Value {
        let message = "Array access out of bounds. This can lead to unexpected results.";
        let warning = self.action(Action::Warning(Diagnostic::warning(span, message)));
        Value { ty: at.ty.clone(), kind: ValueKind::Within(Box::new(at), Box::new(length), warning) }
    }

    /// `&x`
    pub(super) fn address(&mut self, of: &Expr, span: Span) -> Checking<Value> {
        match self.place(of)? {
            Some(place) => self.address_of(&place, span),
            None => match &of.kind {
                ExprKind::Var(name) => {
                    let value = self.var(name, of.span)?;
                    match of_variable(&value.ty) {
                        Some(to) => {
                            let kind = ValueKind::AddressOf(Box::new(value));
                            Ok(Value { ty: Type::Pointer(Box::new(to)), kind })
                        }
                        None => {
                            let message = format!("a variable of type '{}' has no address", value.ty.name());
                            self.error_with(span, message, "*(&$x) is $x")
                        }
                    }
                }
                ExprKind::Map(..) => self.error_with(span, "a map has no address", "*(&@x) is @x"),
                _ => self.error(span, "only members, elements and what a pointer leads to have an address"),
            },
        }
    }

    /// `sizeof(of)`
    pub(super) fn size_of(&mut self, of: &Sized, span: Span) -> Checking<Value> {
        if let Sized::Expr(expr) = of {
            if let Some(size) = self.own_size(expr)? {
                return Ok(int(size));
            }
        }
        let ty = self.sized(of, span)?;
        Ok(int(self.size(&ty, span)?))
    }

    /// `offsetof(of, a.b)`
    pub(super) fn offset_of(&mut self, of: &Sized, names: &[String], span: Span) -> Checking<Value> {
        let mut ty = self.sized(of, span)?;
        let mut bit = 0;
        for name in names {
            let CType::Record(record) = &ty else {
                return self.error(span, format!("offsetof: '{}' has no members", ty.name()));
            };
            let record = record.clone();
            let layout = self.layout(&record, span)?;
            let Some(field) = self.field(&layout, name, span)? else {
                let message = format!("{} does not contain a field named '{name}'", describe(&record.name));
                return self.error(span, message);
            };
            if field.width.is_some() {
                return self.error(span, format!("offsetof: '{name}' is a bit-field"));
            }
            bit += field.bit;
            ty = field.ty;
        }
        Ok(int(bit / 8))
    }

    /// A type of C by its name, or that of an expression.
    pub(super) fn sized(&mut self, of: &Sized, span: Span) -> Checking<CType> {
        let expr = match of {
            Sized::Type(name) => return self.ctype(name, span),
            Sized::Expr(expr) => expr,
        };
        if let ExprKind::Ident(name) = &expr.kind {
            // A `typedef` of the program, if it is nothing else.
            let found = self.found.len();
            if self.expr(expr).is_err() {
                let name = TypeName { keyword: "", name: name.clone(), stars: 0, length: None, pointers: 0 };
                let ty = self.ctype(&name, expr.span);
                // What says nothing is left out.
                let unknown = self.found.get(found).and_then(|first| first.unknown.as_deref());
                if ty.is_ok() {
                    self.found.truncate(found);
                } else if matches!(unknown, Some(Unknown::Identifier(_))) {
                    self.found.remove(found);
                } else {
                    self.found.truncate(found + 1);
                }
                return ty;
            }
        }
        if let Some(place) = self.place(expr)? {
            return Ok(place.ty);
        }
        let ty = match self.key_type(expr)? {
            Some(ty) => ty,
            None => self.measured(|checker| checker.expr(expr))?.ty,
        };
        Ok(match ty {
            Type::Int { bytes, signed } => CType::Int { bytes, signed },
            Type::Pointer(of) => CType::Pointer(of),
            Type::Enum(of) => CType::Enum(of),
            Type::Data { ty, .. } => ty,
            // With its NUL.
            Type::Text(len) => CType::Array(Box::new(CType::Char), len as u64 + 1),
            Type::None if !self.last => return self.unknown(),
            ty => return self.error(span, format!("a value of type {} has no size", ty.kind())),
        })
    }
}

/// `struct of type 'struct s'`, as bpftrace says it.
fn describe(name: &str) -> String {
    let keyword = name.split(' ').next().unwrap_or_default();
    format!("{} of type '{name}'", if keyword == "union" { "Union" } else { "Struct" })
}

/// The type of C of a variable's memory; `None`: C has none like it.
fn of_variable(ty: &Type) -> Option<CType> {
    Some(match ty {
        Type::Int { bytes, signed } => CType::Int { bytes: *bytes, signed: *signed },
        Type::Pointer(to) => CType::Pointer(to.clone()),
        Type::Enum(of) => CType::Enum(of.clone()),
        Type::Data { ty, .. } => ty.clone(),
        Type::Text(len) => CType::Array(Box::new(CType::Char), *len as u64 + 1),
        _ => return None,
    })
}
