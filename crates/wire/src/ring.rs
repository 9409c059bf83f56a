//! A thread's ring as its reader sees it, who does not trust the writer.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::{RecordHeader, RecordState};

/// What is at a place of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing yet.
    Nothing,
    /// No writer of ours has written such a head: the reader goes on at this place.
    Overwritten(u64),
    /// A record that has no length yet.
    Reserved,
    /// A record that its writer has not finished: its first word, and its length.
    Unfinished(u64, u64),
    /// A record of so many bytes.
    Record(u64),
    /// So many bytes that nobody reads.
    Pad(u64),
}

/// A ring: a power of two of words.
#[derive(Clone, Copy, Debug)]
pub struct Ring<'a>(&'a [AtomicU64]);

impl<'a> Ring<'a> {
    /// Of some words; `None` if their number is no power of two.
    #[must_use]
    pub fn new(words: &'a [AtomicU64]) -> Option<Ring<'a>> {
        words.len().is_power_of_two().then_some(Ring(words))
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    /// Never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The word at a place, which counts bytes from the first record on.
    #[must_use]
    pub fn word(&self, at: u64) -> &'a AtomicU64 {
        &self.0[(at / 8) as usize & (self.0.len() - 1)]
    }

    /// What is at `tail`, of what is written up to `head`. The length of a record is that of a
    /// header at least, a multiple of 8, and not longer than what is written, nor than the ring.
    #[must_use]
    pub fn next(&self, head: u64, tail: u64) -> Next {
        let written = head.saturating_sub(tail);
        if written > self.len() || head % 8 != 0 {
            return Next::Overwritten(head & !7);
        }
        if written == 0 {
            return Next::Nothing;
        }
        let state_len = self.word(tail).load(Ordering::Acquire);
        let (state, len) = (state_len as u32, state_len >> 32);
        if len < size_of::<RecordHeader>() as u64 || len % 8 != 0 || len > written {
            return Next::Reserved;
        }
        match state {
            state if state == RecordState::Committed as u32 => Next::Record(len),
            state if state == RecordState::Pad as u32 => Next::Pad(len),
            _ => Next::Unfinished(state_len, len),
        }
    }
}
