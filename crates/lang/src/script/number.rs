//! Types of numbers: how they grow with what is assigned.
//!
//! A variable, a map or a key has the smallest type that holds all that it is given, as in
//! bpftrace: of one sign the larger one; a signed type if it is wider than the unsigned one; else
//! one with a sign of twice the width. A literal that is not negative takes the other's sign.

use super::types::Type;

/// Bytes and sign of a number.
fn parts(ty: &Type) -> Option<(u8, bool)> {
    match ty {
        Type::Int { bytes, signed } => Some((*bytes, *signed)),
        _ => None,
    }
}

/// The smallest type that holds a literal: one with a sign if there is any.
#[must_use]
pub fn of_literal(value: u64) -> Type {
    match i64::try_from(value) {
        Ok(value) => of_signed(value),
        Err(_) => Type::UINT,
    }
}

/// The smallest type with a sign that holds a number.
#[must_use]
pub fn of_signed(value: i64) -> Type {
    let holds = |bytes: &u8| {
        let most = i64::MAX >> (64 - 8 * u32::from(*bytes));
        (-most - 1..=most).contains(&value)
    };
    Type::Int { bytes: [1, 2, 4].into_iter().find(holds).unwrap_or(8), signed: true }
}

/// The type that holds numbers of both, and whether none holds all of them.
#[must_use]
pub fn joined(a: &Type, b: &Type) -> (Type, bool) {
    let (Some((wide, signed)), Some((other, other_signed))) = (parts(a), parts(b)) else { return (a.clone(), false) };
    if signed == other_signed {
        return (Type::Int { bytes: wide.max(other), signed }, false);
    }
    let (with, without) = if signed { (wide, other) } else { (other, wide) };
    match with > without {
        true => (Type::Int { bytes: with, signed: true }, false),
        false => (Type::Int { bytes: (2 * without).min(8), signed: true }, without == 8),
    }
}

/// A number as 64 bits of the same sign: what arithmetic gives.
#[must_use]
pub fn widest(ty: &Type) -> Type {
    match ty {
        Type::Int { signed, .. } => Type::Int { bytes: 8, signed: *signed },
        ty => ty.clone(),
    }
}

/// A number that a variable, map or key gets.
#[derive(Clone, Copy, Debug)]
pub struct New<'a> {
    /// Its type.
    pub ty: &'a Type,
    /// It is known, and not negative.
    pub literal: Option<u64>,
}

/// Makes room for a number in a place of type `known`, which so far got nothing but literals that
/// are not negative if `free`. Returns whether no type holds all that is there.
pub fn grow(known: &mut Type, free: &mut bool, new: New<'_>) -> bool {
    let (Some((bytes, signed)), Some((other, other_signed))) = (parts(known), parts(new.ty)) else {
        known.widen(new.ty);
        return false;
    };
    let was_free = std::mem::replace(free, *free && new.literal.is_some() && other_signed);
    match new.literal {
        // It takes the sign of what is there.
        Some(literal) if !signed => {
            let needs = [1, 2, 4].into_iter().find(|bytes| literal >> (8 * bytes) == 0).unwrap_or(8);
            *known = Type::Int { bytes: bytes.max(needs), signed };
            false
        }
        // What is there takes its sign.
        _ if was_free && signed && !other_signed => {
            *known = Type::Int { bytes: bytes.max(other), signed: false };
            false
        }
        _ => {
            let (ty, lost) = joined(known, new.ty);
            *known = ty;
            lost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(bytes: u8, signed: bool) -> Type {
        Type::Int { bytes, signed }
    }

    #[test]
    fn literals_have_the_smallest_type_with_a_sign() {
        for (n, bytes) in [(0, 1), (127, 1), (128, 2), (-128, 1), (-129, 2), (1 << 31, 8), (i64::MIN, 8)] {
            assert_eq!(of_signed(n), int(bytes, true), "{n}");
        }
        assert_eq!(of_literal(u64::MAX), Type::UINT);
    }

    #[test]
    fn two_types_become_one_that_holds_both() {
        for (a, b, both, lost) in [
            (int(1, false), int(4, false), int(4, false), false),
            (int(1, true), int(1, false), int(2, true), false),
            (int(4, false), int(4, true), int(8, true), false),
            (int(8, true), int(4, false), int(8, true), false),
            (int(8, false), int(1, true), int(8, true), true),
        ] {
            assert_eq!(joined(&a, &b), (both.clone(), lost), "{a:?} {b:?}");
            assert_eq!(joined(&b, &a), (both, lost), "{b:?} {a:?}");
        }
    }

    #[test]
    fn literals_take_the_sign_of_what_is_there() {
        let (mut known, mut free) = (int(1, true), true);
        assert!(!grow(&mut known, &mut free, New { ty: &Type::UINT, literal: None }));
        assert_eq!((&known, free), (&Type::UINT, false));
        assert!(!grow(&mut known, &mut free, New { ty: &int(1, true), literal: Some(5) }));
        assert_eq!(known, Type::UINT);
        assert!(grow(&mut known, &mut free, New { ty: &int(1, true), literal: None }));
        assert_eq!(known, Type::INT);
    }
}
