//! Work on all processors.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

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
    let (mut rest, mut first, mut left, mut parts) = (items, 0, total, Vec::new());
    for others in (1..threads).rev() {
        let share = left / (others + 1);
        let mut sum = 0;
        let mut len = 0;
        while len < rest.len() && sum + weight(&rest[len]) <= share {
            sum += weight(&rest[len]);
            len += 1;
        }
        let (part, behind) = rest.split_at_mut(len);
        parts.push(Mutex::new(Some((first, part))));
        (rest, first, left) = (behind, first + len, left - sum);
    }
    // Whoever takes a part works on it.
    let work_on = |part: &Part<'_, T>| take(part).map(|(first, items)| work(first, items));
    thread::scope(|scope| {
        let spawn = |part| thread::Builder::new().spawn_scoped(scope, move || work_on(part)).ok();
        let running: Vec<_> = parts.iter().map(spawn).collect();
        let last = work(first, rest);
        let end = |(thread, part): (Option<ScopedJoinHandle<'_, Option<R>>>, _)| match thread {
            Some(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // There may be no more threads (EAGAIN).
            None => work_on(part),
        };
        running.into_iter().zip(&parts).filter_map(end).chain([last]).collect()
    })
}

/// The number of the first item of a part, and its items, until somebody works on them.
type Part<'a, T> = Mutex<Option<(usize, &'a mut [T])>>;

fn take<'a, T>(part: &Part<'a, T>) -> Option<(usize, &'a mut [T])> {
    part.lock().unwrap_or_else(PoisonError::into_inner).take()
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
