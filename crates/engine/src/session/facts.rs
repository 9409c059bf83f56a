//! What programs are told of their probes: what they are called, and how far from them symbols are.

use std::collections::HashMap;
use std::rc::Rc;

use sidestep_symbols::Object;

use crate::api::{About, Facts};
use crate::resolve::Match;
use crate::target::regions::Regions;

/// What was asked of which object.
type Asked = (*const Object, About);

/// What objects have said: an address, or the offset in `runtime.g`.
#[derive(Default)]
pub(crate) struct Known {
    // The object is kept, so that its address stays its own.
    numbers: HashMap<Asked, (Rc<Object>, Option<u64>)>,
}

impl Known {
    /// Fills the entry of a probe.
    pub fn tell(&mut self, facts: &Facts, entry: u64, label: &str, matched: &Match, regions: &Regions) {
        if let Some(places) = facts.places {
            regions.set_name(places, entry, label);
        }
        if let Some(words) = facts.words {
            let bytes: Vec<u8> = facts.of.iter().flat_map(|about| self.word(about, matched).to_ne_bytes()).collect();
            regions.set_value(words, entry, &bytes);
        }
    }

    fn word(&mut self, about: &About, matched: &Match) -> u64 {
        let object = &matched.object;
        let ask = || {
            let found = match about {
                About::Symbol(name) => object.symbol(name).map(|(va, _)| va.0),
                About::Goid => object.goid_offset(),
            };
            (Rc::clone(object), found)
        };
        let found = self.numbers.entry((Rc::as_ptr(object), about.clone())).or_insert_with(ask).1;
        let va = matched.va.unwrap_or(matched.symbol_va);
        let number = match about {
            About::Symbol(_) => found.map(|symbol| symbol.wrapping_sub(va.0)),
            About::Goid => found.filter(|_| object.is_go_code(va)),
        };
        number.map_or(0, |number| number << 1 | 1)
    }
}
