//! `self.x`: what a call keeps from its entry to its return.

use super::super::ast::{BinaryOp, Provider};
use super::super::checked::{Op, Value, ValueKind};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::memory::WIDEST;
use super::{Checker, Checking};

impl Checker<'_> {
    /// The value of `self.name`.
    pub(super) fn own(&mut self, name: &str, span: Span) -> Checking<Value> {
        let index = self.own_index(name, span)?;
        match &self.own[index].1 {
            Type::None if self.last => {
                self.error_with(span, format!("self.{name} is never assigned"), "assign it in a uprobe of the function")
            }
            ty => Ok(Value { ty: ty.clone(), kind: ValueKind::Own(index) }),
        }
    }

    /// `self.name op= value`
    pub(super) fn set_own(
        &mut self,
        name: &str,
        op: Option<BinaryOp>,
        value: Value,
        span: Span,
        ops: &mut Vec<Op>,
    ) -> Checking<()> {
        let index = self.own_index(name, span)?;
        self.sets_own = true;
        let value = match op {
            Some(op) => {
                let old = self.own(name, span)?;
                self.binary(op, old, value, span)?
            }
            None => value,
        };
        let ty = value.ty.clone();
        match &mut self.own[index].1 {
            _ if ty == Type::None => return self.no_value(span),
            known @ Type::None => *known = ty,
            known if known.fits(&ty) => {
                let literal = super::assign::literal(&value);
                super::super::number::grow(known, &mut false, super::super::number::New { ty: &ty, literal });
            }
            known => {
                let known = known.name();
                let message = format!(
                    "Type mismatch for self.{name}: trying to assign value of type '{}' when it already contains a value of \
                     type '{known}'",
                    ty.name()
                );
                return self.error(span, message);
            }
        }
        let all: usize = self.own.iter().map(|(_, ty)| ty.stored()).sum();
        if all > WIDEST {
            let message = format!("the values of self take {all} bytes: at most {WIDEST} are kept");
            return self.error_with(span, message, "keep some of their members, or lower max_strlen");
        }
        ops.push(Op::SetOwn(index, value));
        Ok(())
    }

    /// The address of a result that is in memory. The function gets the address and need not return
    /// it: code that no other file calls often does not, whatever the calling convention says.
    pub(super) fn result_address(&mut self, span: Span) -> Checking<Value> {
        // A name that no script has: one for each block.
        let index = self.own_index(&format!("#{}", self.out.blocks.len()), span)?;
        self.own[index].1 = Type::UINT;
        self.result_in = Some(index);
        Ok(Value { ty: Type::UINT, kind: ValueKind::Own(index) })
    }

    fn own_index(&mut self, name: &str, span: Span) -> Checking<usize> {
        self.at_calls("self", span)?;
        self.uses_own = true;
        match self.own.iter().position(|(known, _)| known == name) {
            Some(index) => Ok(index),
            None => {
                self.own.push((name.to_owned(), Type::None));
                Ok(self.own.len() - 1)
            }
        }
    }

    /// All of the block's points are entries or returns of functions.
    pub(super) fn at_calls(&mut self, what: &str, span: Span) -> Checking<()> {
        if !self.only_at(&[Provider::Uprobe, Provider::Uretprobe]) {
            let message = format!("The {what} builtin can only be used with 'uprobe' and 'uretprobe' probes");
            return self.error(span, message);
        }
        let is_inside = |field: &super::ast::Field| !field.quoted && field.text.contains('+');
        match self.points.iter().any(|point| point.fields.last().is_some_and(is_inside)) {
            true => {
                self.error(span, format!("The {what} builtin is not known inside of a function, but where it begins"))
            }
            false => Ok(()),
        }
    }
}
