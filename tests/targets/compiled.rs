//! Arguments and a result of all kinds, at every level of optimization.

use std::hint::black_box;

pub struct Point {
    pub x: i32,
    pub y: i32,
}

#[inline(never)]
pub fn take(text: &str, list: &[u64], owned: String, n: u32, some: Option<u32>, point: &Point) -> usize {
    black_box((&text, &list, &owned, n, some, point.x, point.y));
    text.len() + list.len() + owned.len()
}

#[inline(never)]
pub fn give(n: u64) -> &'static str {
    if black_box(n) == 0 { "none" } else { "some of it" }
}

fn main() {
    for n in 1..3 {
        let point = Point { x: n, y: -n };
        let given = give(n as u64);
        let list = [1, 2, 3];
        black_box(take(black_box(given), black_box(&list), String::from("owned"), n as u32, black_box(Some(9)), &point));
    }
}
