//! What the processes of a session have in common: memory, sizes, and the numbers by which probes
//! are known there.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use sidestep_bpf::map::Map;
use sidestep_isa::Va;
use sidestep_symbols::Object;
use sidestep_wire::Flow;

use crate::api::Options;
use crate::memory::layout::Layout;
use crate::memory::view::View;
use crate::planning::{Guards, plan_guards};
use crate::resolve::Match;
use crate::resolve::analyses::{self, Analyses};
use crate::resolve::objects::Objects;
use crate::resolve::usdt::Arguments;
use crate::results::address_spaces::Meanings;
use crate::session::facts::Known;

/// Who is at a site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Whose {
    /// The user, with this request.
    Request(usize),
    /// We ourselves, with what a [`Flow`] of this number does.
    Own(u32),
}

impl From<Flow> for Whose {
    fn from(flow: Flow) -> Whose {
        Whose::Own(flow as u32)
    }
}

/// What of a call a site sees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Sees {
    /// That it begins, or an instruction.
    Entry,
    /// That it ends.
    Exit,
}

/// A probe, whatever process it is in: who, in which object, at which link-time address.
type Place = (Whose, PathBuf, Va);

/// What has a number for programs.
#[derive(PartialEq, Eq, Hash)]
enum Cookies {
    /// A probe.
    Of(Place),
    /// All probes that are called this.
    Called(String),
}

/// Kept by a session for all its processes. The same probe has the same number in each, so that
/// what they count adds up.
#[derive(Default)]
pub(crate) struct Registry {
    /// More processes may come than the first.
    pub several: bool,
    /// The memory that all of them have, from [`Layout::common_off`] on.
    pub common: Option<Arc<View>>,
    /// Sizes, and the maps as they are.
    pub layout: Option<(Layout, Vec<Map>)>,
    /// What addresses mean.
    pub meanings: Meanings,
    /// Files that were opened for names, and are in most processes.
    objects: Option<Rc<RefCell<Objects>>>,
    /// Functions may share an exit: each has a number there. A function that is one jump has its
    /// entry and its exit at one instruction, and a number for each.
    numbers: HashMap<(Place, Va, Sees), u32>,
    cookies: HashMap<Cookies, u64>,
    /// Of functions, by name.
    names: HashMap<String, u64>,
    next_number: u32,
    free_numbers: BTreeSet<u32>,
    /// Indices of objects.
    pub analyses: analyses::Shared,
    guards: HashMap<*const Object, (Rc<Object>, Guards)>,
    /// What was found out for programs.
    pub known: Known,
    /// Of USDT sites, by map.
    arguments: HashMap<usize, Arguments>,
}

impl Registry {
    /// Of a session that may have `several` processes.
    pub fn new(several: bool) -> Rc<RefCell<Registry>> {
        let analyses = Rc::new(RefCell::new(Analyses::new(several)));
        Rc::new(RefCell::new(Registry { several, analyses, ..Registry::default() }))
    }

    /// Files, each opened once.
    pub fn objects(&mut self, options: &Options) -> Rc<RefCell<Objects>> {
        self.objects.get_or_insert_with(|| Rc::new(RefCell::new(Objects::new(options)))).clone()
    }

    /// Guards of an object, planned once for all processes; `numbers` are always the same.
    pub fn guards(&mut self, object: &Rc<Object>, numbers: &[u32]) -> &Guards {
        // The object is kept, so that its address stays its own.
        let analyses = &self.analyses;
        let plan = || (object.clone(), plan_guards(object, numbers, &mut analyses.borrow_mut()));
        &self.guards.entry(Rc::as_ptr(object)).or_insert_with(plan).1
    }

    /// The number of a site of the probe of a function: the one that it has in another process, if
    /// that is `free` here.
    pub fn number(
        &mut self,
        whose: Whose,
        matched: &Match,
        (function, sees): (Va, Sees),
        free: impl Fn(u32) -> bool,
    ) -> u32 {
        let place = (place(whose, matched), function, sees);
        if let Some(number) = self.numbers.get(&place).copied().filter(|number| free(*number)) {
            return number;
        }
        let number = match self.free_numbers.iter().copied().find(|number| free(*number)) {
            Some(number) => {
                self.free_numbers.remove(&number);
                number
            }
            None => {
                self.next_number += 1;
                self.next_number - 1
            }
        };
        self.numbers.insert(place, number);
        number
    }

    /// What has these numbers for requests: request, object and link-time address of the function.
    pub fn places(&self, numbers: &HashSet<u32>) -> HashSet<(usize, PathBuf, Va)> {
        let named = self.numbers.iter().filter(|(_, number)| numbers.contains(number));
        let place = |(((whose, path, _), function, _), _): (&(Place, Va, Sees), &u32)| match whose {
            Whose::Request(request) => Some((*request, path.clone(), *function)),
            Whose::Own(_) => None,
        };
        named.filter_map(place).collect()
    }

    /// Numbers that no probe has any more, nor what they have counted.
    pub fn free_numbers(&mut self, numbers: &HashSet<u32>) {
        self.numbers.retain(|_, number| !numbers.contains(number));
        self.free_numbers.extend(numbers);
    }

    /// The number that tells programs which probe was hit.
    pub fn cookie(&mut self, request: usize, matched: &Match) -> u64 {
        self.cookie_of(Cookies::Of(place(Whose::Request(request), matched)))
    }

    /// The number that tells programs what the probe that was hit is called.
    pub fn cookie_called(&mut self, label: &str) -> u64 {
        self.cookie_of(Cookies::Called(label.to_owned()))
    }

    fn cookie_of(&mut self, of: Cookies) -> u64 {
        let next = self.cookies.len() as u64;
        *self.cookies.entry(of).or_insert(next)
    }

    /// The number of a function's name.
    pub fn name(&mut self, name: &str) -> u64 {
        let next = self.names.len() as u64;
        *self.names.entry(name.to_owned()).or_insert(next)
    }

    /// The key of a USDT site's arguments in a map, and the map's value there.
    pub fn arguments(&mut self, map: usize, matched: &Match, shape: &Map) -> Result<(u32, Vec<u8>), String> {
        let probe = matched.usdt.as_ref().ok_or("it is no USDT probe")?;
        let arguments =
            self.arguments.entry(map).or_insert_with(|| Arguments::new(shape.value_size, shape.max_entries));
        let key = arguments.key(probe)?;
        Ok((key, arguments.specs()[key as usize].clone()))
    }
}

fn place(whose: Whose, matched: &Match) -> Place {
    (whose, matched.object.path().to_owned(), matched.va.unwrap_or(matched.symbol_va))
}
