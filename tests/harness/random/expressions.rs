//! Random expressions over the variables of a function.

use super::Rng;

/// What an expression may name: `x0` … and whatever is called from here.
pub struct Scope {
    /// This function, and how many there are: calls lead to any that comes behind.
    pub function: usize,
    /// How many functions there are.
    pub count: usize,
    /// Variables `x0`, `x1` ….
    pub variables: usize,
    /// Whether it calls others.
    pub calls: bool,
}

impl Scope {
    /// A variable.
    pub fn variable(&self, rng: &mut Rng) -> String {
        format!("x{}", rng.below(self.variables))
    }

    /// A number that one of the kinds of immediate operands can hold.
    pub fn constant(&self, rng: &mut Rng) -> String {
        match rng.below(4) {
            0 => format!("{}ul", rng.below(16)),
            1 => format!("{}ul", rng.below(128)),
            2 => format!("{:#x}ul", rng.number() >> 33),
            _ => format!("{:#x}ul", rng.number()),
        }
    }

    /// A call of a function behind this one, if there is one.
    pub fn call(&self, rng: &mut Rng) -> String {
        let (a, b) = (self.variable(rng), self.expression(rng, 1));
        let behind = self.count - self.function - 1;
        match rng.below(6) {
            0 if behind > 3 => format!("CALL(table[{a} & 3], {a}, {b})"),
            1 => "next_word()".to_owned(),
            _ if behind > 0 => format!("CALL(f{}, {a}, {b})", self.function + 1 + rng.below(behind)),
            _ => format!("mix({a}, {b})"),
        }
    }

    /// An expression of so many levels.
    pub fn expression(&self, rng: &mut Rng, depth: usize) -> String {
        if depth == 0 {
            return if rng.one_in(3) { self.constant(rng) } else { self.variable(rng) };
        }
        let a = self.expression(rng, depth - 1);
        let b = self.expression(rng, depth - 1);
        match rng.below(30) {
            0..5 => format!("({a} + {b})"),
            5..8 => format!("({a} - {b})"),
            8..11 => format!("({a} ^ {b})"),
            11 => format!("({a} & {b})"),
            12 => format!("({a} | {b})"),
            13 | 14 => format!("({a} * {b})"),
            15 => format!("({a} << ({b} & 31))"),
            16 => format!("({a} >> ({b} & 63))"),
            17 => format!("({a} / (({b} & 255) + 1))"),
            18 => format!("((u64)((i64){a} % (i64)(({b} & 63) + 1)))"),
            19 => format!("({a} > {b} ? {a} : {b})"),
            20 => format!("((i64){a} < (i64){b})"),
            21 => format!("words[{a} & 15]"),
            22 => format!("(odd[{a} & 7] + {b})"),
            23 => format!("((u64)__builtin_popcountl({a}) + {b})"),
            24 => format!("(__builtin_bswap64({a}) ^ {b})"),
            25 => format!("((u64)(u8){a} * (u32){b})"),
            26 => format!("((u64)(((unsigned __int128){a} * {b}) >> 64))"),
            27 => format!("(({a} >> 13 | {a} << 51) + {b})"),
            28 => format!("((u64)(i64)(int){a} - (u64)(short){b})"),
            _ if self.calls => self.call(rng),
            _ => format!("(own + {b})"),
        }
    }

    /// A condition.
    pub fn condition(&self, rng: &mut Rng) -> String {
        let a = self.expression(rng, 1);
        let text = match rng.below(6) {
            0 => format!("{a} & {}", 1 << rng.below(8)),
            1 => format!("(u8){a} > {}", 40 + rng.below(160)),
            2 => format!("{a} > {}", self.variable(rng)),
            3 => format!("(i64){a} < 0"),
            4 => format!("({a}) % {} == 0", 2 + rng.below(5)),
            _ => format!("(u32){a} < (u32){}", self.variable(rng)),
        };
        match rng.below(6) {
            0 => format!("LIKELY({text})"),
            1 => format!("UNLIKELY({text})"),
            _ => text,
        }
    }
}
