//! The shared code of 32-bit slabs.
//!
//! There is one thunk for all sites: no red zone has to be stepped over, and all general-purpose
//! registers are put back. It calls `agent_hit`, which runs the program. Functions have the C ABI
//! (cdecl): arguments are on the stack, which is 16-aligned at the call. Words of [`Hit`] have 64
//! bits here, too; the upper halves of registers are 0.
//!
//! ```text
//!   high   probe                   pushed by the detour
//!          return into the detour  pushed by its call (trampoline: the real return address)
//!          eax, flags              while the frame is made
//!   low    xmm registers that the agent's code uses, 16-aligned
//!          wire::Hit               registers as in struct pt_regs
//!          flags                   lahf/seto form
//!          where it began          address of the return into the detour
//!          arguments of calls                             <- ebx, esp
//! ```
//!
//! Below the stack pointer a signal handler may write: the last instruction that reads the frame
//! sets the stack pointer.

use std::mem::offset_of;

use sidestep_bpf::pass::Addition;
use sidestep_isa::x86::emit::{Asm, Cond, Label, Reg};
use sidestep_isa::{Isa, Va};
use sidestep_wire::ProbeDesc;
use sidestep_wire::arch::x86::{Hit, Regs, TRAMPOLINE_MARK};
use sidestep_wire::lookup::HASH_MULTIPLIER;
use sidestep_wire::private::MAX_DROPPED;

use super::frame::numbers;
use super::{ENTRY_SHIFT, ENTRY_STATE, head};
use crate::codegen::thunk::{Env, Globals, Places, Program, SyscallEntry, Thunks};
use crate::codegen::x86::detour::Inlined;

/// From ebx: room for the arguments of calls.
const ARGUMENTS: i32 = 32;
/// From ebx: where the stack pointer was at the thunk's start.
const BEGAN: i32 = ARGUMENTS;
/// From ebx: the flags.
const FLAGS: i32 = BEGAN + 4;
/// From ebx: the hit.
const HIT: i32 = FLAGS + 4;
/// From ebx: the context.
const REGS: i32 = HIT + offset_of!(Hit, regs) as i32;
/// From ebx: the xmm registers.
const XMM: i32 = (HIT + size_of::<Hit>() as i32 + 15) & !15;

const _: () = assert!(HIT % 8 == 0);

/// Selectors of 32-bit programs (`arch/x86/include/asm/segment.h`).
const USER32_CS: i32 = 0x23;
const USER_DS: i32 = 0x2b;

/// The registers that are saved from themselves.
const DIRECT: [(Reg, i32); 6] = [
    (Reg::Rbx, REGS + offset_of!(Regs, rbx) as i32),
    (Reg::Rcx, REGS + offset_of!(Regs, rcx) as i32),
    (Reg::Rdx, REGS + offset_of!(Regs, rdx) as i32),
    (Reg::Rsi, REGS + offset_of!(Regs, rsi) as i32),
    (Reg::Rdi, REGS + offset_of!(Regs, rdi) as i32),
    (Reg::Rbp, REGS + offset_of!(Regs, rbp) as i32),
];
const RAX: i32 = REGS + offset_of!(Regs, rax) as i32;
const RSP: i32 = REGS + offset_of!(Regs, rsp) as i32;
const RIP: i32 = REGS + offset_of!(Regs, rip) as i32;
const OVERRIDDEN: i32 = HIT + offset_of!(Hit, overridden) as i32;

/// Saves registers as drawn above. `above_sp`: how far above the stack pointer at the start the
/// site's stack pointer lies.
fn save(asm: &mut Asm, env: &Env, above_sp: i32) {
    let xmm = numbers(env.agent_vectors);
    asm.push(Reg::Rax);
    asm.flags_to_ax();
    asm.push(Reg::Rax);
    asm.lea(Reg::Rax, Reg::Rsp, 8);
    if env.context.has_flags(env.isa) {
        asm.pushf();
    }
    asm.lea(Reg::Rsp, Reg::Rsp, -(XMM + 16 * xmm.len() as i32));
    asm.and_imm8(Reg::Rsp, -16);
    asm.store(Reg::Rsp, BEGAN, Reg::Rax);
    for (reg, at) in DIRECT {
        asm.store(Reg::Rsp, at, reg);
    }
    asm.mov(Reg::Rbx, Reg::Rsp);
    asm.load(Reg::Rcx, Reg::Rax, -4);
    asm.store(Reg::Rbx, RAX, Reg::Rcx);
    asm.load(Reg::Rcx, Reg::Rax, -8);
    asm.store(Reg::Rbx, FLAGS, Reg::Rcx);
    if env.context.has_flags(env.isa) {
        asm.load(Reg::Rcx, Reg::Rax, -12);
        asm.store(Reg::Rbx, REGS + offset_of!(Regs, eflags) as i32, Reg::Rcx);
    }
    asm.lea(Reg::Rcx, Reg::Rax, above_sp);
    asm.store(Reg::Rbx, RSP, Reg::Rcx);
    asm.store_imm(Reg::Rbx, REGS + offset_of!(Regs, orig_rax) as i32, -1);
    asm.store_imm(Reg::Rbx, REGS + offset_of!(Regs, cs) as i32, USER32_CS);
    asm.store_imm(Reg::Rbx, REGS + offset_of!(Regs, ss) as i32, USER_DS);
    asm.clear(Reg::Rcx);
    let filled = [RAX, RSP, RIP].into_iter().chain(DIRECT.map(|(_, at)| at));
    let fields = [offset_of!(Regs, orig_rax), offset_of!(Regs, cs), offset_of!(Regs, ss), offset_of!(Regs, eflags)];
    for at in filled.chain(fields.map(|at| REGS + at as i32)) {
        asm.store(Reg::Rbx, at + 4, Reg::Rcx);
    }
    // What 32-bit programs do not have reads as 0.
    let absent = [
        offset_of!(Regs, r8),
        offset_of!(Regs, r9),
        offset_of!(Regs, r10),
        offset_of!(Regs, r11),
        offset_of!(Regs, r12),
        offset_of!(Regs, r13),
        offset_of!(Regs, r14),
        offset_of!(Regs, r15),
    ];
    for at in absent.into_iter().filter(|at| env.context.has(*at)) {
        asm.store(Reg::Rbx, REGS + at as i32, Reg::Rcx);
        asm.store(Reg::Rbx, REGS + at as i32 + 4, Reg::Rcx);
    }
    for (i, at) in (0..8).zip((Hit::FLOATS..).step_by(8)).filter(|(_, at)| env.context.has(*at)) {
        asm.store_xmm_low(REGS + at as i32, i);
    }
    for (i, x) in xmm.iter().enumerate() {
        asm.store_xmm(XMM + 16 * i as i32, *x);
    }
}

/// Undoes [`save`]; `ebx` is the frame. What the called code changed of the context is in the
/// registers then.
fn restore(asm: &mut Asm, env: &Env) {
    for (i, x) in numbers(env.agent_vectors).iter().enumerate() {
        asm.load_xmm(XMM + 16 * i as i32, *x);
    }
    asm.load(Reg::Rax, Reg::Rbx, FLAGS);
    asm.ax_to_flags();
    asm.load(Reg::Rax, Reg::Rbx, RAX);
    for (reg, at) in DIRECT {
        asm.load(reg, Reg::Rsp, at);
    }
    asm.load(Reg::Rsp, Reg::Rsp, BEGAN);
}

/// `edx` = distance of this thread's bucket from the first, `ecx` = thread pointer. Changes `eax`.
fn find_bucket(asm: &mut Asm, env: &Env) {
    asm.thread_pointer_32(Reg::Rcx, env.self_pointer);
    // The hash is the upper half of the product (`wire::lookup`).
    asm.mov_imm32(Reg::Rax, HASH_MULTIPLIER);
    asm.mul(Reg::Rcx);
    asm.and32(Reg::Rdx, (env.bucket_count - 1) as i32);
    asm.shl(Reg::Rdx, ENTRY_SHIFT);
}

/// Adds to cells of this thread, where it has some. Else goes to `slow`. Changes `eax`, `ecx`,
/// `edx` and the flags.
pub(crate) fn count(asm: &mut Asm, env: &Env, additions: &[Addition], slow: Label) {
    find_bucket(asm, env);
    asm.cmp_mem(Reg::Rdx, env.bucket_disp(), Reg::Rcx);
    asm.jcc(Cond::Ne, slow);
    asm.load(Reg::Rcx, Reg::Rdx, env.cells_disp());
    asm.test(Reg::Rcx);
    asm.jcc(Cond::E, slow);
    for Addition { offset, value } in additions {
        asm.add_to_64(Reg::Rcx, *offset as i32, *value);
    }
}

/// Stores the state of this thread, or 0, as an argument.
fn find_state(asm: &mut Asm, env: &Env, argument: i32) {
    let (slow, found, done) = (asm.label(), asm.label(), asm.label());
    find_bucket(asm, env);
    asm.cmp_mem(Reg::Rdx, env.bucket_disp(), Reg::Rcx);
    asm.jcc(Cond::Ne, slow);
    asm.lea(Reg::Rax, Reg::Rdx, env.bucket_disp());
    asm.load(Reg::Rdx, Reg::Rdx, env.cells_disp());
    asm.test(Reg::Rdx);
    asm.jcc(Cond::Ne, found);
    asm.bind(slow);
    asm.store_imm(Reg::Rsp, 0, env.private.0 as i32);
    asm.store(Reg::Rsp, 4, Reg::Rcx);
    asm.store_imm(Reg::Rsp, 8, 0);
    asm.call_any(env.agent_slot);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, done);
    asm.bind(found);
    asm.load(Reg::Rax, Reg::Rax, ENTRY_STATE);
    asm.bind(done);
    asm.store(Reg::Rsp, argument, Reg::Rax);
}

/// `ecx` = address of the probed instruction. Changes `edx`.
fn load_site(asm: &mut Asm, env: &Env) {
    asm.load(Reg::Rdx, Reg::Rbx, BEGAN);
    asm.load(Reg::Rcx, Reg::Rdx, 4);
    asm.imul_imm(Reg::Rcx, Reg::Rcx, size_of::<ProbeDesc>() as i32);
    asm.load(Reg::Rcx, Reg::Rcx, (env.descs.0 + offset_of!(ProbeDesc, site) as u64) as i32);
}

fn hit(asm: &mut Asm, env: &Env) {
    // stack: return, probe
    save(asm, env, 8);
    asm.store_imm(Reg::Rbx, OVERRIDDEN, 0);
    let ip = env.context.has_ip(env.isa) || env.changes.has_ip(env.isa);
    if ip {
        load_site(asm, env);
        asm.store(Reg::Rbx, RIP, Reg::Rcx);
    }
    find_state(asm, env, 4);
    asm.lea(Reg::Rcx, Reg::Rbx, REGS);
    asm.store(Reg::Rsp, 0, Reg::Rcx);
    asm.store_imm(Reg::Rsp, 8, env.private.0 as i32);
    asm.load(Reg::Rcx, Reg::Rbx, BEGAN);
    asm.load(Reg::Rcx, Reg::Rcx, 4);
    asm.store(Reg::Rsp, 12, Reg::Rcx);
    asm.call_any(env.agent_hit);

    if env.changes.has_ip(env.isa) {
        let normal = asm.label();
        load_site(asm, env);
        asm.cmp_mem(Reg::Rbx, RIP, Reg::Rcx);
        asm.jcc(Cond::E, normal);
        // It goes on elsewhere, with the site's stack: the thunk's return leads there.
        asm.load(Reg::Rcx, Reg::Rbx, RIP);
        asm.load(Reg::Rdx, Reg::Rbx, BEGAN);
        asm.store(Reg::Rdx, 0, Reg::Rcx);
        restore(asm, env);
        asm.ret_drop(4);
        asm.bind(normal);
    }
    let normal = asm.label();
    asm.cmp_imm8(Reg::Rbx, OVERRIDDEN, 0);
    asm.jcc(Cond::E, normal);
    restore(asm, env);
    // The thunk's return and the probe are dropped; the site is the start of a function, so this
    // returns from it.
    asm.lea(Reg::Rsp, Reg::Rsp, 8);
    asm.ret();
    asm.bind(normal);
    restore(asm, env);
    asm.ret();
    asm.align(16);
}

/// The shared code at the start of a slab. All handlers share one thunk; functions whose returns
/// are watched are not called by the code in front of the trampoline, which needs a red zone.
pub(crate) fn thunks(at: Va, env: &Env, enter: Va, programs: &[Option<Program>]) -> (Vec<u8>, Thunks) {
    let mut asm = Asm::of(Isa::X86, at);
    hit(&mut asm, env);
    let one = Places { entry: at, bare: at, inside: at, exit: at };
    let programs = vec![Some(one); programs.len()];
    (asm.finish(), Thunks { agent: one, returns: one, enter, programs, ends: Vec::new(), inlined: Inlined::default() })
}

/// The process-wide code.
pub(crate) fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    let mut asm = Asm::of(Isa::X86, at);
    asm.raw(&head(env));
    let enter = asm.here();
    let trampoline = asm.here();
    asm.raw(&TRAMPOLINE_MARK);
    // The word below the stack pointer becomes the real return address. The slot of the old one is
    // further below, if the function has taken arguments off the stack; the agent uses it, so all
    // up to there is kept.
    asm.lea(Reg::Rsp, Reg::Rsp, -(MAX_DROPPED as i32) - 4);
    save(&mut asm, env, MAX_DROPPED as i32 + 4);
    find_state(&mut asm, env, 4);
    asm.lea(Reg::Rcx, Reg::Rbx, REGS);
    asm.store(Reg::Rsp, 0, Reg::Rcx);
    asm.store_imm(Reg::Rsp, 8, env.private.0 as i32);
    asm.call_any(env.agent_return);
    asm.load(Reg::Rcx, Reg::Rbx, BEGAN);
    asm.store(Reg::Rcx, MAX_DROPPED as i32, Reg::Rax);
    restore(&mut asm, env);
    asm.lea(Reg::Rsp, Reg::Rsp, MAX_DROPPED as i32);
    asm.ret();
    asm.align(16);

    // The kernel calls this with (sig, info, context) on the stack and, for handlers that were
    // compiled so, in eax, edx, ecx (arch/x86/kernel/signal_32.c). The program's own handler gets
    // all as the kernel has made it.
    let signal = asm.here();
    let done = asm.label();
    // As a function finds it, the stack is 4 below a multiple of 16.
    asm.lea(Reg::Rsp, Reg::Rsp, -28);
    for word in 0..3 {
        asm.load(Reg::Rcx, Reg::Rsp, 28 + 4 + 4 * word);
        asm.store(Reg::Rsp, 4 + 4 * word, Reg::Rcx);
    }
    asm.store_imm(Reg::Rsp, 0, env.private.0 as i32);
    asm.call_any(env.agent_signal);
    asm.lea(Reg::Rsp, Reg::Rsp, 28);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, done);
    asm.push(Reg::Rax);
    asm.load(Reg::Rax, Reg::Rsp, 8);
    asm.load(Reg::Rdx, Reg::Rsp, 12);
    asm.load(Reg::Rcx, Reg::Rsp, 16);
    asm.ret();
    asm.bind(done);
    // Not through the vDSO, where handlers of the program return: they are led to copies there.
    asm.lea(Reg::Rsp, Reg::Rsp, 4);
    let restorer = asm.here();
    return_from_signal(&mut asm, env.syscall_entry);
    asm.align(16);
    (asm.finish(), Globals { enter, trampoline, signal, restorer })
}

/// `rt_sigreturn`, with the stack pointer behind the restorer's address. The fast entries come back
/// in the vDSO, but this call goes on where the frame says.
fn return_from_signal(asm: &mut Asm, entry: SyscallEntry) {
    asm.raw(&[0xb8, 173, 0, 0, 0]); // mov $173, %eax
    asm.raw(match entry {
        SyscallEntry::Interrupt => &[0xcd, 0x80],            // int $0x80
        SyscallEntry::Sysenter => &[0x89, 0xe5, 0x0f, 0x34], // mov %esp, %ebp; sysenter
        SyscallEntry::Syscall => &[0x0f, 0x05],              // syscall
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_handler_returns_by_the_instruction_of_the_vdso() {
        for (entry, call) in [
            (SyscallEntry::Interrupt, &[0xcd, 0x80][..]),
            (SyscallEntry::Sysenter, &[0x89, 0xe5, 0x0f, 0x34]),
            (SyscallEntry::Syscall, &[0x0f, 0x05]),
        ] {
            let (code, globals) =
                globals(Va(0x1000), &Env { syscall_entry: entry, hash_shift: 32, bucket_count: 1, ..Env::default() });
            let at = globals.restorer.since(Va(0x1000)) as usize;
            assert!(code[at..].starts_with(&[&[0xb8, 173, 0, 0, 0], call].concat()), "{entry:?}: {code:x?}");
        }
    }
}
