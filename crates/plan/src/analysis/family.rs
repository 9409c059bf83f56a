//! Indirect jumps, resolved for a whole function with all of its parts (cold parts, shared tails).

use std::collections::BTreeMap;

use sidestep_isa::indirect::{Origin, Table, indirect_jumps};
use sidestep_isa::{Flow, Insn, Len, Va, sweep};

use crate::analysis::index::number_of;
use crate::analysis::marks::Marks;
use crate::analysis::parallel;
use crate::analysis::sweep::{Borders, Stretch};
use crate::object::{Bytes, ObjectCode};
use crate::reason::UnknownJumps;

/// Entries of one jump table that are read at most.
const TABLE_MAX: u64 = 1 << 16;

/// Where an indirect jump goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Leads {
    /// Through a table of its function, to some of [`Family::targets`].
    Table,
    /// Through a table that was not found.
    Lost,
    /// To a stored address, which something names.
    Pointer,
    /// To an address that is computed in another way.
    Computed,
}

/// Stretches that jump into each other's middle.
#[derive(Default, Debug)]
pub(crate) struct Family {
    /// Where its indirect jumps through recognised tables may go: a superset, sorted.
    pub targets: Vec<Va>,
    /// The indirect jumps through values, sorted, and where each goes.
    pub jumps: Vec<(Va, Leads)>,
    /// Why not all of its indirect jumps are understood.
    pub unknown: Option<UnknownJumps>,
    /// Addresses in text that its instructions name.
    named: Vec<Va>,
    /// Those of them to which it adds distances from tables that were found.
    bases: Vec<Va>,
}

impl Family {
    /// Where an indirect jump of it goes.
    pub fn leads(&self, jump: Va) -> Leads {
        let found = self.jumps.binary_search_by_key(&jump, |(at, _)| *at);
        found.map_or(Leads::Pointer, |number| self.jumps[number].1)
    }

    /// Whether an instruction of it names an address between two others.
    pub fn names(&self, from: Va, to: Va) -> bool {
        self.named.iter().any(|va| (from..to).contains(va))
    }
}

/// The families of an object.
pub(crate) struct Families {
    /// Number of the family of each stretch: the number of one of its stretches.
    of: Vec<usize>,
    /// Stretches, by the number of their family.
    members: Vec<usize>,
    /// Those with jumps through values, or with stretches that are not understood.
    known: BTreeMap<usize, Family>,
}

impl Families {
    /// Joins stretches by the jumps between them and resolves the indirect jumps. `starts` must be
    /// sorted.
    pub fn new(
        code: &ObjectCode<'_>,
        stretches: &[Stretch],
        starts: &[Va],
        leaving: &[(Va, Va)],
        stretch_of: impl Fn(Va) -> Option<usize>,
    ) -> Families {
        let mut parent: Vec<usize> = (0..stretches.len()).collect();
        for (source, target) in leaving {
            if !joins(code, starts, *target) {
                continue;
            }
            if let Some((own, other)) = stretch_of(*source).zip(stretch_of(*target)) {
                let (a, b) = (root(&mut parent, own), root(&mut parent, other));
                parent[a.max(b)] = a.min(b);
            }
        }
        let of: Vec<usize> = (0..parent.len()).map(|i| root(&mut parent, i)).collect();

        let mut members: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, stretch) in stretches.iter().enumerate() {
            if stretch.value_jumps || stretch.fault.is_some() {
                members.entry(of[i]).or_default();
            }
        }
        for (i, family) in of.iter().enumerate() {
            if let Some(list) = members.get_mut(family) {
                list.push(i);
            }
        }
        let mut members: Vec<(usize, Vec<usize>)> = members.into_iter().collect();
        let weight = |(_, list): &(usize, Vec<usize>)| list.iter().map(|i| stretches[*i].len()).sum();
        let possible = if members.is_empty() { Marks::new(code) } else { possible_targets(code, stretches) };
        let parts = parallel::map(&mut members, weight, |_, part| {
            part.iter().map(|(family, list)| (*family, resolve(code, stretches, list, &possible))).collect::<Vec<_>>()
        });
        let mut known: BTreeMap<usize, Family> = parts.into_iter().flatten().collect();

        // A jump that is not understood may go to any address that its function names, also in
        // another one.
        let mut strays: Vec<(usize, UnknownJumps)> = Vec::new();
        for (number, family) in &known {
            let Some(reason) = family.unknown else {
                continue;
            };
            for value in &family.named {
                if starts.binary_search(value).is_err() {
                    strays.extend(stretch_of(*value).map(|s| (of[s], reason)).filter(|s| s.0 != *number));
                }
            }
        }
        for (family, reason) in strays {
            known.entry(family).or_default().unknown.get_or_insert(reason);
        }
        let mut members: Vec<usize> = (0..of.len()).collect();
        members.sort_by_key(|stretch| of[*stretch]);
        Families { of, members, known }
    }

    /// Not all is known of a stretch's family: why.
    pub fn doubt(&mut self, stretch: usize, reason: UnknownJumps) {
        if let Some(family) = self.of.get(stretch) {
            self.known.entry(*family).or_default().unknown.get_or_insert(reason);
        }
    }

    /// Where all jumps through tables may go: sorted.
    pub fn targets(&self, code: &ObjectCode<'_>) -> Vec<Va> {
        let mut all = Marks::new(code);
        self.known.values().flat_map(|family| &family.targets).for_each(|va| all.set(*va));
        all.iter().collect()
    }

    /// Doubts the functions with which code computes addresses: it may go anywhere in there.
    /// `labels`: addresses that instructions name, where no function starts, unless they are the
    /// bases of tables that were found. `computed`: others to which something is added.
    pub fn doubt_computed(&mut self, stretches: &[Stretch], labels: &[Va], computed: &[Va], starts: &[Va]) {
        let mut bases: Vec<Va> = self.known.values().flat_map(|family| &family.bases).copied().collect();
        bases.sort_unstable();
        let is_label = |va: &&Va| starts.binary_search(va).is_err() && bases.binary_search(va).is_err();
        let is_function = |va: &&Va| starts.binary_search(va).is_ok();
        let labels = labels.iter().filter(is_label);
        for va in labels.chain(computed.iter().filter(is_function)) {
            let Some(number) = number_of(stretches, *va) else { continue };
            let own = &stretches[number];
            if own.boundaries.get(va.since(own.start) as usize) {
                self.doubt(number, UnknownJumps::ComputedLabel { label: *va });
            }
        }
    }

    /// What is known about the indirect jumps of a stretch; `None` = there are none of concern.
    pub fn of_stretch(&self, stretch: usize) -> Option<&Family> {
        self.known.get(self.of.get(stretch)?)
    }

    /// The stretches of a stretch's family, itself among them.
    pub fn members(&self, stretch: usize) -> &[usize] {
        let Some(family) = self.of.get(stretch) else { return &[] };
        let lo = self.members.partition_point(|member| self.of[*member] < *family);
        let hi = self.members.partition_point(|member| self.of[*member] <= *family);
        &self.members[lo..hi]
    }

    /// Whether two stretches are parts of one function.
    pub fn same(&self, a: usize, b: usize) -> bool {
        self.of.get(a) == self.of.get(b)
    }
}

/// Whether a jump that leaves its stretch makes one function of that and where it leads. To the
/// start of a function it is a tail call, or goes to a part that jumps back into the middle.
pub(crate) fn joins(code: &ObjectCode<'_>, starts: &[Va], target: Va) -> bool {
    starts.binary_search(&target).is_err() && !is_stub(code, target)
}

/// Addresses in text that an instruction names.
pub(crate) fn candidates<'a>(code: &'a ObjectCode<'_>, insn: &Insn) -> impl Iterator<Item = Va> + use<'a> {
    let from_table = code.got.and_then(|got| insn.address_from(got));
    let named = if code.fixed { insn.address_candidate() } else { insn.pc_target() };
    let in_sum = if code.fixed { insn.address_in_sum() } else { None };
    named.into_iter().chain(in_sum).chain(from_table).filter(|va| code.is_text(*va))
}

/// An entry of the procedure linkage table, with or without a mark for indirect branches: jumping
/// to it is a tail call.
fn is_stub(code: &ObjectCode<'_>, at: Va) -> bool {
    let mut insn = code.insn_at(at);
    if let Some(mark) = insn.filter(Insn::is_target_mark) {
        insn = code.insn_at(mark.next());
    }
    insn.is_some_and(|i| i.flow() == Flow::JumpIndirect && i.is_slot_jump())
}

fn root(parent: &mut [usize], mut i: usize) -> usize {
    while parent[i] != i {
        parent[i] = parent[parent[i]];
        i = parent[i];
    }
    i
}

/// Where a jump through a table may go: to an instruction, or to any byte of a stretch of which not
/// all is known.
fn possible_targets(code: &ObjectCode<'_>, stretches: &[Stretch]) -> Marks {
    let mut possible = Marks::new(code);
    for stretch in stretches {
        let certain = stretch.borders != Borders::Gap && stretch.fault.is_none();
        let mut set = |offset: usize| possible.set(stretch.start.plus(Len(offset as u64)));
        match certain {
            true => stretch.boundaries.iter().take_while(|offset| *offset < stretch.len()).for_each(&mut set),
            false => (0..stretch.len()).for_each(&mut set),
        }
    }
    possible
}

/// Decodes the members of a family and finds out where their indirect jumps go. `possible`: where
/// jumps through tables may go.
fn resolve(code: &ObjectCode<'_>, stretches: &[Stretch], members: &[usize], possible: &Marks) -> Family {
    let mut family = Family::default();
    let mut insns = Vec::new();
    for stretch in members.iter().map(|m| &stretches[*m]) {
        if let Some(fault) = stretch.fault {
            family.unknown.get_or_insert(fault.into());
        }
        if stretch.borders != Borders::Gap {
            let bytes = code.text_at(stretch.start, stretch.end).unwrap_or_default();
            insns.extend(sweep(code.isa, bytes, stretch.start).map_while(Result::ok));
        }
    }
    family.named = insns.iter().flat_map(|insn| candidates(code, insn)).collect();
    for (jump, origin) in indirect_jumps(code.isa, insns, code.got, &|va| code.insn_at(va)) {
        match origin {
            Origin::Pointer => family.jumps.push((jump, Leads::Pointer)),
            Origin::Table(tables) => {
                let found = read_tables(code, &tables, |va| possible.get(va), &mut family.targets);
                family.bases.extend(tables.iter().filter(|table| table.certain).map(|table| table.base));
                family.jumps.push((jump, if found { Leads::Table } else { Leads::Lost }));
                if !found {
                    family.unknown.get_or_insert(UnknownJumps::LostTable { jump });
                }
            }
            Origin::Computed => {
                family.jumps.push((jump, Leads::Computed));
                family.unknown.get_or_insert(UnknownJumps::Computed { jump });
            }
        }
    }
    family.targets.sort_unstable();
    family.targets.dedup();
    family.jumps.sort_unstable();
    family
}

/// Appends the possible targets of the tables of one jump. `possible`: whether an address is one;
/// `None`: it is not in text. Returns whether the tables were found: each of which it is certain
/// that it is one, or any of the others.
pub(crate) fn read_tables(
    code: &ObjectCode<'_>,
    tables: &[Table],
    possible: impl Fn(Va) -> Option<bool>,
    targets: &mut Vec<Va>,
) -> bool {
    let (mut any, mut all) = (false, true);
    for table in tables {
        let found = !is_written(code, table.start) && read_table(code, table, &possible, targets);
        any |= found;
        all &= found || !table.certain;
    }
    any && all
}

/// Whether the program may change what is at an address of its data.
fn is_written(code: &ObjectCode<'_>, va: Va) -> bool {
    let holds = |section: &&Bytes<'_>| section.va <= va && va.since(section.va) < section.data.len() as i64;
    let name = code.data.iter().find(holds).map_or("", |section| section.name);
    name.starts_with(".data") && !name.starts_with(".data.rel.ro")
}

/// Appends the possible targets of a table: nothing says where it ends, so that it is read as long
/// as its entries lead into text. Returns whether the first one does.
fn read_table(
    code: &ObjectCode<'_>,
    table: &Table,
    possible: impl Fn(Va) -> Option<bool>,
    targets: &mut Vec<Va>,
) -> bool {
    let Some(bytes) = code.bytes_at(table.start) else { return false };
    let mut found = false;
    let all = table.targets(bytes).take(TABLE_MAX as usize).map(|target| code.isa.wrap(target));
    let in_text = all.map_while(|target| Some((target, possible(target)?)));
    targets.extend(in_text.inspect(|_| found = true).filter(|(_, may_be)| *may_be).map(|(target, _)| target));
    found
}
