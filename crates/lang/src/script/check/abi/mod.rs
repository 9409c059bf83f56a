//! Where functions find what is passed to them: `args` and `retval`.

mod aapcs64;
mod go;
mod pieces;
mod scalars;
mod system_v;

use std::ops::Range;

use pieces::{Class, Piece, composed, joined};
use scalars::{By, Taken};
use sidestep_isa::CallingConvention;

use super::super::ast::{BinaryOp, Provider};
use super::super::checked::{Builtin, Value, ValueKind};
use super::super::ctype::{CType, Field, Layout, Record};
use super::super::diagnostic::Span;
use super::super::program::{Argument, Convention, Parameter, Passed, Signature};
use super::super::types::Type;
use super::memory::{Base, Place, number_type, plus, shift, value};
use super::view::named;
use super::{Checker, Checking, advice};

/// Bytes of `args` as a whole at most.
const WHOLE: u64 = 512;

fn register(at: u16) -> Value {
    value(Type::UINT, ValueKind::Builtin(Builtin::Register(at)))
}

impl Checker<'_> {
    /// `args.name`
    pub(super) fn argument(&mut self, name: &str, span: Span) -> Checking<Place> {
        let signature = self.signature(span)?;
        let Some(index) = signature.parameters.iter().position(|parameter| parameter.name == name) else {
            let names: Vec<&str> = signature.parameters.iter().map(|parameter| &*parameter.name).collect();
            let has = match names.is_empty() {
                true => "it takes none".to_owned(),
                false => format!("it has {}", names.join(", ")),
            };
            return self.error_with(span, format!("Can't find function parameter {name}"), has);
        };
        self.agree(&signature, index + 1, span)?;
        self.are_passed(&signature, index..index + 1, span)?;
        let mut places = self.places(&signature, index + 1, false, span)?;
        match places.pop() {
            Some(place) => Ok(place),
            None => self.unknown(),
        }
    }

    /// `args`: all of them, as the members of a struct.
    pub(super) fn arguments_whole(&mut self, span: Span) -> Checking<Value> {
        let signature = self.signature(span)?;
        let count = signature.parameters.len();
        self.agree(&signature, count, span)?;
        self.are_passed(&signature, 0..count, span)?;
        let places = self.places(&signature, count, true, span)?;
        let mut views = Vec::new();
        for place in &places {
            views.push(self.view(place, span)?);
        }
        if views.iter().any(Option::is_some) {
            let mut items = Vec::new();
            for (view, place) in views.into_iter().zip(&places) {
                items.push(view.map_or_else(|| self.plain(place, span), Ok)?);
            }
            return Ok(named(signature.parameters.into_iter().map(|parameter| parameter.name).collect(), items));
        }
        let mut layout = Layout { align: 8, ..Layout::default() };
        let mut words = Vec::new();
        for (parameter, place) in signature.parameters.iter().zip(places) {
            self.is_there(&place, span)?;
            let size = self.size(&parameter.ty, span)?;
            if let CType::Record(record) = &parameter.ty {
                // What is printed must be known.
                let record = record.clone();
                self.look_inside(&record, span)?;
            }
            let bit = 64 * words.len() as u64;
            layout.fields.push(Field { name: parameter.name.clone(), ty: parameter.ty.clone(), bit, width: None });
            match place.base {
                Base::Words(own) => words.extend(own),
                Base::Address(address) => words.extend((0..size.div_ceil(8)).map(|word| {
                    let at = plus(address.clone(), super::expr::int(8 * word));
                    value(Type::UINT, ValueKind::Load(Box::new(at)))
                })),
                Base::Own(_) => {}
            }
            if 8 * words.len() as u64 > WHOLE {
                return self.error(span, format!("the arguments have more than {WHOLE} bytes: name one, as in args.x"));
            }
        }
        layout.size = 8 * words.len() as u64;
        let size = layout.size as usize;
        let points: Vec<String> = self.points.iter().map(|point| point.text()).collect();
        let record = Record { name: format!("struct args of {}", points.join(", ")).into(), place: None };
        self.types.own(record.clone(), layout);
        Ok(value(Type::Data { ty: CType::Record(record), size }, ValueKind::Words(words)))
    }

    /// `retval` with the type of the function; `None` if that is not known.
    pub(super) fn result(&mut self, span: Span) -> Checking<Option<Place>> {
        // One type for all: only functions that are named can have one, not what a pattern matches.
        // `[abi:cxx11]` is a part of names.
        let is_named =
            |text: &str| !text.replace("[abi:", "").contains(['*', '?', '[', '+']) && !text.starts_with("0x");
        let named = |point: &super::ast::Point| point.fields.last().is_some_and(|field| is_named(&field.text));
        if !self.only_at(&[Provider::Uretprobe]) || !self.points.iter().all(named) {
            return Ok(None);
        }
        let (mut found, mut rust, mut in_memory): (Option<CType>, _, _) = (None, None, false);
        let mut go = None;
        for index in 0..self.points.len() {
            let point = &self.points[index];
            match (self.types.signature(point), &found) {
                (Ok(Signature { convention: Convention::Scalars, result, .. }), _) => {
                    rust = Some(self.scalars(&result, span)?);
                    if rust == Some(By::Unknown) && self.size(&result, span)? > u64::from(self.types.word()) {
                        let message =
                            format!("only the compiler knows where the result of type '{}' is", result.name());
                        return self.error_with(span, message, "reg(\"ax\") and so on are the registers as they are");
                    }
                    if rust == Some(By::Unknown) || found.as_ref().is_some_and(|known| *known != result) {
                        return Ok(None);
                    }
                    found = Some(result);
                }
                (Ok(signature), None) => {
                    in_memory = signature.result_in_memory;
                    if let Convention::Go { registers } = signature.convention {
                        go = Some((registers, signature.clone()));
                    }
                    found = Some(signature.result);
                }
                (Ok(signature), Some(known))
                    if *known == signature.result && in_memory == signature.result_in_memory => {}
                _ => return Ok(None),
            }
        }
        let Some(ty) = found.filter(|ty| !matches!(ty, CType::Void | CType::Function)) else { return Ok(None) };
        if let Some((registers, signature)) = go {
            return self.go_result(&signature, registers, span).map(Some);
        }
        if let (Some(By::Scalars(scalars)), 8) = (&rust, self.types.word()) {
            let (size, context) = (self.size(&ty, span)?, self.types.context());
            let parts = scalars::results(scalars, context);
            return Ok(Some(Place::new(Base::Words(composed(size, parts)), ty)));
        }
        let retval = || value(Type::UINT, ValueKind::Builtin(Builtin::Retval));
        let context = self.types.context();
        if context.convention == CallingConvention::I386 {
            let base = match &ty {
                // In two registers, which are no words of it.
                CType::Record(_) if matches!(rust, Some(By::Scalars(_))) => return Ok(None),
                // All structs lie where the caller wanted them.
                CType::Record(_) => Base::Address(retval()),
                // In two registers.
                CType::Int { bytes: 8, .. } => {
                    let high = shift(BinaryOp::Shl, true, register(context.second_result), 32);
                    Base::Words(vec![plus(high, retval())])
                }
                other if number_type(other).is_some() => Base::Words(vec![retval()]),
                _ => return Ok(None),
            };
            return Ok(Some(Place::new(base, ty)));
        }
        if context.convention == CallingConvention::SystemV && !in_memory && self.is_in_vector(&ty, span)? {
            return self.unseen("the result", &ty, span);
        }
        let base = match self.pieces(&ty, span)? {
            _ if in_memory => Base::Address(self.result_address(span)?),
            None => Base::Address(self.result_address(span)?),
            Some(pieces) => {
                let size = self.size(&ty, span)?;
                let (mut integers, mut floats) = (0, 0);
                let words = joined(&pieces, size, |class| match class {
                    Class::Integer => {
                        integers += 1;
                        Some(match integers {
                            1 => value(Type::INT, ValueKind::Builtin(Builtin::Retval)),
                            _ => register(context.second_result),
                        })
                    }
                    Class::Float => {
                        floats += 1;
                        Some(register(context.float(floats - 1)))
                    }
                });
                match words {
                    Some(words) => Base::Words(words),
                    None => return self.unseen("the result", &ty, span),
                }
            }
        };
        Ok(Some(Place::new(base, ty)))
    }

    /// The type of `argN`: a number, which at USDT probes has the sign that all of them say.
    pub(super) fn argument_type(&mut self, number: u32) -> Type {
        let unsigned = |checker: &mut Self, point: &super::ast::Point| {
            let parameters = checker.types.signature(point).map(|signature| signature.parameters);
            matches!(
                parameters.as_deref().unwrap_or_default().get(number as usize),
                Some(Parameter { ty: CType::Int { signed: false, .. }, .. })
            )
        };
        let points = self.points;
        let is_unsigned = self.only_at(&[Provider::Usdt]) && points.iter().all(|point| unsigned(self, point));
        if is_unsigned { Type::UINT } else { Type::INT }
    }

    /// Why the type of what a function returns is not known.
    pub(super) fn no_result(&mut self) -> Option<String> {
        let point = self.points.first().filter(|point| point.provider == Provider::Uretprobe)?;
        self.types.signature(point).err()
    }

    /// What the function at the first attach point takes.
    fn signature(&mut self, span: Span) -> Checking<Signature> {
        if !self.only_at(&[Provider::Uprobe]) && !self.only_at(&[Provider::Usdt]) {
            let message = "The args builtin can only be used with 'uprobe' and 'usdt' probes";
            let providers: Vec<Provider> = self.points.iter().map(|point| point.provider).collect();
            return self.advised(span, message, advice::argument("args.name", &providers));
        }
        let Some(point) = self.points.first() else { return self.unknown() };
        match self.types.signature(point) {
            Ok(signature) => Ok(signature),
            Err(message) => self.error(span, message),
        }
    }

    /// Makes sure that the first `count` parameters are the same at all attach points.
    fn agree(&mut self, first: &Signature, count: usize, span: Span) -> Checking<()> {
        for index in 1..self.points.len() {
            let point = &self.points[index];
            let other = match self.types.signature(point) {
                Ok(signature) => signature,
                Err(message) => return self.error(span, message),
            };
            let is_same_abi = other.convention == first.convention
                && self.has_hidden(&other, span)? == self.has_hidden(first, span)?;
            if other.parameters.get(..count) != first.parameters.get(..count)
                || other.kept.get(..count) != first.kept.get(..count)
                || count > 0 && !is_same_abi
            {
                let (a, b) = (self.points[0].text(), self.points[index].text());
                return self.error_with(
                    span,
                    format!("{a} and {b} have different arguments"),
                    "give each of them a block of its own",
                );
            }
        }
        Ok(())
    }

    /// Makes sure that the compiler passes these parameters.
    fn are_passed(&mut self, signature: &Signature, wanted: Range<usize>, span: Span) -> Checking<()> {
        let gone = |at: &usize| signature.kept.get(*at) == Some(&false);
        match wanted.into_iter().find(gone).and_then(|at| signature.parameters.get(at)) {
            Some(parameter) => self.left_out(parameter, span),
            None => Ok(()),
        }
    }

    fn left_out<T>(&mut self, parameter: &Parameter, span: Span) -> Checking<T> {
        let message = format!("the compiler has left out the argument {}, or moved it", parameter.name);
        self.error_with(span, message, "arg0, arg1, … are the registers as they are")
    }

    /// Whether the caller says in front of the arguments where the result is to be.
    fn has_hidden(&mut self, signature: &Signature, span: Span) -> Checking<bool> {
        let convention = self.types.context().convention;
        Ok(match &signature.result {
            CType::Void | CType::Function | CType::Float { .. } => false,
            _ if convention == CallingConvention::Aapcs64 => false,
            result if convention == CallingConvention::I386 => number_type(result).is_none(),
            _ if signature.result_in_memory => true,
            result => self.pieces(&result.clone(), span)?.is_none(),
        })
    }

    /// Where the first `count` parameters are; if it is not the `whole` of them that is wanted,
    /// only the last must be known.
    fn places(&mut self, signature: &Signature, count: usize, whole: bool, span: Span) -> Checking<Vec<Place>> {
        if self.only_at(&[Provider::Usdt]) {
            // Each probe says where its arguments are.
            let place = |(number, parameter): (usize, &Parameter)| {
                let word = value(Type::INT, ValueKind::Builtin(Builtin::Arg(number as u32)));
                Place::new(Base::Words(vec![word]), parameter.ty.clone())
            };
            return Ok(signature.parameters.iter().take(count).enumerate().map(place).collect());
        }
        if let Convention::Go { registers } = signature.convention {
            return self.go_places(signature, count, registers, span);
        }
        let hidden = self.has_hidden(signature, span)?;
        let context = self.types.context();
        let is_short = context.convention == CallingConvention::I386;
        let is_aapcs = context.convention == CallingConvention::Aapcs64;
        let (mut integers, mut floats) = (usize::from(hidden && !is_short), 0);
        let mut taken = Taken { integers, floats, stack: 8 * u64::from(context.words_before_arguments()) };
        let mut lost: Option<(String, String)> = None;
        let word = u64::from(self.types.word());
        // From the stack pointer to the first argument that is on the stack.
        let before = word * u64::from(context.words_before_arguments());
        let mut stack = if hidden && is_short { word } else { 0 };
        let mut places = Vec::new();
        let wanted = count.saturating_sub(1);
        // A parameter is in a register that is not its own.
        let mut is_moved = false;
        for (index, parameter) in signature.parameters.iter().take(count).enumerate() {
            let Parameter { name, ty, passed, parts } = parameter;
            let there: Vec<Range<u64>> = parts.iter().map(|(of, _)| 8 * of.start..8 * of.end).collect();
            let own = match passed {
                Passed::Pieces(pieces) => {
                    lost = None;
                    pieces.iter().for_each(|(argument, _)| taken.take(*argument));
                    let size = self.size(ty, span)?;
                    Some(self.in_registers(pieces, size))
                }
                Passed::At(argument) => {
                    lost = None;
                    taken.take(*argument);
                    Some(Base::Address(self.argument_register(*argument)))
                }
                Passed::Convention if signature.convention == Convention::Scalars && !is_short => {
                    let (by, size) = (self.scalars(ty, span)?, self.size(ty, span)?);
                    if by == By::Unknown {
                        lost.get_or_insert_with(|| (name.clone(), ty.name()));
                    }
                    match (&lost, self.next_scalars(by, size, &mut taken)) {
                        (None, Some(base)) => Some(base),
                        // Of those before the one that was asked for, it does not matter.
                        _ if index < wanted && !whole => Some(Base::Words(Vec::new())),
                        _ => {
                            let (name, of) = lost.unwrap_or_default();
                            let message = format!(
                                "only the compiler knows where the argument {name} of type '{of}' is, and those behind it"
                            );
                            return self.error_with(span, message, "arg0, arg1, … are the registers as they are");
                        }
                    }
                }
                Passed::Convention => None,
                Passed::Register(at) if number_type(ty).is_some() => Some(Base::Words(vec![register(*at)])),
                Passed::Stack(offset) => {
                    Some(Base::Address(plus(register(context.stack_pointer), super::expr::int(before + offset))))
                }
                // Of those before the one that was asked for, it does not matter.
                _ if index < wanted && !whole => Some(Base::Words(Vec::new())),
                _ => {
                    let message =
                        format!("only the compiler knows where the argument {name} of this function is passed");
                    return self.error_with(span, message, "reg(\"ax\") and so on are the registers as they are");
                }
            };
            // What is found by its location has its place in the convention of C all the same, and
            // those behind it come behind that.
            let has_registers = matches!(context.convention, CallingConvention::SystemV | CallingConvention::Aapcs64);
            let is_counted =
                has_registers && matches!(passed, Passed::Pieces(_)) && signature.convention == Convention::C;
            let own = match own {
                Some(base) if !is_counted => {
                    places.push(Place { there, ..Place::new(base, ty.clone()) });
                    continue;
                }
                own => own,
            };
            let is_found = own.is_some();
            let size = self.size(ty, span)?;
            let pieces = if is_short { None } else { self.pieces(ty, span)? };
            // A large value is in memory of the caller, whose address is passed.
            let by_address = is_aapcs && pieces.is_none();
            let pieces = if by_address { Some(vec![Piece::word(Class::Integer, 0)]) } else { pieces };
            let size = if by_address { word } else { size };
            let align = if is_short || by_address { word } else { self.align(ty, span)?.max(word) };
            let of = |class| pieces.iter().flatten().filter(|piece| piece.class == class).count();
            if is_aapcs && align == 2 * word && of(Class::Integer) == 2 {
                integers = integers.next_multiple_of(2);
            }
            let before_it = (integers, floats);
            let fits = integers + of(Class::Integer) <= context.arguments.len()
                && floats + of(Class::Float) <= context.floats.len();
            let base = match &pieces {
                Some(pieces) if fits => {
                    let words = joined(pieces, size, |class| match class {
                        Class::Integer => {
                            integers += 1;
                            Some(value(Type::INT, ValueKind::Builtin(Builtin::Arg(integers as u32 - 1))))
                        }
                        Class::Float => {
                            floats += 1;
                            Some(register(context.float(floats as u16 - 1)))
                        }
                    });
                    match words {
                        Some(mut words) if by_address => Base::Address(words.remove(0)),
                        Some(words) => Base::Words(words),
                        None if is_found || index < wanted && !whole => Base::Words(Vec::new()),
                        None => return self.unseen(&format!("the argument {name}"), ty, span),
                    }
                }
                _ => {
                    if is_aapcs {
                        // What comes behind is not in registers of this kind.
                        match of(Class::Float) {
                            0 => integers = context.arguments.len(),
                            _ => floats = context.floats.len(),
                        }
                    }
                    stack = u64::next_multiple_of(stack, align);
                    let at = plus(register(context.stack_pointer), super::expr::int(before + stack));
                    stack += size.next_multiple_of(word);
                    match by_address {
                        true => Base::Address(value(Type::UINT, ValueKind::Load(Box::new(at)))),
                        false => Base::Address(at),
                    }
                }
            };
            // The register that C has for the part of the value that begins with a bit.
            let own_register = |bit: u64| {
                let (mut integers, mut floats) = before_it;
                let own = |piece: &Piece| {
                    let next = match piece.class {
                        Class::Integer => &mut integers,
                        Class::Float => &mut floats,
                    };
                    *next += 1;
                    (piece.bit, piece.class, *next - 1)
                };
                let found = pieces.iter().flatten().map(own).find(|(first, ..)| *first == bit);
                found.filter(|_| fits).map(|(_, class, number)| match class {
                    Class::Integer => Argument::Integer(number as u8),
                    Class::Float => Argument::Float(number as u8),
                })
            };
            is_moved |= match passed {
                Passed::Pieces(pieces) => {
                    let mut bit = 0;
                    !pieces.iter().all(|(argument, bytes)| {
                        let own = own_register(bit);
                        bit += 8 * u64::from(*bytes);
                        own == Some(*argument)
                    })
                }
                _ => !parts
                    .iter()
                    .all(|(of, argument)| argument.is_none_or(|argument| own_register(8 * of.start) == Some(argument))),
            };
            places.push(Place { there, ..Place::new(own.unwrap_or(base), ty.clone()) });
        }
        let is_guess = |at: &usize| signature.parameters[*at].passed == Passed::Convention;
        let asked = if whole { 0..count } else { wanted..count };
        match asked.filter(|_| is_moved).find(is_guess) {
            Some(at) => self.left_out(&signature.parameters[at], span),
            None => Ok(places),
        }
    }

    /// The registers that a value is in; `None`: it is in memory.
    fn pieces(&mut self, ty: &CType, span: Span) -> Checking<Option<Vec<Piece>>> {
        match self.types.context().convention {
            CallingConvention::Aapcs64 => self.aapcs64_pieces(ty, span),
            CallingConvention::Aapcs32 => {
                let message = format!("where 32-bit Arm code has a value of type '{}' is not known", ty.name());
                self.error_with(span, message, "read a register: reg(\"r0\")")
            }
            CallingConvention::SystemV | CallingConvention::I386 => self.system_v_pieces(ty, span),
        }
    }

    /// Programs see the lower half of a vector register only.
    fn unseen<T>(&mut self, what: &str, ty: &CType, span: Span) -> Checking<T> {
        let message = format!("{what} of type '{}' is in registers that are not seen", ty.name());
        self.error_with(span, message, "of a vector register the lower 8 bytes are known")
    }

    pub(super) fn align(&mut self, ty: &CType, span: Span) -> Checking<u64> {
        Ok(match ty {
            CType::Array(of, _) => self.align(of, span)?,
            CType::Record(record) => self.layout(record, span)?.align,
            other => other.align(self.types.word(), &mut |_| None).unwrap_or(1),
        })
    }
}
