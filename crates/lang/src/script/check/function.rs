//! `fn name($a : int64) : int64 { … }`: checked like a block, and nothing else is made of it.

use super::super::ast::{self, Expr, Sized, Stmt, StmtKind, TypeName};
use super::super::checked::ValueKind;
use super::super::diagnostic::Span;
use super::super::number;
use super::super::types::Type;
use super::{Checker, Checking};

/// The function that is checked.
pub(super) struct Returns {
    name: String,
    /// What it gives; `None`: nothing, it is `void`.
    ty: Option<Type>,
}

impl Checker<'_> {
    pub(super) fn function(&mut self, function: &ast::Function) -> Checking<()> {
        self.points = &[];
        self.vars.clear();
        self.free.clear();
        self.owners.clear();
        self.scopes = vec![Default::default()];
        self.typed.clear();
        // A type may be that of another parameter.
        let of_another = |ty: &Sized| matches!(ty, Sized::Expr(_));
        let (later, first): (Vec<_>, Vec<_>) = function.params.iter().partition(|(_, ty, _)| of_another(ty));
        for (name, ty, span) in first.into_iter().chain(later) {
            self.typed_var(name, ty, None, *span, &mut Vec::new())?;
        }
        let ty = match &function.result {
            Sized::Type(TypeName { keyword: "", name, stars: 0, length: None, .. }) if name == "void" => None,
            ty => Some(self.declared_type(ty, function.span)?),
        };
        let needs_value = ty.is_some();
        self.returns = Some(Returns { name: function.name.clone(), ty });
        self.stmts(&function.body);
        let result = match needs_value && !returns(&function.body) {
            true => self.returns_nothing(function.span),
            false => Ok(()),
        };
        self.returns = None;
        self.walks = 0;
        self.vars.clear();
        self.owners.clear();
        result
    }

    /// `return`, of a function.
    pub(super) fn returned(&mut self, value: Option<&Expr>, span: Span) -> Checking<()> {
        let Some(value) = value else { return self.returns_nothing(span) };
        let given = self.expr(value)?;
        let Some(Returns { name, ty }) = &self.returns else { return Ok(()) };
        let fits = match (ty, &given.ty, &given.kind) {
            (Some(Type::Int { bytes, .. }), Type::Int { .. }, ValueKind::Int(n)) => {
                matches!(number::of_literal(*n), Type::Int { bytes: needed, .. } if needed / 2 <= *bytes)
            }
            (Some(ty), given, _) => ty.fits(given) || *given == Type::None && !self.last,
            (None, ..) => false,
        };
        if fits {
            return Ok(());
        }
        let ty = ty.as_ref().map_or("void".to_owned(), Type::name);
        let message = format!("Function {name} is of type {ty}, cannot return {}", given.ty.name());
        self.error(value.span, message)
    }

    fn returns_nothing(&mut self, span: Span) -> Checking<()> {
        match &self.returns {
            Some(Returns { name, ty: Some(ty) }) => {
                let message = format!("Function {name} is of type {}, cannot return void", ty.name());
                self.error(span, message)
            }
            _ => Ok(()),
        }
    }
}

/// Whether nothing runs behind these statements.
fn returns(body: &[Stmt]) -> bool {
    match body.last().map(|last| &last.kind) {
        Some(StmtKind::Return(_)) => true,
        Some(StmtKind::If { then, otherwise, .. }) => returns(then) && returns(otherwise),
        _ => false,
    }
}
