//! All of an object, analysed at once.

use std::sync::OnceLock;

use super::{Analysis, IsOver, number_of, sorted, words};
use crate::analysis::discover::discover;
use crate::analysis::family::Families;
use crate::analysis::sweep::{self, Borders};
use crate::object::ObjectCode;

impl Analysis {
    pub(super) fn new(code: &ObjectCode<'_>, is_over: IsOver<'_>) -> Analysis {
        let mut starts = sorted(code.extents.iter().map(|e| e.start).filter(|s| code.is_text(*s)).collect());
        let landing_pads = sorted(code.landing_pads.clone());

        let mut stretches = sweep::stretches(code);
        let mut found = sweep::sweep(code, &starts, &mut stretches, |stretch| stretch.borders != Borders::Gap);
        // Of Go's functions, symbols or its own tables describe all.
        let pieces = if code.go { Vec::new() } else { discover(code, &stretches, &found, is_over) };
        if is_over() {
            stretches.clear();
        }
        starts = sorted(starts.into_iter().chain(pieces.iter().filter(|p| p.entry).map(|p| p.range.start)).collect());
        stretches = sweep::split(stretches, &pieces);
        found.append(sweep::sweep(code, &starts, &mut stretches, |stretch| {
            matches!(stretch.borders, Borders::Found | Borders::Gap)
        }));
        found.edges.sort();
        let joined = pieces.windows(2).filter(|pair| pair[1].joins);
        found.leaving.extend(joined.map(|pair| (pair[0].range.start, pair[1].range.start)));
        let labels = sorted(code.labels.iter().chain(&starts).copied().collect());

        let mut named = found.named;
        named.extend(code.pointers.iter().filter(|p| code.is_text(**p)));
        // Sections of text may hold tables, too. Where too many numbers look like addresses, all
        // absolute addresses are in relocations, or the reader has looked for them.
        if code.isa.limits().words_name_code {
            for section in code.data.iter().chain(&code.text) {
                words(section, code, &mut named);
            }
        }
        named.retain(|va| code.isa.can_begin_at(*va));
        let named = sorted(named);

        let mut families = if code.go {
            // Several instructions are never displaced in Go code (except its stack check), so
            // nothing depends on it.
            Families::new(code, &[], &starts, &[], |_| None)
        } else {
            Families::new(code, &stretches, &starts, &found.leaving, |va| number_of(&stretches, va))
        };
        families.doubt_computed(&stretches, &found.labels, &found.computed, &starts);
        Analysis {
            table_targets: families.targets(code),
            stretches,
            families,
            edges: found.edges,
            starts,
            labels,
            landing_pads,
            named,
            holes: OnceLock::new(),
            exclusive: found.exclusive,
        }
    }
}
