//! Work on all processors.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread;

/// Below this weight a thread costs more than it saves (a byte of code takes some nanoseconds, a thread tens of microseconds).
const WORTH_A_THREAD: usize = 64 << 10;

/// Cuts `items` into one part per processor, of about the same weight, and works on the parts at the same time. Results in
/// the order of the parts.
pub(crate) fn map<T: Sync, R: Send>(
    items: &[T],
    weight: impl Fn(&T) -> usize,
    work: impl Fn(&[T]) -> R + Sync,
) -> Vec<R> {
    let total: usize = items.iter().map(&weight).sum();
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(total / WORTH_A_THREAD).max(1);
    let work = &work;
    thread::scope(|scope| {
        let (mut rest, mut running) = (items, Vec::new());
        for left in (1..threads).rev() {
            let share = rest.iter().map(&weight).sum::<usize>() / (left + 1);
            let mut sum = 0;
            let cut = rest.iter().position(|item| {
                sum += weight(item);
                sum > share
            });
            let (part, others) = rest.split_at(cut.unwrap_or(rest.len()));
            running.push(scope.spawn(move || work(part)));
            rest = others;
        }
        let last = work(rest);
        let mut all: Vec<R> = running.into_iter().map(|t| t.join().unwrap_or_else(|e| resume_unwind(e))).collect();
        all.push(last);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_all_in_order() {
        for weights in
            [vec![], vec![1; 10], vec![1 << 20; 10], vec![1 << 30, 1, 1], (0..1000).map(|i| i * 997).collect()]
        {
            let parts = map(&weights, |w| *w, <[usize]>::to_vec);
            assert_eq!(parts.concat(), weights);
        }
    }
}
