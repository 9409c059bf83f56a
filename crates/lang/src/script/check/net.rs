//! Addresses of networks: `ntop()`, `pton()` and `macaddr()`.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::ast::Expr;
use super::super::checked::{Value, ValueKind};
use super::super::ctype::{CType, Net};
use super::super::diagnostic::Span;
use super::super::types::Type;
use super::memory::array;
use super::{Checker, Checking};

/// `AF_INET` and `AF_INET6` of Linux.
const FAMILIES: [(u64, Net); 2] = [(2, Net::V4), (10, Net::V6)];

impl Checker<'_> {
    /// `ntop(address)`, `ntop(family, address)`: a number, or 4 or 16 bytes in memory order.
    pub(super) fn ntop(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("ntop", args, 1, 2, span)?;
        let (family, address) = match args {
            [address] => (None, address),
            _ => (Some(&args[0]), &args[1]),
        };
        let wanted = match family {
            None => None,
            Some(family) => {
                let value = self.int_argument("ntop", family)?;
                match value.kind {
                    ValueKind::Int(n) => match FAMILIES.iter().find(|(number, _)| *number == n) {
                        Some((_, net)) => Some(*net),
                        None => {
                            let message = format!("ntop() does not know the address family {n}");
                            return self.error_with(family.span, message, "there are AF_INET (2) and AF_INET6 (10)");
                        }
                    },
                    // What is known only at run time says nothing that the size does not.
                    _ => None,
                }
            }
        };
        let value = self.expr(address)?;
        let net = match octets(&value) {
            Some(16) => Net::V6,
            Some(4) => Net::V4,
            None if value.ty.is_int() => Net::V4,
            Some(size) => {
                let message = format!("ntop() expects 4 or 16 bytes ({size} provided)");
                return self.error(address.span, message);
            }
            None => {
                let message =
                    format!("ntop() expects an integer or an array of 4 or 16 bytes ({} provided)", value.ty.kind());
                return self.error(address.span, message);
            }
        };
        if wanted.is_some_and(|wanted| wanted != net) {
            return self
                .error(span, format!("ntop(): an address of this family has {} bytes", wanted.map_or(0, Net::size)));
        }
        Ok(shown(value, net))
    }

    /// `macaddr(array)`, `macaddr(pointer)`: 6 bytes.
    pub(super) fn macaddr(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("macaddr", args, 1, 1, span)?;
        let value = self.expr(&args[0])?;
        match octets(&value) {
            Some(6) => Ok(shown(value, Net::Mac)),
            Some(size) => self.error(args[0].span, format!("macaddr() expects 6 bytes ({size} provided)")),
            None if value.ty.is_int() => {
                let ty = Type::Data { ty: CType::Net(Net::Mac), size: Net::Mac.size() };
                Ok(Value { ty, kind: ValueKind::Load(Box::new(Value { ty: Type::UINT, ..value })) })
            }
            None => {
                let message =
                    format!("macaddr() only supports array or pointer arguments ({} provided)", value.ty.kind());
                self.error(args[0].span, message)
            }
        }
    }

    /// `pton("10.0.0.1")`: the bytes of an address.
    pub(super) fn pton(&mut self, args: &[Expr], span: Span) -> Checking<Value> {
        self.arguments("pton", args, 1, 1, span)?;
        let text = self.literal("pton", &args[0])?;
        let bytes = match (text.parse::<Ipv4Addr>(), text.parse::<Ipv6Addr>()) {
            (Ok(address), _) => address.octets().to_vec(),
            (_, Ok(address)) => address.octets().to_vec(),
            _ => {
                return self.error(args[0].span, format!("pton() expects a valid IPv4/IPv6 address, got {text}"));
            }
        };
        Ok(constant_array(&bytes, false))
    }
}

/// An array of bytes that is known.
pub(super) fn constant_array(bytes: &[u8], signed: bool) -> Value {
    let word = |part: &[u8]| part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = bytes.chunks(8).map(|part| Value { ty: Type::UINT, kind: ValueKind::Int(word(part)) });
    let ty = CType::Array(Box::new(CType::Int { bytes: 1, signed }), bytes.len() as u64);
    Value { ty: Type::Data { ty, size: bytes.len() }, kind: ValueKind::Words(words.collect()) }
}

/// How many bytes an array of bytes has; `None`: it is something else.
fn octets(value: &Value) -> Option<usize> {
    match &value.ty {
        Type::Data { ty: CType::Array(of, length), .. } if matches!(**of, CType::Int { bytes: 1, .. }) => {
            Some(*length as usize)
        }
        // As arrays of `char` are read.
        Type::Text(_) => array(value).map(|(_, size)| size),
        _ => None,
    }
}

/// The same bytes as an address of a network.
fn shown(value: Value, net: Net) -> Value {
    let ty = Type::Data { ty: CType::Net(net), size: net.size() };
    let kind = match (&value.ty, array(&value)) {
        (Type::Text(_), Some((address, _))) => ValueKind::Load(Box::new(address)),
        (Type::Data { .. }, _) => ValueKind::Part(Box::new(value), 0),
        _ => ValueKind::Words(vec![value]),
    };
    Value { ty, kind }
}
