//! Rows of `hist` and `lhist`.

use crate::out::json;

/// A bucket: its label, its bounds for JSON, and how often.
pub struct Row {
    label: String,
    /// The smallest of its values, unless there is none.
    pub min: Option<i64>,
    /// The largest.
    pub max: Option<i64>,
    /// How often there was one.
    pub count: u64,
}

/// Stars of the longest bar.
const BAR: f32 = 52.0;

/// The buckets of `hist`, from the first to the last that is not empty.
pub fn log2(counts: &[u64], bits: u32) -> Vec<Row> {
    rows(counts, |index| {
        if index == 0 {
            return ("(..., 0)".to_owned(), None, Some(-1));
        }
        let (low, high) = (log2_low(index, bits), log2_low(index + 1, bits));
        let label =
            if high == low + 1 { format!("[{low}]") } else { format!("[{}, {})", power(low, bits), power(high, bits)) };
        (label, Some(low as i64), Some((high - 1) as i64))
    })
}

/// The smallest value of a bucket.
fn log2_low(index: usize, bits: u32) -> u128 {
    let n = index as u128 - 1;
    let groups = n >> bits;
    if groups == 0 {
        return n;
    }
    let within = n & ((1 << bits) - 1);
    ((1 << bits) + within) << (groups - 1)
}

/// m × 2^(p mod 10) with the letter of p div 10; p is the exponent of the value, minus `bits`.
fn power(value: u128, bits: u32) -> String {
    let exponent = (127 - value.max(1).leading_zeros()).saturating_sub(bits);
    let letter = ["", "K", "M", "G", "T", "P", "E"][(exponent as usize / 10).min(6)];
    let shift = exponent / 10 * 10;
    format!("{}{letter}", value >> shift)
}

/// The buckets of `lhist`, from the first to the last that is not empty.
pub fn linear(counts: &[u64], min: i64, max: i64, step: i64) -> Vec<Row> {
    let last = counts.len() - 1;
    let number = |n: i64| match () {
        () if step % 1024 != 0 || n == 0 => n.to_string(),
        () if n % (1 << 20) == 0 => format!("{}M", n >> 20),
        () if n % 1024 == 0 => format!("{}K", n >> 10),
        () => n.to_string(),
    };
    rows(counts, |index| match index {
        0 => (format!("(..., {})", number(min)), None, Some(min - 1)),
        index if index == last => (format!("[{}, ...)", number(max)), Some(max), None),
        index => {
            let low = min.wrapping_add((index as i64 - 1).wrapping_mul(step));
            let high = low.wrapping_add(step);
            let label = if step == 1 { format!("[{low}]") } else { format!("[{}, {})", number(low), number(high)) };
            (label, Some(low), Some(high - 1))
        }
    })
}

fn rows(counts: &[u64], bounds: impl Fn(usize) -> (String, Option<i64>, Option<i64>)) -> Vec<Row> {
    let first = counts.iter().position(|count| *count > 0);
    let last = counts.iter().rposition(|count| *count > 0);
    let Some((first, last)) = first.zip(last) else { return Vec::new() };
    let row = |index: usize| {
        let (label, min, max) = bounds(index);
        Row { label, min, max, count: counts[index] }
    };
    (first..=last).map(row).collect()
}

/// The lines, with an empty one behind them.
pub fn text(rows: &[Row], div: u64) -> String {
    let most = rows.iter().map(|row| row.count).max().unwrap_or(0);
    let line = |row: &Row| {
        let stars = (row.count as f32 / most as f32 * BAR) as usize;
        let bar = "@".repeat(stars);
        format!("{:<16}{:>8} |{bar:<52}|\n", row.label, row.count / div)
    };
    rows.iter().map(line).collect::<String>() + "\n"
}

/// As bpftrace's JSON has them.
pub fn json(rows: &[Row], div: u64) -> String {
    json::array(rows.iter().map(|row| {
        let mut members = Vec::new();
        members.extend(row.min.map(|min| ("min", min.to_string())));
        members.extend(row.max.map(|max| ("max", max.to_string())));
        members.push(("count", json::number(row.count / div)));
        json::object(members)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sample that bpftrace has printed of the values 0,0,1,1,2..49 twice.
    #[test]
    fn buckets_are_bpftraces() {
        let counts = [0, 2, 2, 4, 8, 16, 32, 36, 0];
        let expected = "\
[0]                    2 |@@                                                  |
[1]                    2 |@@                                                  |
[2, 4)                 4 |@@@@@                                               |
[4, 8)                 8 |@@@@@@@@@@@                                         |
[8, 16)               16 |@@@@@@@@@@@@@@@@@@@@@@@                             |
[16, 32)              32 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@      |
[32, 64)              36 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|

";
        assert_eq!(text(&log2(&counts, 0), 1), expected);
    }

    #[test]
    fn labels_of_large_and_fine_buckets() {
        let label = |index: usize, bits: u32| {
            let mut counts = vec![0; index + 1];
            counts[index] = 1;
            log2(&counts, bits).remove(0).label
        };
        assert_eq!(label(0, 0), "(..., 0)");
        assert_eq!(label(11, 0), "[512, 1K)");
        assert_eq!(label(28, 0), "[64M, 128M)");
        assert_eq!(label(42, 0), "[1T, 2T)");
        assert_eq!(label(64, 0), "[4E, 8E)");
        assert_eq!(label(5, 2), "[4]");
        assert_eq!(label(9, 2), "[8, 10)");
    }

    #[test]
    fn linear_buckets_have_open_ends() {
        let mut counts = vec![0; 12];
        (counts[0], counts[1], counts[10], counts[11]) = (1, 1, 1, 2);
        let rows = linear(&counts, 0, 100, 10);
        let labels: Vec<&str> = rows.iter().map(|row| &*row.label).collect();
        assert_eq!((labels[0], labels[1], labels[10], labels[11]), ("(..., 0)", "[0, 10)", "[90, 100)", "[100, ...)"));
        assert_eq!(rows.len(), 12);
        assert_eq!(json(&rows[10..], 1), r#"[{"min": 90, "max": 99, "count": 1}, {"min": 100, "count": 2}]"#);
        assert_eq!(linear(&[0, 1, 0], 3, 4, 1)[0].label, "[3]");
        assert_eq!(linear(&[0, 1, 1, 0], 0, 4096, 2048)[1].label, "[2K, 4K)");
    }
}
