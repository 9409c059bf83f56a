//! Texts as Rust has them.

use std::hint::black_box;

pub struct Person {
    pub name: String,
    pub age: u32,
}

#[derive(Clone, Copy)]
pub enum Colour {
    Red,
    Green = 5,
}

pub enum Shape {
    Circle(u32),
    Rect { w: u32, h: u64 },
    Nothing,
}

#[inline(never)]
pub fn borrowed(text: &str, n: u32) -> usize {
    black_box((&text, n));
    text.len()
}

#[inline(never)]
pub fn owned(text: String, other: &String) -> usize {
    black_box((&text, other));
    text.len()
}

#[inline(never)]
pub fn person(of: &Person) -> usize {
    black_box(of);
    of.name.len()
}

#[inline(never)]
pub fn variants(colour: Colour, shape: &Shape, some: Option<u32>) -> u32 {
    let area = match black_box(shape) {
        Shape::Circle(r) => r * r,
        Shape::Rect { w, h } => w * *h as u32,
        Shape::Nothing => 0,
    };
    area + black_box(colour) as u32 + black_box(some).unwrap_or(1)
}

pub struct Spot {
    pub x: u32,
    pub y: u8,
}

pub enum Event {
    Named(String),
    Sent { to: u32, bytes: Vec<u8> },
    Off,
}

#[inline(never)]
pub fn slices(a: &[u32], b: Vec<i64>, c: &Vec<Spot>, d: &mut [u8], e: Box<[u16]>) -> usize {
    black_box((&a, &b, &c, &d, &e));
    a.len() + b.len() + c.len() + d.len() + e.len()
}

#[inline(never)]
pub fn lists(a: &[&str], b: &Vec<String>, c: Option<Vec<u16>>) -> usize {
    black_box((&a, &b, &c));
    a.len() + b.len() + c.map_or(0, |list| list.len())
}

#[inline(never)]
pub fn perhaps(a: Option<&str>, b: Option<String>, c: &Event, d: Result<u32, String>) -> usize {
    black_box((&a, &b, &c, &d));
    a.map_or(0, |text| text.len())
}

#[inline(never)]
pub fn made(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

#[inline(never)]
pub fn found(n: usize) -> Option<String> {
    if n > 3 { None } else { Some(format!("n{n}")) }
}

#[inline(never)]
pub fn same(a: Option<String>, b: Vec<String>) -> usize {
    black_box((&a, &b));
    a.map_or(0, |text| text.len()) + b.len()
}

/// Texts in lists and enumerations, and lists.
fn inside() -> usize {
    let mut bytes = *b"hello";
    let long: Vec<u32> = (0..300).collect();
    let spots = vec![Spot { x: 1, y: 2 }, Spot { x: 3, y: 4 }];
    let mut n = slices(&[1, 2, 3], vec![-1, 5], &spots, &mut bytes, Box::new([9, 8]));
    n += slices(&[], vec![], &vec![], &mut [], Box::new([]));
    n += slices(black_box(&long), vec![], &vec![], &mut [], Box::new([]));
    n += lists(&["a", "", "bc"], &vec!["own".to_owned()], Some(vec![7]));
    n += lists(&["x"; 9], &vec![], None);
    n += perhaps(Some("some"), Some("own".to_owned()), &Event::Named("Ada".to_owned()), Ok(3));
    n += perhaps(None, None, &Event::Sent { to: 7, bytes: vec![1, 2] }, Err("bad".to_owned()));
    n += perhaps(Some(""), None, &Event::Off, Err(String::new()));
    let mut kept = Vec::new();
    for room in [4, 8, 16] {
        // Each text lies elsewhere, and has other bytes behind.
        let mut text = String::with_capacity(room);
        text.push_str("same");
        kept.push(text.clone());
        n += same(Some(text), vec!["a".to_owned(), "b".to_owned()]) - 2;
    }
    n + made(black_box(4)).len() + found(black_box(2)).map_or(0, |text| text.len()) + found(black_box(5)).map_or(0, |_| 1)
}

fn main() {
    if std::env::args().nth(1).is_some() {
        println!("{}", inside());
        return;
    }
    let whole = black_box("what is behind it");
    let long = "x".repeat(black_box(2000));
    let mut sum = borrowed(&whole[..4], 1) + borrowed("", 2) + borrowed("a\0b", 3) + borrowed(&long, 4);
    sum += owned("own".to_owned(), &"another".to_owned());
    sum += person(&Person { name: "Ada".to_owned(), age: 36 });
    let rect = Shape::Rect { w: 2, h: 3 };
    let mut n = variants(Colour::Red, black_box(&Shape::Circle(4)), black_box(Some(7)));
    n += variants(Colour::Green, black_box(&rect), black_box(None)) + variants(Colour::Red, black_box(&Shape::Nothing), None);
    println!("{sum} {n}");
}
