//! References to maps in code.

use std::os::fd::AsRawFd;

use super::map::Map;

/// `BPF_LD | BPF_IMM | BPF_DW`: loads 64 bits, of which the next slot holds the upper half.
const LOAD_IMM64: u8 = 0x18;

// What the source register of that instruction says (`BPF_PSEUDO_*`).
const MAP_FD: u8 = 1;
const MAP_FD_VALUE: u8 = 2;
const MAP_INDEX: u8 = 5;
const MAP_INDEX_VALUE: u8 = 6;

/// A reference to a map that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReferenceError {
    /// There are not so many maps.
    #[error("insn {at} refers to map {index} of {maps}; create all maps of the object, in its order")]
    Map {
        /// The slot.
        at: usize,
        /// What it refers to.
        index: u32,
        /// How many there are.
        maps: usize,
    },
    /// The code ends within an instruction.
    #[error("insn {at} loads 64 bits, but the code ends with it; pass the whole program")]
    Truncated {
        /// The slot.
        at: usize,
    },
}

/// Turns references to maps by index into references by descriptor.
///
/// A slot is a little-endian instruction of 8 bytes: opcode, registers (destination in the lower
/// half, source in the upper), offset (2 bytes), immediate (4 bytes). A load of 64 bits (opcode
/// 0x18) takes two; its source register says what is loaded:
///
/// | source | immediate of the first slot | immediate of the second | becomes |
/// |---|---|---|---|
/// | 1 | descriptor of a map | 0 | (stays) |
/// | 2 | descriptor of a map | offset in its only value | (stays) |
/// | 5 | index of a map | 0 | 1, with the descriptor of that map |
/// | 6 | index of a map | offset in its only value | 2, with the descriptor of that map |
///
/// Kernels since 5.14 know 5 and 6, too; older ones only what they become here.
///
/// # Errors
/// If the code refers to a map that is not there; it is then half done.
pub fn resolve_maps(code: &mut [u64], maps: &[&Map]) -> Result<(), ReferenceError> {
    let mut at = 0;
    while at < code.len() {
        let mut bytes = code[at].to_le_bytes();
        if bytes[0] != LOAD_IMM64 {
            at += 1;
            continue;
        }
        if at + 1 == code.len() {
            return Err(ReferenceError::Truncated { at });
        }
        let by_descriptor = match bytes[1] >> 4 {
            MAP_INDEX => Some(MAP_FD),
            MAP_INDEX_VALUE => Some(MAP_FD_VALUE),
            _ => None,
        };
        if let Some(source) = by_descriptor {
            let index = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            let map = maps.get(index as usize).ok_or(ReferenceError::Map { at, index, maps: maps.len() })?;
            bytes[1] = bytes[1] & 0xf | source << 4;
            bytes[4..].copy_from_slice(&map.as_raw_fd().to_le_bytes());
            code[at] = u64::from_le_bytes(bytes);
        }
        at += 2;
    }
    Ok(())
}
