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

fn main() {
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
