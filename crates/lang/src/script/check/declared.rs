//! Maps that are declared: `let @name = lruhash(100);`

use super::super::ast::DeclaredMap;
use super::super::checked::PER_THREAD;
use super::super::diagnostic::Diagnostic;
use super::{Checker, Checking};

/// Kinds, whether each thread has its own values in them, and whether old keys make room for new
/// ones.
const KINDS: [(&str, bool, bool); 4] =
    [("hash", false, false), ("lruhash", false, true), ("percpuhash", true, false), ("percpulruhash", true, true)];
/// Keys at most, as of the setting `max_map_keys`.
const ENTRIES: u64 = 10_000_000;

impl Checker<'_> {
    /// Notes what a declaration says.
    pub(super) fn declared_map(&mut self, map: &DeclaredMap, all: &[DeclaredMap]) -> Checking<()> {
        let first = all.iter().find(|other| other.name == map.name);
        if first.is_some_and(|first| first.span != map.span) {
            return self.error(map.span, format!("Redefinition of map: @{}", map.name));
        }
        let Some((.., evicts)) = KINDS.into_iter().find(|(kind, ..)| *kind == map.kind) else {
            let message = format!("Invalid bpf map type: {}", map.kind);
            return self.error_with(map.span, message, "there are hash, lruhash, percpuhash and percpulruhash");
        };
        if !(1..=ENTRIES).contains(&map.entries) {
            let message = format!("@{} must have 1 to {ENTRIES} entries ({} provided)", map.name, map.entries);
            return self.error(map.span, message);
        }
        let index = self.map(&map.name);
        self.maps[index].declared = Some((map.entries as u32, evicts));
        Ok(())
    }

    /// Whether what the script does with a map is possible in one of its kind.
    pub(super) fn fits_declaration(&mut self, map: &DeclaredMap) -> Checking<()> {
        let index = self.map(&map.name);
        let Some(content) = self.maps[index].content.clone().filter(|_| self.last) else {
            if self.last && self.maps[index].keys.is_none() {
                self.found.push(Diagnostic::warning(map.span, format!("Unused map: @{}", map.name)));
            }
            return Ok(());
        };
        let is_per_thread = KINDS.iter().any(|(kind, per_thread, _)| *kind == map.kind && *per_thread);
        if is_per_thread != content.is_aggregate() {
            let (wanted, instead) = match content.is_aggregate() {
                true => ("percpuhash", "percpuhash and percpulruhash are for count(), sum(), hist() and their like"),
                false => ("hash", "hash and lruhash are for values that are assigned"),
            };
            let message = format!(
                "Incompatible map types. Type from declaration: {}. Type from value/key type: {wanted}",
                map.kind
            );
            return self.error_with(map.span, message, instead);
        }
        let room = PER_THREAD / (content.stored() + 8);
        if is_per_thread && map.entries > room as u64 {
            let message = format!("@{} has room for {room} keys: each thread has its own values", map.name);
            self.found.push(Diagnostic::warning(map.span, message));
        }
        Ok(())
    }
}
