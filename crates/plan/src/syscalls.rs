//! Places in code that make a given system call: `mov $NUMBER,%eax`, then `syscall`, with nothing in between that changes
//! the number or leaves the straight line. Compilers and C libraries write it so; the `mov` has just the five bytes of a
//! jump.

use sidestep_isa::Va;
use sidestep_isa::x86::emit::Reg;
use sidestep_isa::x86::{Flow, decode};

use crate::object::ObjectCode;

/// Most instructions between the number and the call.
const WINDOW: usize = 12;

/// A place that makes a system call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyscallSite {
    /// Link-time address of the `mov $NUMBER,%eax`.
    pub mov: Va,
    /// Link-time address of the `syscall`.
    pub syscall: Va,
    /// The number.
    pub number: u32,
}

/// All places in an object that make one of these calls.
#[must_use]
pub fn find(code: &ObjectCode<'_>, numbers: &[u32]) -> Vec<SyscallSite> {
    let mut sites = Vec::new();
    for section in &code.text {
        for (at, window) in section.data.windows(5).enumerate() {
            if window[0] != 0xb8 || window[2..] != [0, 0, 0] && window[3..] != [0, 0] {
                continue;
            }
            let number = u32::from_le_bytes([window[1], window[2], window[3], window[4]]);
            // `41 b8` moves to %r8d.
            let prefixed = at > 0 && section.data[at - 1] & 0xf0 == 0x40;
            if !numbers.contains(&number) || prefixed {
                continue;
            }
            let mov = Va(section.va.0 + at as u64);
            if let Some(syscall) = call_behind(&section.data[at + 5..], Va(mov.0 + 5)) {
                sites.push(SyscallSite { mov, syscall, number });
            }
        }
    }
    sites
}

fn call_behind(mut bytes: &[u8], mut at: Va) -> Option<Va> {
    for _ in 0..WINDOW {
        let insn = decode(bytes, at).ok()?;
        match insn.flow() {
            Flow::Syscall => return (bytes.starts_with(&[0x0f, 0x05])).then_some(at),
            Flow::Next if insn.usage().writes & Reg::Rax.bit() == 0 => {}
            _ => return None,
        }
        bytes = &bytes[insn.len()..];
        at = insn.next();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Bytes;

    fn found(text: &[u8]) -> Vec<SyscallSite> {
        let code = ObjectCode {
            text: vec![Bytes { name: ".text", va: Va(0x1000), data: text }],
            ..ObjectCode::default()
        };
        find(&code, &[14, 441])
    }

    #[test]
    fn the_number_may_be_set_some_instructions_before() {
        // mov $14,%eax; mov %rsi,%rdi; syscall; ret; mov $441,%eax; syscall
        let text = [
            0xb8, 14, 0, 0, 0, 0x48, 0x89, 0xf7, 0x0f, 0x05, 0xc3, 0xb8, 0xb9, 1, 0, 0, 0x0f, 0x05,
        ];
        assert_eq!(
            found(&text),
            [
                SyscallSite { mov: Va(0x1000), syscall: Va(0x1008), number: 14 },
                SyscallSite { mov: Va(0x100b), syscall: Va(0x1010), number: 441 },
            ]
        );
    }

    #[test]
    fn another_register_a_jump_or_a_new_number_is_no_call() {
        assert_eq!(found(&[0x41, 0xb8, 14, 0, 0, 0, 0x0f, 0x05]), []); // mov $14,%r8d
        assert_eq!(found(&[0xb8, 14, 0, 0, 0, 0xeb, 0, 0x0f, 0x05]), []); // jmp
        assert_eq!(found(&[0xb8, 14, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x05]), []); // xor %eax,%eax
        assert_eq!(found(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05]), []);
    }
}
