//! `tseries`: a value over time, a row for each interval.

use std::collections::BTreeMap;

use sidestep_lang::script::types::{INTERVAL, Merge};

use crate::out::{json, time};

/// Columns of the graph, with its frame.
const WIDTH: usize = 53;

/// The intervals of a key.
#[derive(Default)]
pub struct Series {
    /// Nanoseconds of one.
    interval: u64,
    /// How many are kept.
    intervals: u32,
    /// What values are divided by.
    div: u64,
    /// Values may be negative.
    signed: bool,
    /// By their numbers since 1970.
    known: BTreeMap<u64, Point>,
    /// The number of the last one that is shown.
    end: u64,
}

/// What is known of an interval.
#[derive(Clone, Copy)]
struct Point {
    value: i128,
    /// Values in it, or when the last one came.
    stamp: u64,
    merge: Merge,
}

impl Point {
    fn with(self, other: Point) -> Point {
        match self.merge {
            Merge::Last if other.stamp >= self.stamp => other,
            Merge::Last => self,
            Merge::Min => Point { value: self.value.min(other.value), ..self },
            Merge::Max => Point { value: self.value.max(other.value), ..self },
            Merge::Avg | Merge::Sum => Point {
                value: self.value.wrapping_add(other.value),
                stamp: self.stamp.wrapping_add(other.stamp),
                ..self
            },
        }
    }

    fn shown(self) -> i128 {
        if self.merge == Merge::Avg { self.value / i128::from(self.stamp.max(1)) } else { self.value }
    }
}

impl Series {
    /// None yet: intervals of so many nanoseconds, of which so many are kept, and what their values
    /// are divided by.
    pub fn new(interval: u64, intervals: u32, div: u64) -> Series {
        Series { interval, intervals, div, ..Series::default() }
    }

    /// Adds what a thread has.
    pub fn add(&mut self, bytes: &[u8], merge: Merge, signed: bool) {
        self.signed = signed;
        for interval in bytes.chunks_exact(INTERVAL) {
            let word = |at: usize| interval[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
            let (behind, value, stamp) = (word(0), word(8), word(16));
            if let Some(number) = behind.checked_sub(1) {
                let value = if signed { i128::from(value as i64) } else { value.into() };
                let point = Point { value, stamp, merge };
                self.known.entry(number).and_modify(|known| *known = known.with(point)).or_insert(point);
            }
        }
    }

    /// The number of the last interval with a value.
    pub fn last(&self) -> Option<u64> {
        self.known.keys().next_back().copied()
    }

    /// Nothing is shown behind this interval, nor what is too old then.
    pub fn end_with(&mut self, last: u64) {
        let first = (last + 1).saturating_sub(self.intervals.into());
        self.known.retain(|number, _| (first..=last).contains(number));
        self.end = last;
    }

    /// When each interval begins, in nanoseconds since 1970, and its value: from the first one that
    /// has any.
    fn rows(&self) -> Vec<(u64, Option<i128>)> {
        let Some(first) = self.known.keys().next() else { return Vec::new() };
        let value = |number: u64| self.known.get(&number).map(|point| point.shown() / i128::from(self.div.max(1)));
        (*first..=self.end).map(|number| (number.wrapping_mul(self.interval), value(number))).collect()
    }

    /// The graph. `axis`: where it begins and ends, if that is not to be taken from the values.
    pub fn text(&self, axis: (Option<i64>, Option<i64>)) -> String {
        let rows = self.rows();
        let values = || rows.iter().filter_map(|(_, value)| *value);
        let (Some(mut min), Some(mut max)) = (values().min(), values().max()) else { return "<no data>".to_owned() };
        if min == max {
            // A number without a sign has nothing below 0.
            (min, max) = (if min == 0 && !self.signed { 0 } else { min - 1 }, max + 1);
        }
        min = axis.0.map_or(min, i128::from);
        max = axis.1.map_or(max, i128::from).max(min + 1);
        let (digits, unit) = self.unit();
        let time = if digits == 0 { "hh:mm:ss".to_owned() } else { format!("hh:mm:ss.{unit}") };
        let room = if digits == 0 { 9 } else { 10 + digits };
        let frame = "_".repeat(WIDTH - 2);
        let ends = format!("{:room$}{min:<21}{max:>32}\n", "");
        let mut out = format!("{ends}{time:<room$}|{frame}|\n");
        let place = |value: i128, width: usize| {
            (width as f32 * (value - min) as f32 / (max - min) as f32).max(0.0).min((WIDTH - 1) as f32) as usize
        };
        for (start, value) in &rows {
            let mut line = vec![b' '; WIDTH];
            (line[0], line[WIDTH - 1]) = (b'|', b'|');
            if min < 0 && max > 0 {
                line[place(0, WIDTH)] = b'.';
            }
            if let Some(value) = value {
                line[place(*value, WIDTH - 1)] = b'*';
            }
            let (line, value) =
                (String::from_utf8_lossy(&line), value.map_or("-".to_owned(), |value| value.to_string()));
            out.push_str(&format!("{} {line} {value}\n", self.moment("%H:%M:%S", *start, digits)));
        }
        out.push_str(&format!("{:room$}v{frame}v\n{ends}", ""));
        out
    }

    /// As bpftrace's JSON has it: intervals without a value are left out.
    pub fn json(&self) -> String {
        json::array(self.rows().into_iter().filter_map(|(start, value)| {
            let start = json::string(&self.moment("%Y-%m-%d %H:%M:%S", start, 9));
            Some(json::object([("interval_start", start), ("value", value?.to_string())]))
        }))
    }

    /// Digits behind the seconds that tell intervals apart, and what they count.
    fn unit(&self) -> (usize, &'static str) {
        match self.interval {
            n if n % 1_000_000_000 == 0 => (0, "s"),
            n if n % 1_000_000 == 0 => (3, "ms"),
            n if n % 1_000 == 0 => (6, "us"),
            _ => (9, "ns"),
        }
    }

    fn moment(&self, format: &str, at: u64, digits: usize) -> String {
        let fraction = format!("{:09}", at % 1_000_000_000);
        let point = if digits == 0 { "" } else { "." };
        format!("{}{point}{}", time::format(format, at), &fraction[..digits])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[(u64, i64)], intervals: u32) -> Series {
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|(number, value)| [*number + 1, *value as u64, 1].map(u64::to_ne_bytes).concat())
            .collect();
        let mut series = Series::new(100_000_000, intervals, 1);
        series.add(&bytes, Merge::Last, true);
        series.end_with(series.last().unwrap());
        series
    }

    /// Rows of the samples in bpftrace's documentation, without the times.
    #[test]
    fn rows_are_bpftraces() {
        let zigzag = series(&[(1, -5), (2, -4), (3, 0), (4, 3), (5, 5)], 20).text((None, None));
        let rows: Vec<&str> = zigzag.lines().map(|line| line.get(13..).unwrap_or_default()).collect();
        assert_eq!(
            rows,
            [
                "-5                                                  5",
                "|___________________________________________________|",
                "*                         .                         | -5",
                "|    *                    .                         | -4",
                "|                         *                         | 0",
                "|                         .              *          | 3",
                "|                         .                         * 5",
                "v___________________________________________________v",
                "-5                                                  5",
            ]
        );
        assert!(zigzag.lines().nth(1).unwrap().starts_with("hh:mm:ss.ms  |"), "{zigzag}");
    }

    #[test]
    fn intervals_without_a_value_have_a_row() {
        let text = series(&[(7, 9), (9, 9)], 20).text((None, None));
        let rows: Vec<&str> = text.lines().skip(2).map(|line| line.get(13..).unwrap_or_default()).collect();
        assert_eq!(rows[0], "|                         *                         | 9");
        assert_eq!(rows[1], "|                                                   | -");
        assert!(text.ends_with("             8                                                  10\n"), "{text}");
        // What is older than the intervals that are kept is left out.
        assert_eq!(series(&[(1, 1), (9, 9)], 3).rows().len(), 1);
        assert_eq!(Series::default().text((None, None)), "<no data>");
    }

    #[test]
    fn threads_are_merged_by_interval() {
        for (merge, expected) in [(Merge::Last, 3), (Merge::Avg, 4), (Merge::Min, 3), (Merge::Max, 5), (Merge::Sum, 8)]
        {
            let bytes = |value: u64, stamp: u64| [5, value, stamp].map(u64::to_ne_bytes).concat();
            let mut series = Series::new(10, 5, 1);
            series.add(&bytes(5, 1), merge, true);
            series.add(&bytes(3, if merge == Merge::Last { 2 } else { 1 }), merge, true);
            series.end_with(4);
            assert_eq!(series.rows(), [(40, Some(expected))], "{merge:?}");
        }
    }
}
