//! Latency distributions: bcc's histogram, quantiles, and the same as JSON.

use sidestep_engine::Distribution;

use super::json;

/// The unit of a histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds.
    Nanos,
    /// Microseconds (`-u`).
    Micros,
    /// Milliseconds (`-m`).
    Millis,
}

impl Unit {
    /// As in the heading.
    pub fn label(self) -> &'static str {
        match self {
            Unit::Nanos => "nsecs",
            Unit::Micros => "usecs",
            Unit::Millis => "msecs",
        }
    }

    fn nanos(self) -> u64 {
        match self {
            Unit::Nanos => 1,
            Unit::Micros => 1_000,
            Unit::Millis => 1_000_000,
        }
    }
}

/// What was added since an earlier state of the same distribution.
pub fn since(now: &Distribution, before: &Distribution) -> Distribution {
    let mut old = before.buckets.iter().peekable();
    let mut buckets = Vec::new();
    for &(low, high, count) in &now.buckets {
        while old.next_if(|bucket| bucket.0 < low).is_some() {}
        let known = old.next_if(|bucket| bucket.0 == low).map_or(0, |bucket| bucket.2);
        if count > known {
            buckets.push((low, high, count - known));
        }
    }
    Distribution { buckets, sum: now.sum.saturating_sub(before.sum), count: now.count.saturating_sub(before.count) }
}

/// Index 1 is 0 and 1, index i above it 2^(i-1) to 2^i - 1, as bcc's `bpf_log2l` has it. A fine
/// bucket that a power of two of the unit cuts through counts where its middle lies: it is at most
/// 1/16 wide.
fn rows(distribution: &Distribution, unit: Unit) -> Vec<u64> {
    let mut rows = vec![0; 2];
    for &(low, high, count) in &distribution.buckets {
        let middle = (low + (high - 1).saturating_sub(low) / 2) / unit.nanos();
        let index = (64 - middle.leading_zeros() as usize).max(1);
        if index >= rows.len() {
            rows.resize(index + 1, 0);
        }
        rows[index] += count;
    }
    rows
}

fn bounds(index: usize) -> (u64, u64) {
    let low = if index == 1 { 0 } else { 1 << (index - 1) };
    (low, u64::MAX >> (64 - index))
}

/// The lines of bcc's `print_log2_hist`; none for an empty distribution.
pub fn histogram(distribution: &Distribution, unit: Unit) -> Vec<String> {
    bars(&rows(distribution, unit), unit.label())
}

/// The same for the values of a script's `hist`: (smallest, largest, count).
pub fn histogram_of(buckets: impl IntoIterator<Item = (u64, u64, u64)>, label: &str) -> Vec<String> {
    let buckets = buckets.into_iter().map(|(low, high, count)| (low, high + 1, count)).collect();
    bars(&rows(&Distribution { buckets, sum: 0, count: 0 }, Unit::Nanos), label)
}

fn bars(rows: &[u64], label: &str) -> Vec<String> {
    let most = rows.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return Vec::new();
    }
    // Rows of more than 32 bits need wider columns, and leave less for the bars.
    let wide = rows.len() > 33;
    let (number, stars) = if wide { (20, 20) } else { (10, 40) };
    let mut lines = vec![if wide {
        format!("               {label:<29} : count     distribution")
    } else {
        format!("     {label:<19} : count     distribution")
    }];
    for (index, &count) in rows.iter().enumerate().skip(1) {
        let (low, high) = bounds(index);
        let bar = "*".repeat((stars as u128 * u128::from(count) / u128::from(most)) as usize);
        lines.push(format!("{low:>number$} -> {high:<number$} : {count:<8} |{bar:<stars$}|"));
    }
    lines
}

/// bcc's line of totals, then ours of quantiles.
pub fn summary(distribution: &Distribution, unit: Unit) -> Vec<String> {
    let Distribution { sum, count, .. } = *distribution;
    if count == 0 {
        return Vec::new();
    }
    let label = unit.label();
    let total = sum / unit.nanos();
    let average = sum / count / unit.nanos();
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| {
        let value = quantile(distribution, q);
        // A whole unit is too coarse for a quantile in milliseconds.
        if unit == Unit::Nanos { format!("{value:.0}") } else { format!("{:.3}", value / unit.nanos() as f64) }
    });
    vec![
        format!("avg = {average} {label}, total: {total} {label}, count: {count}"),
        format!("p50 = {p50} p90 = {p90} p99 = {p99} {label}"),
    ]
}

/// The value below which the share `q` of all values lies, in nanoseconds, interpolated within its
/// fine bucket.
pub fn quantile(distribution: &Distribution, q: f64) -> f64 {
    let total: u64 = distribution.buckets.iter().map(|bucket| bucket.2).sum();
    let rank = q * total as f64;
    let mut below = 0;
    for &(low, high, count) in &distribution.buckets {
        let upto = below + count;
        if upto as f64 >= rank {
            let share = ((rank - below as f64) / count as f64).clamp(0.0, 1.0);
            // The largest value of the bucket is high - 1.
            return low as f64 + (high - 1 - low) as f64 * share;
        }
        below = upto;
    }
    0.0
}

/// `[{"min": 4, "max": 7, "count": 1}, ...]`, from the first to the last row that is not empty.
pub fn histogram_json(distribution: &Distribution, unit: Unit) -> String {
    let rows = rows(distribution, unit);
    let first = rows.iter().position(|&count| count > 0).unwrap_or(rows.len());
    json::array(rows.iter().enumerate().skip(first).map(|(index, &count)| {
        let (min, max) = bounds(index);
        json::object([("min", json::number(min)), ("max", json::number(max)), ("count", json::number(count))])
    }))
}

/// bpftrace's stats in the unit, and the quantiles.
pub fn summary_json(distribution: &Distribution, unit: Unit) -> String {
    let Distribution { sum, count, .. } = *distribution;
    let mut members = vec![
        ("count", json::number(count)),
        ("average", json::number(sum.checked_div(count).unwrap_or(0) / unit.nanos())),
        ("total", json::number(sum / unit.nanos())),
    ];
    for (name, q) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        members.push((name, format!("{:.3}", quantile(distribution, q) / unit.nanos() as f64)));
    }
    json::object(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values one by one: `(value, count)`.
    fn exactly(values: &[(u64, u64)]) -> Distribution {
        Distribution {
            buckets: values.iter().map(|&(value, count)| (value, value + 1, count)).collect(),
            sum: values.iter().map(|&(value, count)| value * count).sum(),
            count: values.iter().map(|&(_, count)| count).sum(),
        }
    }

    /// The example that bcc ships (pthread_mutex_lock), byte for byte.
    #[test]
    fn histogram_is_bccs() {
        let counts = [508_967, 70_072, 27_686, 5_075, 2_318, 581, 38, 5, 1, 9];
        let values: Vec<_> = counts.iter().enumerate().map(|(i, &count)| (2048_u64 << i, count)).collect();
        let expected = "     nsecs               : count     distribution
         0 -> 1          : 0        |                                        |
         2 -> 3          : 0        |                                        |
         4 -> 7          : 0        |                                        |
         8 -> 15         : 0        |                                        |
        16 -> 31         : 0        |                                        |
        32 -> 63         : 0        |                                        |
        64 -> 127        : 0        |                                        |
       128 -> 255        : 0        |                                        |
       256 -> 511        : 0        |                                        |
       512 -> 1023       : 0        |                                        |
      1024 -> 2047       : 0        |                                        |
      2048 -> 4095       : 508967   |****************************************|
      4096 -> 8191       : 70072    |*****                                   |
      8192 -> 16383      : 27686    |**                                      |
     16384 -> 32767      : 5075     |                                        |
     32768 -> 65535      : 2318     |                                        |
     65536 -> 131071     : 581      |                                        |
    131072 -> 262143     : 38       |                                        |
    262144 -> 524287     : 5        |                                        |
    524288 -> 1048575    : 1        |                                        |
   1048576 -> 2097151    : 9        |                                        |";
        assert_eq!(histogram(&exactly(&values), Unit::Nanos).join("\n"), expected);
    }

    #[test]
    fn values_land_in_the_row_that_names_them() {
        for value in
            [0, 1, 2, 3, 4, 7, 8, 1023, 1024, u64::from(u32::MAX), 1 << 32, (1 << 63) - 1, 1 << 63, u64::MAX - 1]
        {
            let lines =
                histogram(&Distribution { buckets: vec![(value, value + 1, 1)], sum: 0, count: 1 }, Unit::Nanos);
            let last = lines.last().unwrap();
            let (low, rest) = last.trim_start().split_once(" -> ").unwrap();
            let high = rest.split_once(' ').unwrap().0;
            assert!(low.parse::<u64>().unwrap() <= value && value <= high.parse().unwrap(), "{value}: {last}");
            assert!(last.contains(": 1 "));
            // Both layouts of bcc are 78 columns wide.
            assert!(lines[1..].iter().all(|line| line.len() == 78), "{last}");
        }
    }

    #[test]
    fn one_value_at_zero_makes_one_row() {
        let lines = histogram(&exactly(&[(0, 3)]), Unit::Micros);
        let row = format!("         0 -> 1          : 3        |{}|", "*".repeat(40));
        assert_eq!(lines, ["     usecs               : count     distribution".to_owned(), row]);
        assert_eq!(histogram(&Distribution::default(), Unit::Nanos), [""; 0]);
    }

    #[test]
    fn units_divide_before_the_rows() {
        let lines = histogram(&exactly(&[(1_999_999, 1), (4_000_000, 2)]), Unit::Millis);
        assert!(lines[1].starts_with("         0 -> 1          : 1 "));
        assert!(lines[3].starts_with("         4 -> 7          : 2 "));
        let text = summary(&exactly(&[(1_000_000, 1), (4_000_000, 2)]), Unit::Millis).join("\n");
        assert_eq!(text, "avg = 3 msecs, total: 9 msecs, count: 3\np50 = 4.000 p90 = 4.000 p99 = 4.000 msecs");
    }

    #[test]
    fn quantiles_are_interpolated() {
        let uniform: Vec<_> = (1..=1000).map(|value| (value, 1)).collect();
        assert_eq!([0.5, 0.9, 0.99].map(|q| quantile(&exactly(&uniform), q)), [500.0, 900.0, 990.0]);
        let wide = Distribution { buckets: vec![(1024, 1088, 64)], sum: 0, count: 64 };
        assert_eq!(quantile(&wide, 0.5), 1024.0 + 63.0 / 2.0);
        assert_eq!(quantile(&Distribution::default(), 0.5), 0.0);
        assert_eq!(
            summary(&exactly(&[(10, 90), (1000, 10)]), Unit::Nanos),
            ["avg = 109 nsecs, total: 10900 nsecs, count: 100", "p50 = 10 p90 = 10 p99 = 1000 nsecs"]
        );
    }

    #[test]
    fn difference_of_two_states() {
        let before = exactly(&[(1, 5), (7, 1)]);
        let now = exactly(&[(1, 5), (3, 2), (7, 4)]);
        assert_eq!(since(&now, &before), exactly(&[(3, 2), (7, 3)]));
        assert_eq!(since(&now, &Distribution::default()), now);
        assert_eq!(since(&now, &now), Distribution::default());
    }

    #[test]
    fn json_rows_begin_at_the_first_value() {
        assert_eq!(
            histogram_json(&exactly(&[(5, 1), (16, 2)]), Unit::Nanos),
            r#"[{"min": 4, "max": 7, "count": 1}, {"min": 8, "max": 15, "count": 0}, {"min": 16, "max": 31, "count": 2}]"#
        );
        assert_eq!(histogram_json(&Distribution::default(), Unit::Nanos), "[]");
        assert_eq!(
            summary_json(&exactly(&[(5, 1)]), Unit::Nanos),
            r#"{"count": 1, "average": 5, "total": 5, "p50": 5.000, "p90": 5.000, "p99": 5.000}"#
        );
    }
}
