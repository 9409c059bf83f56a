//! The plan of a guard in front of a system call.

use sidestep_isa::{INSN_MAX, Va, decode};

use crate::analysis::index::Index;
use crate::analysis::syscalls::SyscallSite;
use crate::object::ObjectCode;
use crate::policy::plan::{DisplacedInsn, Plan, Technique};
use crate::policy::strategy::plan;
use crate::reason::Reason;

/// The plan of a guard: all from the `mov` on, or from an instruction behind it, is displaced, and
/// the handler runs right before the `syscall`. `None`: no jump is possible there; `Some(Err)`:
/// nothing at all, because it is no instruction of the program.
#[must_use]
pub fn guard(index: &Index<'_>, site: SyscallSite) -> Option<Result<Plan, Reason>> {
    let mut at = site.mov;
    while at < site.syscall {
        match plan(index, at, false) {
            Ok(plan) if plan.technique != Technique::Trap => {
                return guard_at(index.code(), plan, site.syscall).map(Ok);
            }
            Err(refusal) if at == site.mov => return Some(Err(refusal.reason)),
            _ => at = index.code().insn_at(at)?.next(),
        }
    }
    None
}

/// The plan of a guard where a probe with this plan is: in front of the system call, from which a
/// straight line leads to that.
#[must_use]
pub fn guard_at(code: &ObjectCode<'_>, mut plan: Plan, syscall: Va) -> Option<Plan> {
    if let Some(at) = plan.displaced.iter().position(|insn| insn.va == syscall) {
        plan.before_handler = at;
        return Some(plan);
    }
    let mut at = plan.resume?;
    while at < syscall {
        let bytes = code.bytes_at(at)?;
        let insn = decode(code.isa, bytes, at).ok()?;
        let mut displaced = DisplacedInsn { va: at, bytes: [0; INSN_MAX], len: insn.len() as u8 };
        displaced.bytes[..insn.len()].copy_from_slice(&bytes[..insn.len()]);
        plan.displaced.push(displaced);
        at = insn.next();
    }
    plan.before_handler = plan.displaced.len();
    plan.resume = Some(at);
    (at == syscall).then_some(plan)
}

#[cfg(test)]
mod tests {
    use sidestep_isa::{Isa, Len};

    use super::*;
    use crate::analysis::syscalls::find;
    use crate::codegen::detour::build;
    use crate::codegen::handler::Handler;
    use crate::codegen::thunk::{Env, thunks};
    use crate::object::{Bytes, Extent, ObjectCode};

    fn found(text: &[u8]) -> Vec<SyscallSite> {
        find(Isa::X64, &[Bytes { name: ".text", va: Va(0x1000), data: text }], &[14, 441])
    }

    #[test]
    fn the_number_may_be_set_some_instructions_before() {
        // mov $14,%eax; mov %rsi,%rdi; syscall; ret; mov $441,%eax; syscall
        let text = [0xb8, 14, 0, 0, 0, 0x48, 0x89, 0xf7, 0x0f, 0x05, 0xc3, 0xb8, 0xb9, 1, 0, 0, 0x0f, 0x05];
        assert_eq!(
            found(&text),
            [
                SyscallSite { mov: Va(0x1000), syscall: Va(0x1008), number: Some(14) },
                SyscallSite { mov: Va(0x100b), syscall: Va(0x1010), number: Some(441) },
            ]
        );
    }

    /// `mov $14,%r8d` is none. But what comes before `mov $14,%eax` may end like the prefix of
    /// that.
    #[test]
    fn calls_behind_bytes_that_look_like_a_prefix_had_no_guard() {
        let guarded = |text: &[u8]| {
            let index = Index::new(ObjectCode {
                text: vec![Bytes { name: ".text", va: Va(0x1000), data: text }],
                extents: vec![Extent { start: Va(0x1000), len: Len(text.len() as u64) }],
                ..ObjectCode::new(Isa::X64)
            });
            found(text).iter().any(|site| guard(&index, *site).is_some_and(|guard| guard.is_ok()))
        };
        assert!(!guarded(&[0x41, 0xb8, 14, 0, 0, 0, 0x0f, 0x05, 0xc3]));
        // mov 0x41(%rsi),%edx; mov $14,%eax; syscall; ret
        assert!(guarded(&[0x8b, 0x56, 0x41, 0xb8, 14, 0, 0, 0, 0x0f, 0x05, 0xc3]));
    }

    #[test]
    fn the_number_may_be_in_a_part_of_the_register_or_on_the_stack() {
        // xor %eax,%eax; mov $14,%al; mov %rdi,%r11; syscall; mov 8(%rsp),%rax; pop %r12; syscall
        let text =
            [0x31, 0xc0, 0xb0, 14, 0x49, 0x89, 0xfb, 0x0f, 0x05, 0x48, 0x8b, 0x44, 0x24, 8, 0x41, 0x5c, 0x0f, 0x05];
        let site = |mov, syscall, number| SyscallSite { mov: Va(mov), syscall: Va(syscall), number };
        assert_eq!(found(&text), [site(0x1000, 0x1007, Some(14)), site(0x1009, 0x1010, None)]);
    }

    #[test]
    fn the_number_may_come_from_a_register() {
        // mov %r15d,%eax; syscall
        let text = [0x44, 0x89, 0xf8, 0x0f, 0x05];
        // Or `mov %edi,%eax`, if the first byte is the end of something else.
        let site = |mov| SyscallSite { mov: Va(mov), syscall: Va(0x1003), number: None };
        assert_eq!(found(&text), [site(0x1000), site(0x1001)]);
    }

    #[test]
    fn calls_of_32_bit_code_are_found() {
        // mov $174,%eax; mov $8,%esi; call *%gs:0x10; mov $174,%eax; int $0x80; mov
        // 0x14(%esp),%eax; call *%gs:0x10; ret
        let text = [
            0xb8, 174, 0, 0, 0, 0xbe, 8, 0, 0, 0, 0x65, 0xff, 0x15, 0x10, 0, 0, 0, 0xb8, 174, 0, 0, 0, 0xcd, 0x80,
            0x8b, 0x44, 0x24, 0x14, 0x65, 0xff, 0x15, 0x10, 0, 0, 0, 0xc3,
        ];
        let bytes = [Bytes { name: ".text", va: Va(0x1000), data: &text }];
        let site = |mov, syscall, number| SyscallSite { mov: Va(mov), syscall: Va(syscall), number };
        let found = find(Isa::X86, &bytes, &[174]);
        assert_eq!(
            found,
            [site(0x1000, 0x100a, Some(174)), site(0x1011, 0x1016, Some(174)), site(0x1018, 0x101c, None)]
        );
        let index = Index::new(ObjectCode {
            text: bytes.to_vec(),
            extents: vec![Extent { start: Va(0x1000), len: Len(text.len() as u64) }],
            ..ObjectCode::new(Isa::X86)
        });
        let plan = guard(&index, found[0]).unwrap().unwrap();
        assert_eq!((plan.displaced.len(), plan.before_handler, plan.resume), (2, 2, Some(Va(0x100a))));
    }

    /// Of `pselect` and `epoll_pwait`: a signal that came while they waited found ours blocked.
    #[test]
    fn calls_of_six_arguments_in_32_bit_code_were_not_seen() {
        // push %ebp; mov 8(%edi),%ebp; mov 4(%edi),%edi; call *%gs:0x10; the same with (%edi)
        let text = [
            0x55, 0x8b, 0x6f, 8, 0x8b, 0x7f, 4, 0x65, 0xff, 0x15, 0x10, 0, 0, 0, 0x8b, 0x6f, 4, 0x8b, 0x3f, 0x65, 0xff,
            0x15, 0x10, 0, 0, 0, 0xc3,
        ];
        let found = find(Isa::X86, &[Bytes { name: ".text", va: Va(0x1000), data: &text }], &[308]);
        let site = |mov, syscall| SyscallSite { mov: Va(mov), syscall: Va(syscall), number: None };
        assert_eq!(found, [site(0x1001, 0x1007), site(0x100e, 0x1013)]);
    }

    #[test]
    fn the_handler_of_a_guard_runs_when_all_registers_are_set() {
        // mov $14,%eax; mov %rsi,%rdi; syscall; ret
        let text = [0xb8, 14, 0, 0, 0, 0x48, 0x89, 0xf7, 0x0f, 0x05, 0xc3];
        let index = Index::new(ObjectCode {
            text: vec![Bytes { name: ".text", va: Va(0x1000), data: &text }],
            extents: vec![Extent { start: Va(0x1000), len: Len(text.len() as u64) }],
            ..ObjectCode::new(Isa::X64)
        });
        let site = find(Isa::X64, &index.code().text, &[14])[0];
        let mut plan = guard(&index, site).unwrap().unwrap();
        assert_eq!((plan.displaced.len(), plan.before_handler, plan.resume), (2, 2, Some(Va(0x1008))));

        // A thread that stands at the call is led to the guard, one instruction before it to the
        // copy of that.
        let before = std::mem::take(&mut plan.before_handler);
        let env = Env { hash_shift: 32, bucket_count: 1, ..Env::default() };
        let at = Va(0x2000);
        let thunks = thunks(Va(0x3000), &env, Va(0x9000), &[], &[], None).1;
        let detour = build(&plan, &[Handler::Guard { probe: 1, before }], at, 0, &thunks, &env).unwrap();
        assert_eq!((&detour.guards[..], &detour.copies[..2]), (&[(8, 8)][..], &[(0, 0), (5, 5)][..]));
        assert_eq!(detour.bytes[8..13], [0x48, 0x8d, 0x64, 0x24, 0x80], "lea -128(%rsp),%rsp");
    }

    #[test]
    fn another_register_a_jump_or_a_new_number_is_no_call() {
        assert_eq!(found(&[0xb8, 14, 0, 0, 0, 0xeb, 0, 0x0f, 0x05]), []); // jmp
        assert_eq!(found(&[0xb8, 14, 0, 0, 0, 0x31, 0xc0, 0x0f, 0x05]), []); // xor %eax,%eax
        assert_eq!(found(&[0xb8, 15, 0, 0, 0, 0x0f, 0x05]), []);
    }
}
