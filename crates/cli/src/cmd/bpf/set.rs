//! `--set NAME=VALUE`: global variables of an object before it starts, as users of libbpf set those
//! of a skeleton.

use anyhow::{Context, bail, ensure};
use sidestep_bpf::dump;
use sidestep_bpf::object::{Btf, Kind, Object};

/// Where a variable is, and which integers it can hold.
struct Place {
    map: usize,
    offset: usize,
    size: usize,
    signed: bool,
    is_bool: bool,
    /// Names of values.
    named: Vec<(String, i64)>,
}

/// Sets variables of an object that was read from `file`.
pub fn variables(object: &mut Object, file: &[u8], texts: &[String]) -> anyhow::Result<()> {
    if texts.is_empty() {
        return Ok(());
    }
    let Some(types) = dump::placed_types(file)? else { bail!("the object has no types: compile with -g") };
    let places = places(object, &types)?;
    for text in texts {
        let (name, value) = text.split_once('=').with_context(|| format!("\"{text}\" is not NAME=VALUE"))?;
        let Some((_, place)) = places.iter().find(|(known, _)| known == name) else {
            let names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
            match names.is_empty() {
                true => bail!("there is no variable '{name}': the object has no global integers"),
                false => bail!("there is no integer variable '{name}'; there are: {}", names.join(", ")),
            }
        };
        let bytes = place.bytes(value).with_context(|| format!("{name} cannot be \"{value}\""))?;
        let map = &mut object.maps[place.map].map;
        // Of zeros nothing was kept.
        map.initial.resize(map.value_size as usize, 0);
        let to = map.initial.get_mut(place.offset..place.offset + place.size);
        to.with_context(|| format!("{name} is outside of its section: compile again"))?.copy_from_slice(&bytes);
    }
    Ok(())
}

/// All integers in sections of variables, by name.
fn places(object: &Object, types: &Btf) -> anyhow::Result<Vec<(String, Place)>> {
    let mut places = Vec::new();
    for (map, shape) in object.maps.iter().enumerate() {
        for variable in types.section(&shape.map.name).unwrap_or_default() {
            let declared = types.get(variable.ty)?;
            let Kind::Variable(ty) = declared.kind else { continue };
            let (size, signed, is_bool, named) = match &types.resolve(ty)?.kind {
                Kind::Int { size, signed, is_bool, .. } if *size <= 8 => (*size, *signed, *is_bool, Vec::new()),
                Kind::Enum { size, values } => (*size, values.iter().any(|(_, v)| *v < 0), false, values.clone()),
                _ => continue,
            };
            let (offset, size) = (variable.offset as usize, size as usize);
            places.push((declared.name.clone(), Place { map, offset, size, signed, is_bool, named }));
        }
    }
    Ok(places)
}

impl Place {
    fn bytes(&self, text: &str) -> anyhow::Result<Vec<u8>> {
        let named = self.named.iter().find(|(name, _)| name == text).map(|(_, value)| i128::from(*value));
        let value = match (named, text, self.is_bool) {
            (Some(value), ..) => value,
            (_, "true", true) => 1,
            (_, "false", true) => 0,
            _ => integer(text).context("it is no integer")?,
        };
        let bits = 8 * self.size as u32;
        let (least, most) = match (self.is_bool, self.signed) {
            (true, _) => (0, 1),
            (_, true) => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
            (_, false) => (0, (1i128 << bits) - 1),
        };
        ensure!((least..=most).contains(&value), "it holds {least} to {most}");
        Ok(value.to_le_bytes()[..self.size].to_vec())
    }
}

/// Decimal, or hexadecimal with `0x`.
fn integer(text: &str) -> Option<i128> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let number = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => digits.parse::<u64>(),
    };
    Some(sign * i128::from(number.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(size: usize, signed: bool, is_bool: bool, text: &str) -> Option<Vec<u8>> {
        let named = vec![("RED".to_owned(), 3)];
        Place { map: 0, offset: 0, size, signed, is_bool, named }.bytes(text).ok()
    }

    #[test]
    fn values_fit_their_types() {
        assert_eq!(bytes(4, true, false, "-2"), Some(vec![0xfe, 0xff, 0xff, 0xff]));
        assert_eq!(bytes(2, false, false, "0xffff"), Some(vec![0xff, 0xff]));
        assert_eq!(bytes(8, false, false, "18446744073709551615"), Some(vec![0xff; 8]));
        assert_eq!(bytes(8, true, false, "-9223372036854775808"), Some(vec![0, 0, 0, 0, 0, 0, 0, 0x80]));
        assert_eq!(bytes(1, false, true, "true"), Some(vec![1]));
        assert_eq!(bytes(4, false, false, "RED"), Some(vec![3, 0, 0, 0]));
        for (size, signed, is_bool, text) in [
            (2, false, false, "65536"),
            (4, false, false, "-1"),
            (1, true, false, "128"),
            (1, false, true, "2"),
            (4, false, false, "true"),
            (8, true, false, "9223372036854775808"),
            (4, true, false, ""),
            (4, true, false, "--1"),
            (4, true, false, "1x"),
        ] {
            assert_eq!(bytes(size, signed, is_bool, text), None, "{text}");
        }
    }
}
