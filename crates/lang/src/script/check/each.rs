//! Loops over maps.

use std::collections::HashMap;

use super::super::ast::{Expr, ExprKind, Stmt};
use super::super::checked::{Each, Op};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::aggregate::readable;
use super::{Checker, Checking};

impl Checker<'_> {
    /// `for ($name : @map)`
    pub(super) fn for_map(
        &mut self,
        name: &str,
        map: &Expr,
        body: &[Stmt],
        span: Span,
        ops: &mut Vec<Op>,
    ) -> Checking<()> {
        if !matches!(map.kind, ExprKind::Map(..)) {
            return self.error_with(map.span, "Loop expression must be a map", "numbers are $from..$to");
        }
        let index = self.map_argument("for", map)?;
        if self.find_var(name).is_some() {
            return self.error(span, format!("Loop declaration shadows existing variable: ${name}"));
        }
        self.maps[index].read = true;
        let state = &self.maps[index];
        let value = match &state.content {
            Some(content) => match readable(content) {
                Some(ty) => ty,
                None => {
                    let message = format!("Loop expression does not support type: {}", content.name());
                    return self.error(map.span, message);
                }
            },
            None => Type::None,
        };
        let key = match state.keys.as_deref() {
            Some([]) => {
                let message = format!("@{} has no keys (scalar map), and cannot be used in a loop", state.name);
                return self.error(map.span, message);
            }
            Some([key]) => key.clone(),
            Some(keys) => Type::Tuple(keys.to_vec().into()),
            None => Type::None,
        };
        // Not known yet.
        let ty =
            if value == Type::None || key == Type::None { Type::None } else { Type::Tuple(vec![key, value].into()) };
        let outer = self.enter_function();
        let number = self.walk;
        self.scopes.push(HashMap::new());
        let var = self.declare(name, ty);
        let body = self.round(body);
        self.scopes.pop();
        self.walk = outer;
        ops.push(Op::Each(Box::new(Each { number, map: index, var, body })));
        Ok(())
    }
}
