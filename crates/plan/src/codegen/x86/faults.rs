//! Places in the detours of x86 where handlers save registers.

use sidestep_wire::CopyPair;

use crate::codegen::detour::Detour;

/// The pushes and calls of handlers at which no register has changed yet but the stack pointer.
/// Where one finds no room, the handler can be left out: those at the start of the detour, and
/// behind the copies, where the way to a thunk begins.
pub(crate) fn saves(detour: &Detour) -> Vec<CopyPair> {
    let mut all = Vec::new();
    let (Some((_, first)), Some(last)) = (detour.copies.first(), detour.copies.iter().map(|(_, to)| *to).max()) else {
        return all;
    };
    if !detour.leads {
        return all;
    }
    let (bytes, word) = (&detour.bytes, detour.isa.word() as u16);
    let mut note = |at: usize, depth: u16| all.push(CopyPair { original: depth | CopyPair::SAVES, copy: at as u16 });
    let (mut at, mut depth) = (0, 0);
    if let Some((len, room)) = steps_down(&bytes[..usize::from(*first)]) {
        (at, depth) = (len, room);
    }
    let below = depth;
    while let Some((len, is_number)) = push(&bytes[at..usize::from(*first)]) {
        note(at, depth);
        (at, depth) = (at + len, depth + word);
        if is_number && bytes.get(at) == Some(&CALL) {
            note(at, depth);
            break;
        }
    }
    for at in usize::from(last)..bytes.len() {
        if let Some((len, true)) = push(&bytes[at..]).filter(|(len, _)| bytes.get(at + len) == Some(&CALL)) {
            note(at, below);
            note(at + len, below + word);
        }
    }
    all
}

const CALL: u8 = 0xe8;

/// Length of a `push` of a register, or of a number, and which it is.
fn push(code: &[u8]) -> Option<(usize, bool)> {
    match *code {
        [0x50..=0x57, ..] => Some((1, false)),
        [0x41, 0x50..=0x57, ..] => Some((2, false)),
        [0x6a, _, ..] => Some((2, true)),
        [0x68, _, _, _, _, ..] => Some((5, true)),
        _ => None,
    }
}

/// Length of the step over the red zone, and its size: `lea -128(%rsp),%rsp`.
fn steps_down(code: &[u8]) -> Option<(usize, u16)> {
    match *code {
        [0x48, 0x8d, 0x64, 0x24, by, ..] if by >= 0x80 => Some((5, u16::from((by as i8).unsigned_abs()))),
        _ => None,
    }
}
