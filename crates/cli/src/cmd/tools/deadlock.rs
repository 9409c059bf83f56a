//! `deadlock`: mutexes that are locked in different orders.
//!
//! The script notes for each pair of mutexes the first time that one was locked while the other was
//! held. A cycle of such pairs can become a deadlock. Of its threads it is told where they were
//! created, if that was seen.

mod graph;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Tool, every, spec};
use crate::flags::Output;
use crate::flags::tools::{Deadlock, Run};
use crate::out::json;
use crate::out::script::{Cell, Layout, Line, Shown, frames};
use crate::out::sink::say;
use graph::cycles;

/// Mutexes that a thread holds at a time and that are looked at.
const HELD: usize = 16;
/// Mutexes that a thread holds on average, at most.
const PLACES: u32 = 4;

impl Tool for Deadlock {
    const NAME: &'static str = "deadlock";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        let points = |names: &[String]| -> Result<String, String> {
            let points = names.iter().map(|name| match &self.binary {
                Some(object) if !name.contains(':') => spec::point("uprobe", object, name, false),
                _ => spec::function("uprobe", name, false),
            });
            Ok(points.collect::<Result<Vec<_>, _>>()?.join(", "))
        };
        let script = include_str!("deadlock.bt")
            .replace("LOCK", &points(&self.lock)?)
            .replace("FREE", &points(&self.unlock)?)
            .replace("HELD", &HELD.to_string())
            .replace("EDGES", &self.edges.to_string())
            .replace("THREADS", &self.threads.to_string())
            .replace("PLACES", &self.threads.saturating_mul(PLACES).to_string());
        let maps = ["creator", "creator_name", "created", "called", "thread", "name", "holding", "taking"];
        let print = maps.map(|map| format!("print(@{map})")).join("; ");
        let every = every(std::time::Duration::from_secs(1), &print);
        Ok(format!("{script}{every}END {{ {print} }}\n"))
    }

    fn layout(&self) -> Box<dyn Layout> {
        let (dump, verbose) = (self.dump_graph.clone(), self.output.detail.verbose);
        Box::new(Locks { dump, verbose, ..Locks::default() })
    }

    fn prepare(&self) -> anyhow::Result<()> {
        self.dump_graph.as_ref().map_or(Ok(()), |file| write(file, ""))
    }
}

/// Waits for nobody: a pipe that nobody reads is an error.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).custom_flags(libc::O_NONBLOCK).open(file);
    opened.and_then(|mut to| to.write_all(text.as_bytes())).with_context(|| format!("cannot write {}", file.display()))
}

/// Its process and address.
type Mutex = (u64, u64);

/// A mutex that was locked while another one was held.
#[derive(Default)]
struct Edge {
    thread: String,
    name: String,
    /// Where the one that was held had been locked, and the other one.
    stacks: [Vec<String>; 2],
}

/// Who created a thread.
#[derive(Default)]
struct Creator {
    thread: String,
    name: String,
    stack: Vec<String>,
}

#[derive(Default)]
struct Locks {
    edges: BTreeMap<(Mutex, Mutex), Edge>,
    /// The variables that they are in, with the offset.
    names: BTreeMap<Mutex, String>,
    /// Of threads that were created meanwhile.
    creators: BTreeMap<String, Creator>,
    /// Cycles that were told.
    told: BTreeSet<Vec<Mutex>>,
    /// Where the graph is written.
    dump: Option<PathBuf>,
    /// How large the graph is, is printed.
    verbose: bool,
}

impl Layout for Locks {
    fn progress(&self, _probes: usize) -> String {
        "Tracing... Hit Ctrl-C to end.".to_owned()
    }

    fn map(&mut self, name: &str, rows: &[Line], json: bool) -> Option<String> {
        for row in rows {
            if let ([thread], Cell::Value(value)) = (&*row.keys, &row.cell) {
                let creator = self.creators.entry(thread.text()).or_default();
                match name {
                    "@creator" => creator.thread = value.text(),
                    "@creator_name" => creator.name = value.text(),
                    _ => creator.stack = frames(value),
                }
                continue;
            }
            if let ([Shown::Int(pid), Shown::Int(address)], Cell::Value(name)) = (&*row.keys, &row.cell) {
                // Others lie on a heap or a stack.
                let name = Some(name.text()).filter(|name| !name.starts_with("0x"));
                self.names.extend(name.map(|name| ((*pid as u64, *address as u64), name)));
                continue;
            }
            let ([Shown::Int(pid), Shown::Int(held), Shown::Int(taken)], Cell::Value(value)) = (&*row.keys, &row.cell)
            else {
                continue;
            };
            let mutex = |address: &i128| (*pid as u64, *address as u64);
            let edge = self.edges.entry((mutex(held), mutex(taken))).or_default();
            match name {
                "@thread" => edge.thread = value.text(),
                "@name" => edge.name = value.text(),
                "@holding" => edge.stacks[0] = frames(value),
                _ => edge.stacks[1] = frames(value),
            }
        }
        // The last of an edge's maps.
        let mut out = String::new();
        if name == "@taking" {
            let pairs: Vec<(Mutex, Mutex)> = self.edges.keys().copied().collect();
            if self.verbose && !json {
                out += &format!("Mutexes: {}, Edges: {}\n", self.mutexes().len(), pairs.len());
            }
            if let Some(Err(error)) = self.dump.as_ref().map(|file| write(file, &self.graph())) {
                say(&format!("sidestep: warning: {error:#}"));
                self.dump = None;
            }
            for cycle in cycles(&pairs) {
                if self.told.insert(cycle.clone()) {
                    out += &if json { self.json(&cycle) } else { self.text(&cycle) };
                }
            }
        }
        Some(out)
    }
}

impl Locks {
    /// The edges of a cycle.
    fn edges<'a>(&'a self, cycle: &'a [Mutex]) -> impl Iterator<Item = ((usize, Mutex), (usize, Mutex), &'a Edge)> {
        (0..cycle.len()).filter_map(move |index| {
            let next = (index + 1) % cycle.len();
            let edge = self.edges.get(&(cycle[index], cycle[next]))?;
            Some(((index, cycle[index]), (next, cycle[next]), edge))
        })
    }

    fn text(&self, cycle: &[Mutex]) -> String {
        let mutex = |(index, mutex): (usize, Mutex)| match self.names.get(&mutex) {
            Some(name) => format!("Mutex M{index} ({name} {:#018x})", mutex.1),
            None => format!("Mutex M{index} ({:#018x})", mutex.1),
        };
        let names: Vec<String> = cycle.iter().copied().enumerate().chain([(0, cycle[0])]).map(mutex).collect();
        let mut out = format!(
            "----------------\nPotential Deadlock Detected!\n\nCycle in lock order graph: {}\n",
            names.join(" => ")
        );
        let lines = |stack: &[String]| stack.iter().map(|frame| format!("@ {frame}\n")).collect::<String>();
        for (held, taken, edge) in self.edges(cycle) {
            let thread = format!("Thread {} ({})", edge.thread, edge.name);
            let [holding, taking] = &edge.stacks;
            out += &format!(
                "\n{} acquired here while holding {} in {thread}:\n{}",
                mutex(taken),
                mutex(held),
                lines(taking)
            );
            out += &format!("\n{} previously acquired by the same {thread} here:\n{}", mutex(held), lines(holding));
        }
        for thread in self.edges(cycle).map(|(_, _, edge)| &edge.thread).collect::<BTreeSet<_>>() {
            out += &match self.creators.get(thread) {
                Some(Creator { thread: by, name, stack }) => {
                    format!("\nThread {thread} created by Thread {by} ({name}) here:\n{}", lines(stack))
                }
                None => format!("\nCould not find stack trace where Thread {thread} was created\n"),
            };
        }
        out + "\n"
    }

    /// All that were seen.
    fn mutexes(&self) -> Vec<Mutex> {
        let both: BTreeSet<Mutex> = self.edges.keys().flat_map(|(held, taken)| [*held, *taken]).collect();
        both.into_iter().collect()
    }

    /// The graph as `networkx.node_link_graph` reads it, with the members that bcc gives a link,
    /// but stacks themselves instead of their numbers.
    fn graph(&self) -> String {
        let mutexes = self.mutexes();
        let number = |mutex: &Mutex| json::number(mutexes.iter().position(|known| known == mutex).unwrap_or(0) as u64);
        let links = self.edges.iter().map(|((held, taken), edge)| {
            json::object([
                ("source", number(held)),
                ("target", number(taken)),
                ("thread_pid", edge.thread.clone()),
                ("thread_comm", json::string(&edge.name)),
                ("first_mutex_stack", list(&edge.stacks[0])),
                ("second_mutex_stack", list(&edge.stacks[1])),
            ])
        });
        let nodes = mutexes.iter().map(|mutex| {
            let members = [("id", json::number(mutex.1)), ("pid", json::number(mutex.0))];
            json::object(members.into_iter().chain(self.name(mutex, "name")))
        });
        let graph = json::object([
            ("directed", "true".to_owned()),
            ("multigraph", "false".to_owned()),
            ("graph", "{}".to_owned()),
            ("links", json::array(links)),
            ("nodes", json::array(nodes)),
        ]);
        graph + "\n"
    }

    fn json(&self, cycle: &[Mutex]) -> String {
        let edges = self.edges(cycle).map(|(held, taken, edge)| {
            let members = [
                ("held", json::string(&format!("{:#x}", held.1.1))),
                ("acquired", json::string(&format!("{:#x}", taken.1.1))),
                ("tid", edge.thread.clone()),
                ("comm", json::string(&edge.name)),
                ("held_stack", list(&edge.stacks[0])),
                ("acquired_stack", list(&edge.stacks[1])),
            ];
            let names = self.name(&held.1, "held_name").into_iter().chain(self.name(&taken.1, "acquired_name"));
            let creator = self.creators.get(&edge.thread).into_iter().flat_map(|creator| {
                [
                    ("creator_tid", creator.thread.clone()),
                    ("creator_comm", json::string(&creator.name)),
                    ("created_stack", list(&creator.stack)),
                ]
            });
            json::object(members.into_iter().chain(names).chain(creator))
        });
        json::line("deadlock", json::array(edges)) + "\n"
    }

    /// What a mutex is called, as a member of an object.
    fn name(&self, mutex: &Mutex, member: &'static str) -> Option<(&'static str, String)> {
        Some((member, json::string(self.names.get(mutex)?)))
    }
}

/// A stack in JSON.
fn list(stack: &[String]) -> String {
    json::array(stack.iter().map(|frame| json::string(frame)))
}
