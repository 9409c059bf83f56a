//! What is said with its place if it fails, with `-k`.

use super::super::ast::{Expr, ExprKind};
use super::super::checked::{Action, Entry, Failure, Memory, Noted, Value, ValueKind};
use super::super::diagnostic::Span;
use super::Checker;

impl Checker<'_> {
    /// A read of an entry, or its removal.
    pub(super) fn counted(&mut self, entry: Entry, failure: Failure, span: Span) -> Entry {
        Entry { read: self.note(failure, span), ..entry }
    }

    /// A read of the memory that an expression names.
    pub(super) fn note_read(&mut self, span: Span) -> Option<usize> {
        self.note(Failure::Read(self.memory()), span)
    }

    /// An address that a text is read at.
    pub(super) fn noted_text(&mut self, address: Value, span: Span) -> Value {
        let read = self.note(Failure::ReadText(self.memory()), span);
        noted(address, read)
    }

    /// Whose memory the block reads.
    fn memory(&self) -> Memory {
        let is_program = self.points.iter().any(|point| point.provider.has_target());
        if is_program { Memory::Program } else { Memory::Any }
    }

    fn note(&mut self, failure: Failure, span: Span) -> Option<usize> {
        if !self.out.config.count_reads {
            return None;
        }
        let known = self.out.reads.iter().position(|known| (known.failure, known.span) == (failure, span));
        Some(known.unwrap_or_else(|| {
            let action = self.action(Action::Failure(failure, span));
            self.out.reads.push(Noted { failure, span, action });
            self.out.reads.len() - 1
        }))
    }
}

/// An address; what is noted if nothing can be read there.
pub(super) fn noted(address: Value, read: Option<usize>) -> Value {
    match read {
        None => address,
        Some(read) => Value { ty: address.ty.clone(), kind: ValueKind::Noted(Box::new(address), read) },
    }
}

/// Where an expression reads: of a member, the part behind what it is a member of.
pub(super) fn access(expr: &Expr) -> Span {
    match &expr.kind {
        ExprKind::Member(of, _) if of.span.end < expr.span.end => Span { start: of.span.end, end: expr.span.end },
        _ => expr.span,
    }
}
