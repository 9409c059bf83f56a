//! Maps of scripts.

use std::collections::{HashMap, HashSet};

use sidestep_engine::{Entry, Maps, Value};
use sidestep_lang::script::checked::Map;
use sidestep_lang::script::lower::is_array;
use sidestep_lang::script::types::{Content, Type};

use super::hist::{self, Row};
use super::series::Series;
use super::value::{Names, Shown};
use crate::out::json;

/// What of a map is printed.
#[derive(Clone, Copy)]
pub struct Print {
    /// Which map.
    pub map: usize,
    /// So many rows at most, the largest; `None`: all.
    pub top: Option<u64>,
    /// What values are divided by.
    pub div: u64,
    /// Where the axis of a `tseries` begins and ends, if that is said.
    pub axis: (Option<i64>, Option<i64>),
    /// The script has ended: nothing is said of an empty map.
    pub at_end: bool,
}

/// Prints maps, and remembers which of them were cleared.
pub struct Printer {
    maps: Vec<Map>,
    /// Which of the session's maps they are.
    index: Vec<usize>,
    /// What was there when a map was cleared or zeroed, by map and key: threads go on adding to it.
    before: HashMap<(usize, Vec<u8>), Vec<u64>>,
    /// Maps that were zeroed: they are printed though nothing is in them.
    zeroed: HashSet<usize>,
    /// Maps that were cleared: a count or sum is 0 then.
    cleared: HashSet<usize>,
}

/// What a row says.
pub enum Cell {
    /// A value.
    Value(Shown),
    /// How many, and of which size.
    Stats { count: u64, average: Shown, total: Shown },
    /// A histogram.
    Rows(Vec<Row>),
    /// What a value was, interval by interval.
    Series(Series),
}

/// A row of a map.
pub struct Line {
    /// Its keys.
    pub keys: Vec<Shown>,
    /// Its value.
    pub cell: Cell,
    /// By what rows are sorted first.
    rank: i128,
}

impl Printer {
    /// For the maps of a script.
    pub fn new(maps: Vec<Map>, index: Vec<usize>) -> Printer {
        Printer { maps, index, before: HashMap::new(), zeroed: HashSet::new(), cleared: HashSet::new() }
    }

    /// By name: the order in which they are printed at the end.
    pub fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.maps.len()).collect();
        order.sort_by(|a, b| self.maps[*a].name.cmp(&self.maps[*b].name));
        order
    }

    /// Forgets all entries.
    pub fn clear(&mut self, map: usize, maps: Maps<'_>) {
        self.zeroed.remove(&map);
        self.cleared.insert(map);
        self.before.retain(|(of, _), _| *of != map);
        let shape = &self.maps[map];
        if is_array(shape) && shape.content.is_aggregate() && !shape.shared {
            self.remember(map, maps);
        } else {
            maps.clear(self.index[map]);
        }
    }

    /// Sets all values to zero.
    pub fn zero(&mut self, map: usize, maps: Maps<'_>) {
        match &self.maps[map].content {
            Content::Value(_) => {
                if maps.entries(self.index[map]).iter().any(|entry| self.is_set(map, entry)) {
                    self.zeroed.insert(map);
                }
                maps.zero(self.index[map]);
            }
            Content::Avg { .. } if self.maps[map].shared => maps.zero(self.index[map]),
            content if content.is_sum() => {
                self.remember(map, maps);
                self.zeroed.insert(map);
            }
            Content::Tseries { .. } => {
                self.clear(map, maps);
                self.zeroed.insert(map);
            }
            _ => self.clear(map, maps),
        }
    }

    fn remember(&mut self, map: usize, maps: Maps<'_>) {
        let shape = &self.maps[map];
        for entry in maps.entries(self.index[map]) {
            let words = merged(&shape.content, &entry);
            self.before.insert((map, entry.key), words);
        }
    }

    /// A map as text.
    pub fn text(&self, print: Print, maps: Maps<'_>, names: &mut Names) -> String {
        let shape = &self.maps[print.map];
        let mut out = String::new();
        for line in self.lines(print, maps, names) {
            let keys: Vec<String> = line.keys.iter().map(Shown::text).collect();
            let name =
                if keys.is_empty() { shape.name.clone() } else { format!("{}[{}]", shape.name, keys.join(", ")) };
            match line.cell {
                Cell::Value(value) => out.push_str(&format!("{name}: {}\n", value.text())),
                Cell::Stats { count, average, total } => {
                    let (average, total) = (average.text(), total.text());
                    out.push_str(&format!("{name}: {{ .count = {count}, .average = {average}, .total = {total} }}\n"));
                }
                Cell::Series(series) => out.push_str(&format!("{name}:\n{}\n", series.text(print.axis))),
                Cell::Rows(rows) => {
                    out.push_str(&format!("{name}:\n{}", hist::text(&rows, hist_div(&shape.content, print.div))))
                }
            }
        }
        out
    }

    /// A map as a JSON object, by the name `title`. `None`: it is empty.
    pub fn json(&self, print: Print, title: &str, maps: Maps<'_>, names: &mut Names) -> Option<String> {
        let shape = &self.maps[print.map];
        let lines = self.lines(print, maps, names);
        let is_series = matches!(shape.content, Content::Tseries { .. }) && shape.keys.is_empty();
        if lines.is_empty() && !(is_series && (!print.at_end || self.zeroed.contains(&print.map))) {
            return None;
        }
        let kind = match shape.content {
            Content::Avg { .. } | Content::Stats { .. } => "stats",
            Content::Hist { .. } | Content::Lhist { .. } => "hist",
            Content::Tseries { .. } => "tseries",
            _ => "map",
        };
        let data = |cell: &Cell| match cell {
            Cell::Value(value) => value.json(),
            Cell::Stats { count, average, total } => {
                json::object([("count", json::number(*count)), ("average", average.json()), ("total", total.json())])
            }
            Cell::Series(series) => series.json(),
            Cell::Rows(rows) => hist::json(rows, hist_div(&shape.content, print.div)),
        };
        let value = match lines.first() {
            Some(line) if shape.keys.is_empty() => data(&line.cell),
            None if is_series => json::array([]),
            _ => json::object(lines.iter().map(|line| {
                let keys: Vec<String> = line.keys.iter().map(Shown::key).collect();
                (keys.join(","), data(&line.cell))
            })),
        };
        Some(json::line(kind, json::object([(title, value)])))
    }

    /// The name of a map.
    pub fn name(&self, map: usize) -> &str {
        &self.maps[map].name
    }

    /// The rows of a map in the order in which they are printed.
    pub fn lines(&self, print: Print, maps: Maps<'_>, names: &mut Names) -> Vec<Line> {
        let Print { map, top, div, at_end, .. } = print;
        let shape = &self.maps[map];
        let is_zero = self.cleared.contains(&map) && matches!(shape.content, Content::Count | Content::Sum { .. });
        let at_end = at_end && !is_zero;
        let keyed = !shape.keys.is_empty();
        let mut lines = Vec::new();
        for entry in maps.entries(self.index[map]) {
            if !keyed && !self.is_set(map, &entry) && (at_end || !has_zero(&shape.content)) {
                continue;
            }
            let keys = names.parts(&shape.keys, &entry.key, maps);
            let (cell, rank) = self.cell(map, &entry, div, maps, names);
            lines.push(Line { keys, cell, rank });
        }
        // Not an array: there is no entry yet.
        if let (Content::Min { .. } | Content::Max { .. }, false, true, false) =
            (&shape.content, keyed, lines.is_empty(), at_end)
        {
            lines.push(Line { keys: Vec::new(), cell: Cell::Value(Shown::Int(0)), rank: 0 });
        }
        // All keys have the same end.
        let last =
            lines.iter().filter_map(|line| if let Cell::Series(series) = &line.cell { series.last() } else { None });
        if let Some(last) = last.max() {
            for line in &mut lines {
                if let Cell::Series(series) = &mut line.cell {
                    series.end_with(last);
                }
            }
        }
        lines.sort_by(|a, b| (a.rank, &a.keys).cmp(&(b.rank, &b.keys)));
        if let Some(top) = top.and_then(|top| usize::try_from(top).ok()) {
            lines.drain(..lines.len().saturating_sub(top));
        }
        lines
    }

    /// Whether a map that is one value has one.
    fn is_set(&self, map: usize, entry: &Entry) -> bool {
        let shape = &self.maps[map];
        match &entry.value {
            Value::One(bytes) if is_array(shape) => {
                self.zeroed.contains(&map) || bytes.get(shape.content.stored()).is_some_and(|set| *set != 0)
            }
            Value::One(_) => true,
            Value::PerThread(_) if is_array(shape) => {
                self.zeroed.contains(&map) || self.now(map, entry).iter().any(|word| *word != 0)
            }
            Value::PerThread(_) => true,
        }
    }

    /// What was added since the map was cleared.
    fn now(&self, map: usize, entry: &Entry) -> Vec<u64> {
        let mut words = merged(&self.maps[map].content, entry);
        if let Some(before) = self.before.get(&(map, entry.key.clone())) {
            for (word, before) in words.iter_mut().zip(before) {
                *word = word.wrapping_sub(*before);
            }
        }
        words
    }

    fn cell(&self, map: usize, entry: &Entry, div: u64, maps: Maps<'_>, names: &mut Names) -> (Cell, i128) {
        let content = &self.maps[map].content;
        if let (Content::Value(ty), Value::One(bytes)) = (content, &entry.value) {
            let value = names.stored(ty, bytes, maps);
            return match value {
                Shown::Int(n) => (Cell::Value(Shown::Int(n / i128::from(div))), n),
                value => (Cell::Value(value), 0),
            };
        }
        if let (Content::Tseries { interval, intervals, merge, signed }, Value::PerThread(values)) =
            (content, &entry.value)
        {
            let mut series = Series::new(*interval, *intervals, div);
            values.iter().for_each(|(_, bytes)| series.add(bytes, *merge, *signed));
            return (Cell::Series(series), 0);
        }
        let words = self.now(map, entry);
        let word = |index: usize| words.get(index).copied().unwrap_or(0);
        let number = |signed: bool, word: u64| if signed { i128::from(word as i64) } else { i128::from(word) };
        let plain = |n: i128| (Cell::Value(Shown::Int(n / i128::from(div))), n);
        match content {
            Content::Count => plain(word(0).into()),
            Content::Sum { signed } | Content::Min { signed } | Content::Max { signed } => {
                plain(number(*signed, word(0)))
            }
            Content::Avg { signed } => plain(number(*signed, word(0)) / i128::from(word(1).max(1))),
            Content::Stats { signed } => {
                let (total, count) = (number(*signed, word(0)), word(1));
                let average = total / i128::from(count.max(1));
                (Cell::Stats { count, average: Shown::Int(average), total: Shown::Int(total) }, average)
            }
            Content::Hist { bits } => (Cell::Rows(hist::log2(&words, *bits)), total(&words)),
            Content::Lhist { min, max, step } => (Cell::Rows(hist::linear(&words, *min, *max, *step)), total(&words)),
            Content::Value(_) | Content::Tseries { .. } => plain(0),
        }
    }
}

/// Is there a value that a map without keys has before it gets one?
fn has_zero(content: &Content) -> bool {
    fn is_plain(ty: &Type) -> bool {
        match ty {
            Type::Int { .. } | Type::Pointer(_) | Type::Enum(_) | Type::Data { .. } => true,
            Type::Text(_) | Type::Bytes(_) | Type::List(_) => true,
            Type::Tuple(parts) => parts.iter().all(is_plain),
            // The number 0 is a probe, a user or a time, too.
            Type::None | Type::Stack(_) | Type::Symbol | Type::Probe { .. } => false,
            Type::User | Type::Meaning(_) | Type::Time(_) => false,
        }
    }
    match content {
        Content::Value(ty) => is_plain(ty),
        Content::Hist { .. } | Content::Lhist { .. } | Content::Tseries { .. } => false,
        _ => true,
    }
}

fn total(words: &[u64]) -> i128 {
    words.iter().map(|word| i128::from(*word)).sum()
}

/// Counts of `hist` are divided, those of `lhist` are not.
fn hist_div(content: &Content, div: u64) -> u64 {
    if matches!(content, Content::Hist { .. }) { div } else { 1 }
}

/// The values of all threads together.
fn merged(content: &Content, entry: &Entry) -> Vec<u64> {
    let words = |bytes: &[u8]| -> Vec<u64> {
        bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes)).collect()
    };
    let Value::PerThread(values) = &entry.value else {
        return match &entry.value {
            Value::One(bytes) => words(bytes),
            Value::PerThread(_) => Vec::new(),
        };
    };
    let values = values.iter().map(|(_, bytes)| words(bytes));
    let sum = |a: Vec<u64>, b: Vec<u64>| a.iter().zip(&b).map(|(a, b)| a.wrapping_add(*b)).collect();
    // A value and whether there is one.
    let pick = |better: &dyn Fn(u64, u64) -> bool, a: Vec<u64>, b: Vec<u64>| match (a[1] != 0, b[1] != 0) {
        (true, true) => {
            if better(b[0], a[0]) {
                b
            } else {
                a
            }
        }
        (_, true) => b,
        _ => a,
    };
    let merged = match content {
        Content::Min { signed: true } => values.reduce(|a, b| pick(&|b, a| (b as i64) < a as i64, a, b)),
        Content::Min { .. } => values.reduce(|a, b| pick(&|b, a| b < a, a, b)),
        Content::Max { signed: true } => values.reduce(|a, b| pick(&|b, a| b as i64 > a as i64, a, b)),
        Content::Max { .. } => values.reduce(|a, b| pick(&|b, a| b > a, a, b)),
        _ => values.reduce(sum),
    };
    merged.unwrap_or_default()
}
