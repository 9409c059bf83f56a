//! Values that are the same, with other bytes where nothing of them is.

use std::hint::black_box;
use std::mem::MaybeUninit;

#[derive(Clone, Copy)]
pub enum Shape {
    Nothing,
    Point(u32),
    Line { a: u64, b: u8 },
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Padded {
    small: u8,
    large: u64,
    shape: Shape,
    list: [Option<u16>; 3],
}

#[inline(never)]
pub fn wide(n: u32) -> u128 {
    black_box(u128::from(n) | 1 << 100)
}

#[inline(never)]
pub fn choice(choice: &Option<u32>) -> u32 {
    black_box(choice).unwrap_or(1)
}

#[inline(never)]
pub fn shape(shape: &Shape) -> u64 {
    match black_box(shape) {
        Shape::Nothing => 0,
        Shape::Point(at) => u64::from(*at),
        Shape::Line { a, b } => a + u64::from(*b),
    }
}

#[inline(never)]
pub fn padded(padded: &Padded) -> u64 {
    let Padded { small, large, shape: of, list } = black_box(padded);
    u64::from(*small) + large + shape(of) + list.iter().flatten().map(|n| u64::from(*n)).sum::<u64>()
}

/// Writes what a value has, and nothing between.
trait Write: Copy {
    /// # Safety
    /// There is room for a value, which nobody else uses.
    unsafe fn write(self, at: *mut Self);
}

impl<T: Copy> Write for Option<T> {
    #[inline(never)]
    unsafe fn write(self, at: *mut Self) {
        // SAFETY: there is room for it, as the caller of this function has promised.
        unsafe { at.write(self) }
    }
}

impl Write for Shape {
    #[inline(never)]
    unsafe fn write(self, at: *mut Shape) {
        // SAFETY: there is room for it, as the caller of this function has promised.
        unsafe { at.write(self) }
    }
}

impl Write for Padded {
    #[inline(never)]
    unsafe fn write(self, at: *mut Padded) {
        // SAFETY: the caller has room for the whole, so for each member and each item.
        unsafe {
            (&raw mut (*at).small).write(self.small);
            (&raw mut (*at).large).write(self.large);
            self.shape.write(&raw mut (*at).shape);
            for (index, item) in self.list.into_iter().enumerate() {
                item.write((&raw mut (*at).list).cast::<Option<u16>>().add(index));
            }
        }
    }
}

/// `look` sees the value where all bytes were `fill`.
fn on<T: Write>(fill: u8, value: T, look: impl Fn(&T) -> u64) -> u64 {
    let mut place = MaybeUninit::<T>::uninit();
    // SAFETY: the place is this function's own, and has a value when it is looked at.
    unsafe {
        black_box(place.as_mut_ptr()).write_bytes(fill, 1);
        value.write(black_box(place.as_mut_ptr()));
        look(&*black_box(place.as_ptr()))
    }
}

fn main() {
    black_box(wide(5));
    let mut sum = 0;
    for fill in 0..10 {
        for value in [None, Some(7)] {
            sum += on(fill, value, |value| u64::from(choice(value)));
        }
        for value in [Shape::Nothing, Shape::Point(5), Shape::Line { a: 6, b: 7 }] {
            sum += on(fill, value, shape);
            let whole = Padded { small: 1, large: 2, shape: value, list: [None, Some(3), None] };
            sum += on(fill, whole, padded);
        }
    }
    println!("{sum}");
}
