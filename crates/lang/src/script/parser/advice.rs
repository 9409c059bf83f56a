//! What to do about a word that stands where it may not.

use super::super::ast::{Expr, ExprKind, Provider};
use super::super::token::TokenKind;

/// Names of C's types that a declaration may begin with.
const TYPES: &[&str] =
    &["int", "long", "short", "char", "unsigned", "signed", "float", "double", "size_t", "string", "auto", "var"];

/// For a word that is not what was expected: `expecting` is the end of the message.
pub(super) fn unexpected(token: &TokenKind, expecting: &str) -> Option<&'static str> {
    match (token, expecting) {
        (TokenKind::Punct("="), ", expecting , or )" | ", expecting )" | ", expecting /" | ", expecting {") => {
            Some("== compares")
        }
        (TokenKind::Punct("{"), ", expecting /") => Some("a predicate ends with a slash: /pid == 5/ { … }"),
        (TokenKind::Ident(_) | TokenKind::Var(_) | TokenKind::Map(_), ", expecting {") => {
            Some("what is done stands in braces: { … }")
        }
        (TokenKind::Punct("}"), ", expecting an attach point") => Some("there are more } than {"),
        (TokenKind::End, ", expecting }") => Some("a block that was begun by { has no end"),
        _ => None,
    }
}

/// For a word that follows a statement.
pub(super) fn behind(statement: &Expr) -> Option<String> {
    match &statement.kind {
        ExprKind::Ident(name) if TYPES.contains(&&**name) => {
            Some("variables need no type: $x = …; with one it is let $x : int32 = …".to_owned())
        }
        ExprKind::Ident(name) => Some(format!("a call has parentheses: {name}(…)")),
        ExprKind::Call(name, _) if matches!(&**name, "elif" | "elsif" | "elseif") => {
            Some("else if (…) { … } is two words".to_owned())
        }
        _ => None,
    }
}

/// For an assignment to something else than a variable.
pub(super) fn target(of: &Expr) -> Option<&'static str> {
    match &of.kind {
        ExprKind::Ident(_) => Some("variables of a block begin with $, maps, which all blocks share, with @"),
        ExprKind::Member(..) => Some("members of structures and tuples cannot be changed"),
        _ => None,
    }
}

/// For a probe that has too few names or too many.
pub(super) fn fields(provider: Provider) -> &'static str {
    match provider {
        Provider::Usdt => "usdt:PATH:PROVIDER:NAME, or usdt:PATH:NAME; sidestep -l 'usdt:PATH:*' lists them",
        Provider::Uretprobe => "uretprobe:PATH:FUNCTION, or with the name of a library: uretprobe:libc:malloc",
        _ => "uprobe:PATH:FUNCTION, or with the name of a library: uprobe:libc:malloc",
    }
}
