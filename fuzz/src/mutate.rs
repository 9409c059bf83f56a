//! How an input is made from a good one: bytes, numbers that lengths and indices are checked
//! against, pieces of itself or of another, cuts. Where a format says where its structures are,
//! they are hit more often than the rest.

use std::ops::Range;

use sidestep_tests::random::Rng;

/// A good input, and the parts of it that are worth to be damaged.
pub struct Sample {
    /// The input.
    pub bytes: Vec<u8>,
    /// Ranges of it. Where there are none, all of it.
    pub parts: Vec<Range<usize>>,
}

impl Sample {
    /// Of bytes that have no structure that is known here.
    pub fn plain(bytes: impl Into<Vec<u8>>) -> Sample {
        Sample { bytes: bytes.into(), parts: Vec::new() }
    }
}

/// Numbers that lengths, indices and addresses are checked against, or not.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    7,
    8,
    16,
    63,
    64,
    127,
    128,
    255,
    256,
    4096,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff8,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// Bytes of a format that words are made of: what is between them means something.
pub type Words<'a> = &'a [&'a str];

/// One input made from a sample, with words that the format knows.
pub fn mutate(rng: &mut Rng, samples: &[Sample], words: Words<'_>) -> Vec<u8> {
    let sample = &samples[rng.below(samples.len())];
    let mut bytes = sample.bytes.clone();
    for _ in 0..1 + rng.of(&[0, 0, 1, 3, 8]) {
        let range = match sample.parts.is_empty() || rng.one_in(8) {
            true => 0..bytes.len(),
            false => sample.parts[rng.below(sample.parts.len())].clone(),
        };
        let range = range.start.min(bytes.len())..range.end.min(bytes.len());
        if range.is_empty() {
            bytes.push(rng.number() as u8);
            continue;
        }
        let at = range.start + rng.below(range.len());
        match rng.below(12) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.of(&[0, 0x7f, 0x80, 0xff]),
            2 => bytes[at] = rng.number() as u8,
            3..=5 => number(rng, &mut bytes, at),
            6 => {
                // Numbers of any length in DWARF, and texts without an end.
                let (byte, len) = (rng.of(&[0x80, 0xff, b'A']), rng.of(&[4, 16, 200]));
                bytes.iter_mut().skip(at).take(len).for_each(|b| *b = byte);
            }
            7 => {
                let from = range.start + rng.below(range.len());
                let piece: Vec<u8> = bytes[from..].iter().take(1 + rng.below(64)).copied().collect();
                bytes.iter_mut().skip(at).zip(piece).for_each(|(b, new)| *b = new);
            }
            8 => {
                let other = &samples[rng.below(samples.len())].bytes;
                let from = rng.below(other.len().max(1)).min(other.len());
                let piece: Vec<u8> = other[from..].iter().take(1 + rng.below(64)).copied().collect();
                bytes.splice(at..at, piece);
            }
            9 if rng.one_in(4) => bytes.truncate(at),
            9 => drop(bytes.drain(at..(at + 1 + rng.below(16)).min(bytes.len()))),
            _ if words.is_empty() => number(rng, &mut bytes, at),
            _ => {
                let word = rng.of(words).as_bytes();
                let again = rng.of(&[1, 1, 1, 2, 40]);
                bytes.splice(at..at, word.repeat(again));
            }
        }
    }
    bytes
}

/// A number of one, two, four or eight bytes, also one that is near the one that is there.
fn number(rng: &mut Rng, bytes: &mut [u8], at: usize) {
    let len = rng.of(&[1, 2, 4, 8]);
    let at = if rng.one_in(2) { at & !(len - 1) } else { at };
    let mut word = [0; 8];
    bytes[at..].iter().take(len).zip(&mut word).for_each(|(from, to)| *to = *from);
    let now = u64::from_le_bytes(word);
    let new = match rng.below(4) {
        0 => now.wrapping_add(rng.of(&[1, 8, u64::MAX, u64::MAX - 7])),
        1 => rng.below(bytes.len()) as u64,
        _ => rng.of(&NUMBERS),
    };
    bytes[at..].iter_mut().take(len).zip(new.to_le_bytes()).for_each(|(to, from)| *to = from);
}
