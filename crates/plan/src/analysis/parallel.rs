//! Work on all processors.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// Below this weight a thread costs more than it saves (a byte of code takes some nanoseconds, a
/// thread tens of microseconds).
const WORTH_A_THREAD: usize = 64 << 10;

/// Cuts `items` into one part per processor, of about the same weight (bytes of code), and works on
/// the parts at the same time. `work` gets the number of its first item and the items. Results in
/// the order of the parts.
pub(crate) fn map<T: Send, R: Send>(
    items: &mut [T],
    weight: impl Fn(&T) -> usize,
    work: impl Fn(usize, &mut [T]) -> R + Sync,
) -> Vec<R> {
    let total: usize = items.iter().map(&weight).sum();
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(total / WORTH_A_THREAD).max(1);
    let work = &work;
    thread::scope(|scope| {
        let (mut rest, mut first, mut left, mut running) = (items, 0, total, Vec::new());
        for others in (1..threads).rev() {
            let share = left / (others + 1);
            let mut sum = 0;
            let mut len = 0;
            while len < rest.len() && sum + weight(&rest[len]) <= share {
                sum += weight(&rest[len]);
                len += 1;
            }
            let (part, behind) = rest.split_at_mut(len);
            running.push(scope.spawn(move || work(first, part)));
            (rest, first, left) = (behind, first + len, left - sum);
        }
        let last = work(first, rest);
        let done = running.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        done.chain([last]).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_in_order() {
        let rising: Vec<usize> = (0..1000).map(|i| i * 997).collect();
        for mut weights in [vec![], vec![1; 10], vec![1 << 20; 10], vec![1 << 30, 1, 1], vec![1, 1 << 30], rising] {
            let parts = map(&mut weights, |w| *w, |first, part| (first, part.to_vec()));
            let mut all = Vec::new();
            for (first, part) in parts {
                assert_eq!(first, all.len());
                all.extend(part);
            }
            assert_eq!(all, weights);
        }
    }
}
