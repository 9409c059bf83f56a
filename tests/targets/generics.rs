//! Generic functions, called by threads with names. What each thread has called, it says itself.

use std::any::type_name;
use std::hint::black_box;
use std::ops::Add;
use std::thread;

struct Queue<T>(Vec<T>);

trait Job {
    fn run(&self, n: u64) -> u64;
}

#[inline(never)]
fn twice<T: Copy + Add<Output = T>>(value: T) -> T {
    black_box(value + value)
}

impl<T: Copy + Into<u64>> Job for Queue<T> {
    #[inline(never)]
    fn run(&self, n: u64) -> u64 {
        black_box(self.0[0].into() + n)
    }
}

fn work(thread: u64) {
    let (wide, narrow) = (10 * (thread + 1), 3 * (thread + 1));
    for i in 0..wide {
        black_box(twice(i));
        black_box(Queue(vec![i as u32]).run(i));
    }
    for i in 0..narrow {
        black_box(twice(i as u8));
        black_box(Queue(vec![i as u8]).run(i));
    }
    for (name, calls) in [(type_name::<u64>(), wide), (type_name::<u8>(), narrow)] {
        println!("worker{thread} {name} {calls}");
    }
}

fn main() {
    let start = |n: u64| thread::Builder::new().name(format!("worker{n}")).spawn(move || work(n)).expect("a thread");
    let threads: Vec<_> = (0..3).map(start).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("ends"));
}
