//! Which functions cannot be watched by a replaced return address: those that look at it
//! themselves. `vfork` takes it off the stack, `setjmp` stores it for a second return, `dlsym`
//! finds its caller by it. And what the others drop when they return.

use sidestep_isa::stack::Stack;
use sidestep_isa::{Flow, Isa, Reader, Va};
use sidestep_wire::private::MAX_DROPPED;

use crate::reason::NoReplacedReturn;

/// How many tail calls are followed: `_setjmp` is `xor %esi,%esi; jmp __sigsetjmp`.
const TAIL_CALLS: usize = 4;

/// How many bytes of arguments the function at `entry` takes off the stack when it returns, or why
/// its returns cannot be watched: as far as it, or one that it tail-calls directly, says. `text`
/// gives the code around an address: its start, and its bytes.
///
/// A function that is tail-called drops what its caller would (their caller expects it). So where
/// no return is seen, as all of them are behind a pointer, this is 0, and the agent has to look for
/// the entry.
pub(crate) fn watched<'a>(
    isa: Isa,
    text: &impl Fn(Va) -> Option<(Va, &'a [u8])>,
    entry: Va,
) -> Result<u16, NoReplacedReturn> {
    if !isa.limits().return_on_stack {
        return Err(NoReplacedReturn::InRegister);
    }
    let mut todo = vec![entry];
    let mut done = Vec::new();
    let mut drops = None;
    while let Some(entry) = todo.pop() {
        if done.len() > TAIL_CALLS || done.contains(&entry) {
            continue;
        }
        done.push(entry);
        let Some((start, code)) = text(entry) else { continue };
        match walk(isa, code, start, entry) {
            Walk::Names(_) => return Err(NoReplacedReturn::LooksAtReturnAddress),
            Walk::Leaves { returns, tail_calls } => {
                for dropped in returns {
                    if *drops.get_or_insert(dropped) != dropped {
                        return Err(NoReplacedReturn::DropsDiffer);
                    }
                }
                todo.extend(tail_calls);
            }
        }
    }
    match drops.unwrap_or(0) {
        0 => Ok(0),
        // Not what compilers make: no trampoline is prepared for it.
        _ if !isa.limits().drops_arguments => Err(NoReplacedReturn::DropsArguments),
        dropped if u64::from(dropped) > MAX_DROPPED => Err(NoReplacedReturn::DropsTooMany),
        dropped => Ok(dropped),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Walk {
    /// This instruction names the slot.
    Names(Va),
    /// None does.
    Leaves {
        /// What each return drops besides its address, in bytes.
        returns: Vec<u16>,
        /// Where the function goes with the stack as it was at its entry.
        tail_calls: Vec<Va>,
    },
}

/// All paths from `entry` within `code` (which starts at `start`), as far as the stack pointer is
/// known.
fn walk(isa: Isa, code: &[u8], start: Va, entry: Va) -> Walk {
    // By offset. Compiled code reaches an instruction with one depth only, so once is enough.
    let mut seen = vec![false; code.len()];
    let mut todo = vec![(entry, Stack::ENTRY)];
    let (mut returns, mut tail_calls) = (Vec::new(), Vec::new());
    let mut code = Reader::new(isa, code, start);
    while let Some((va, stack)) = todo.pop() {
        let Some(seen) = usize::try_from(va.since(start)).ok().and_then(|at| seen.get_mut(at)) else {
            if stack.is_as_at_entry() {
                tail_calls.push(va);
            }
            continue;
        };
        if std::mem::replace(seen, true) {
            continue;
        }
        let Ok(insn) = &code.at(va) else { continue };
        if stack.names_return_address(insn) {
            return Walk::Names(va);
        }
        returns.extend(insn.dropped_by_return());
        let after = stack.after(insn);
        match insn.flow() {
            Flow::Jump(to) => todo.push((to, after)),
            Flow::Branch(to) | Flow::Transaction(to) => todo.extend([(insn.next(), after), (to, after)]),
            _ if insn.falls_through() => todo.push((insn.next(), after)),
            _ => {}
        }
    }
    Walk::Leaves { returns, tail_calls }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(code: &[u8]) -> Option<u64> {
        match walk(Isa::X64, code, Va(0x1000), Va(0x1000)) {
            Walk::Names(va) => Some(va.0),
            Walk::Leaves { .. } => None,
        }
    }

    #[test]
    fn functions_that_take_or_store_their_return_address_are_found() {
        // pop %rdi; mov $58,%eax; syscall; push %rdi; ret (vfork)
        assert_eq!(names(&[0x5f, 0xb8, 58, 0, 0, 0, 0x0f, 0x05, 0x57, 0xc3]), Some(0x1000));
        // mov %rbx,(%rdi); mov (%rsp),%rax; ret (setjmp)
        assert_eq!(names(&[0x48, 0x89, 0x1f, 0x48, 0x8b, 0x04, 0x24, 0xc3]), Some(0x1003));
        // push %rbp; mov %rsp,%rbp; sub $16,%rsp; mov 8(%rbp),%rax; leave; ret
        // (__builtin_return_address)
        let framed = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0x48, 0x8b, 0x45, 0x08, 0xc9, 0xc3];
        assert_eq!(names(&framed), Some(0x1008));
        // sub $24,%rsp; je +5; mov 24(%rsp),%rsi; add $24,%rsp; ret
        let branched = [0x48, 0x83, 0xec, 0x18, 0x74, 0x05, 0x48, 0x8b, 0x74, 0x24, 0x18, 0x48, 0x83, 0xc4, 0x18, 0xc3];
        assert_eq!(names(&branched), Some(0x1006));
    }

    #[test]
    fn stack_arguments_and_locals_are_no_return_address() {
        // push %rbx; mov 16(%rsp),%rbx; lea 16(%rsp),%rax; call +0; pop %rbx; ret
        let plain = [0x53, 0x48, 0x8b, 0x5c, 0x24, 0x10, 0x48, 0x8d, 0x44, 0x24, 0x10, 0xe8, 0, 0, 0, 0, 0x5b, 0xc3];
        assert_eq!(names(&plain), None);
        // push %rbp; mov %rsp,%rbp; mov 16(%rbp),%rax; pop %rbp; ret
        assert_eq!(names(&[0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x45, 0x10, 0x5d, 0xc3]), None);
    }

    #[test]
    fn a_tail_call_hands_the_return_address_on() {
        // xor %esi,%esi; jmp +0x10; … at 0x1017: mov (%rsp),%rax; ret
        let first: &[u8] = &[0x31, 0xf6, 0xe9, 0x10, 0, 0, 0];
        let second: &[u8] = &[0x48, 0x8b, 0x04, 0x24, 0xc3];
        let text = |va: Va| match va.0 {
            0x1000 => Some((Va(0x1000), first)),
            0x1017 => Some((Va(0x1017), second)),
            _ => None,
        };
        assert!(watched(Isa::X64, &text, Va(0x1000)).is_err());
        // With a frame of its own the call is no tail call of the same stack.
        let framed: &[u8] = &[0x53, 0xe9, 0x10, 0, 0, 0];
        let text = |va: Va| if va.0 == 0x1000 { Some((va, framed)) } else { Some((va, second)) };
        assert_eq!(watched(Isa::X64, &text, Va(0x1000)), Ok(0));
    }

    #[test]
    fn what_returns_drop_is_what_those_of_tail_calls_drop() {
        // jmp +0x10; … at 0x1015: je +3; ret $4; ret $4
        let first: &[u8] = &[0xe9, 0x10, 0, 0, 0];
        let second: &[u8] = &[0x74, 3, 0xc2, 4, 0, 0xc2, 4, 0];
        let text = |va: Va| if va.0 == 0x1000 { Some((va, first)) } else { Some((va, second)) };
        assert_eq!(watched(Isa::X86, &text, Va(0x1000)), Ok(4));
        assert!(watched(Isa::X64, &text, Va(0x1000)).is_err());
        // je +3; ret $4; ret
        let text = |va: Va| Some((va, &[0x74, 3, 0xc2, 4, 0, 0xc3][..]));
        assert!(watched(Isa::X86, &text, Va(0x1000)).is_err());
        // ret $0x1000
        assert!(watched(Isa::X86, &|va: Va| Some((va, &[0xc2, 0, 0x10][..])), Va(0x1000)).is_err());
    }

    #[test]
    fn in_32_bit_code_too() {
        let walk = |code: &[u8]| walk(Isa::X86, code, Va(0x1000), Va(0x1000));
        // mov (%esp),%eax; ret (a pc thunk), and the same through a frame pointer
        assert_eq!(walk(&[0x8b, 0x04, 0x24, 0xc3]), Walk::Names(Va(0x1000)));
        assert_eq!(walk(&[0x55, 0x89, 0xe5, 0x8b, 0x45, 4, 0xc9, 0xc3]), Walk::Names(Va(0x1003)));
        // push %ebp; mov %esp,%ebp; sub $16,%esp; mov 8(%ebp),%eax; leave; ret
        let framed = [0x55, 0x89, 0xe5, 0x83, 0xec, 0x10, 0x8b, 0x45, 8, 0xc9];
        let leaves = |returns, tail_calls| Walk::Leaves { returns, tail_calls };
        assert_eq!(walk(&[&framed[..], &[0xc3]].concat()), leaves(vec![0], vec![]));
        assert_eq!(walk(&[&framed[..], &[0xc2, 4, 0]].concat()), leaves(vec![4], vec![]));
        // call +0; pop %eax; ret, and the same with a second pop
        assert_eq!(walk(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]), leaves(vec![0], vec![]));
        assert_eq!(walk(&[0xe8, 0, 0, 0, 0, 0x58, 0x59, 0xc3]), Walk::Names(Va(0x1006)));
        // sub $0x180,%esp; mov 0x184(%esp),%eax; add $0x180,%esp; jmp 0x2000
        let tail = [
            0x81, 0xec, 0x80, 1, 0, 0, 0x8b, 0x84, 0x24, 0x84, 1, 0, 0, 0x81, 0xc4, 0x80, 1, 0, 0, 0xe9, 0xe8, 0x0f, 0,
            0,
        ];
        assert_eq!(walk(&tail), leaves(vec![], vec![Va(0x2000)]));
    }
}
