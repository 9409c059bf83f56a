//! What is asked of the object that a probe is in: `uaddr("symbol")`, `goid`.

use super::super::ast::{Expr, Provider};
use super::super::checked::{Builtin, Fact, Value, ValueKind};
use super::super::ctype::CType;
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `uaddr("symbol")`
    pub(super) fn uaddr(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("uaddr", args, 1, 1, span)?;
        let name = self.literal("uaddr", &args[0])?;
        if self.points.iter().any(|point| !point.provider.has_target()) {
            return self
                .error(span, "The uaddr function can only be used with 'uprobe', 'uretprobe' and 'usdt' probes");
        }
        let mut size = None;
        for point in self.points {
            match self.types.symbol(point, &name) {
                Ok(symbol) => {
                    size = Some(size.map_or(symbol.size, |known| if known == symbol.size { known } else { 0 }))
                }
                Err(message) => return self.error(args[0].span, message),
            }
        }
        let bytes = match size {
            Some(bytes @ (1 | 2 | 4)) => bytes as u8,
            _ => 8,
        };
        let fact = self.fact(Fact::Symbol(name));
        let ty = Type::Pointer(Box::new(CType::Int { bytes, signed: false }));
        Ok(Value { ty, kind: ValueKind::Builtin(Builtin::Symbol(fact)) })
    }

    /// `goid`
    pub(super) fn goid(&mut self, span: Span) -> Checking<Value> {
        if !self.only_at(&[Provider::Uprobe, Provider::Uretprobe]) {
            return self.error(span, "The goid builtin can only be used with 'uprobe' and 'uretprobe' probes");
        }
        for point in self.points {
            if let Err(message) = self.types.goroutines(point) {
                return self.error(span, message);
            }
        }
        let fact = self.fact(Fact::Goid);
        Ok(Value { ty: Type::UINT, kind: ValueKind::Builtin(Builtin::Goid(fact)) })
    }

    fn fact(&mut self, fact: Fact) -> usize {
        let facts = &mut self.out.facts;
        facts.iter().position(|known| *known == fact).unwrap_or_else(|| {
            facts.push(fact);
            facts.len() - 1
        })
    }
}
