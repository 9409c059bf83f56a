//! SIGTRAP: with the real signal, on the real processor.
#![cfg(target_arch = "x86_64")]

mod world;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use sidestep_agent::agent_signal;
use sidestep_isa::Isa;
use sidestep_isa::x86::emulate::{Op, prepare};
use sidestep_wire::{Flow, Private, ProbeDesc, SigAction, TrapEntry, TrapRecord};
use world::{Setup, World};

static PRIVATE: AtomicPtr<Private> = AtomicPtr::new(ptr::null_mut());

/// The engine's stub.
extern "C" fn stub(signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: set by `install`; the rest is the kernel's.
    let handler = unsafe { agent_signal(PRIVATE.load(Ordering::Acquire), signal, info, context, std::ptr::null_mut()) };
    if handler != 0 {
        // SAFETY: a handler of a test.
        let handler: extern "C" fn(i32, *mut u8, *mut u8) = unsafe { std::mem::transmute(handler as *const ()) };
        handler(signal, info, context);
    }
}

/// A process of its own for each test: dispositions belong to the whole process. Gives the wait
/// status.
fn in_child(body: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child runs the body and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: waits for that child.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status
}

/// Our handler before that of the program, a trap table with the given pairs.
fn install(traps: &[(u64, u64)], handler: u64, flags: u64, mask: u64) -> World {
    install_with(&Setup::default(), 0, traps, SigAction { handler, flags, restorer: 0, mask })
}

/// `stack`: flags of our action that say on which stack it runs.
fn install_with(setup: &Setup, stack: i32, traps: &[(u64, u64)], old: SigAction) -> World {
    let world = World::new(setup);
    let table_len = 16u64;
    let table = Box::leak(vec![TrapEntry::default(); table_len as usize].into_boxed_slice());
    for (site, detour) in traps {
        let mut index = TrapEntry::bucket(*site, table_len - 1);
        while table[index as usize].site != 0 {
            index = (index + 1) % table_len;
        }
        table[index as usize] = TrapEntry { site: *site, detour: *detour };
    }
    let head = world.head();
    head.trap_mask.store(table_len - 1, Ordering::Relaxed);
    head.traps.store(table.as_ptr() as u64, Ordering::Relaxed);
    // SAFETY: nobody else looks at it yet.
    unsafe {
        let signals = &mut (*world.private).signals;
        signals.ours.store(1 << (libc::SIGTRAP - 1), Ordering::Relaxed);
        signals.old[0] = old;
    }
    PRIVATE.store(world.private, Ordering::Release);
    // SAFETY: a handler that lives as long as the process.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = stub as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER | stack;
        assert_eq!(libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut()), 0);
    }
    world
}

/// A page of code, writable for the test's convenience.
fn code(bytes: &[u8]) -> u64 {
    let page = world::map(4096, libc::MAP_PRIVATE);
    // SAFETY: a fresh page.
    unsafe {
        ptr::copy_nonoverlapping(bytes.as_ptr(), page, bytes.len());
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert_eq!(libc::mprotect(page.cast(), 4096, all), 0);
    }
    page as u64
}

fn call(at: u64) -> i32 {
    // SAFETY: the tests write functions there.
    let function: extern "C" fn() -> i32 = unsafe { std::mem::transmute(at as *const ()) };
    function()
}

const INT3: u8 = 0xcc;
/// `mov $N, %eax; ret`
const fn answer(n: u8) -> [u8; 6] {
    [0xb8, n, 0, 0, 0, 0xc3]
}

fn assert_exit(status: i32, code: i32) {
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == code, "status {status:#x}");
}

fn assert_killed(status: i32) {
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGTRAP, "status {status:#x}");
}

#[test]
fn a_trap_goes_on_at_its_detour() {
    assert_exit(
        in_child(|| {
            let detours: Vec<u64> = (0..12).map(|n| code(&answer(n))).collect();
            let sites: Vec<u64> = (0..12).map(|_| code(&[INT3])).collect();
            let pairs: Vec<_> = sites.iter().copied().zip(detours).collect();
            install(&pairs, 0, 0, 0);
            sites.iter().enumerate().all(|(n, site)| call(*site) == n as i32).into()
        }),
        1,
    );
}

/// Takes the probe away, then lets the agent see the trap that was already under way.
extern "C" fn remove_first(signal: i32, info: *mut u8, context: *mut u8) {
    // SAFETY: the page of code of the test.
    unsafe { (SITE.load(Ordering::Relaxed) as *mut [u8; 6]).write(answer(9)) };
    stub(signal, info, context);
}

static SITE: AtomicU64 = AtomicU64::new(0);

#[test]
fn a_probe_removed_meanwhile_runs_what_is_there_now() {
    assert_exit(
        in_child(|| {
            let site = code(&[INT3]);
            SITE.store(site, Ordering::Relaxed);
            install(&[], 0, 0, 0);
            // SAFETY: a handler that lives as long as the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = remove_first as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
                libc::sigaction(libc::SIGTRAP, &action, ptr::null_mut());
            }
            call(site)
        }),
        9,
    );
}

#[test]
fn the_programs_own_breakpoint_kills_it_as_before() {
    assert_killed(in_child(|| {
        install(&[], libc::SIG_DFL as u64, 0, 0);
        call(code(&[INT3, 0xc3]))
    }));
    // The kernel does not let a breakpoint be ignored.
    assert_killed(in_child(|| {
        install(&[], libc::SIG_IGN as u64, 0, 0);
        call(code(&[INT3, 0xc3]))
    }));
    // Two bytes long: the one before the return address is not the breakpoint instruction.
    assert_killed(in_child(|| {
        install(&[], libc::SIG_DFL as u64, 0, 0);
        call(code(&[0xcd, 3, 0xc3]))
    }));
}

#[test]
fn a_sent_signal_is_ignored_or_kills_as_before() {
    let send = |handler: libc::sighandler_t| {
        in_child(|| {
            install(&[], handler as u64, 0, 0);
            // SAFETY: a signal to this process.
            unsafe { libc::raise(libc::SIGTRAP) };
            5
        })
    };
    assert_exit(send(libc::SIG_IGN), 5);
    assert_killed(send(libc::SIG_DFL));
}

static SEEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: what the kernel passed; `sigprocmask` only reads.
    unsafe {
        assert_eq!((signal, (*info).si_signo), (libc::SIGTRAP, libc::SIGTRAP));
        assert_ne!((*context).uc_mcontext.gregs[libc::REG_RIP as usize], 0);
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        let usr1 = libc::sigismember(&mask, libc::SIGUSR1) as u64;
        let trap = libc::sigismember(&mask, libc::SIGTRAP) as u64;
        SEEN.store(1 | usr1 << 1 | trap << 2, Ordering::Relaxed);
    }
}

#[test]
fn the_programs_handler_runs_with_its_mask() {
    assert_exit(
        in_child(|| {
            let usr1 = 1u64 << (libc::SIGUSR1 - 1);
            let trap = 1u64 << (libc::SIGTRAP - 1);
            install(&[], handler as *const () as u64, libc::SA_SIGINFO as u64, usr1 | trap);
            call(code(&[INT3, 0xc3]));
            let first = SEEN.swap(0, Ordering::Relaxed);
            // SAFETY: a signal to this process; `sigprocmask` only reads.
            unsafe {
                libc::raise(libc::SIGTRAP);
                let mut mask: libc::sigset_t = std::mem::zeroed();
                libc::sigprocmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
                assert_eq!(libc::sigismember(&mask, libc::SIGUSR1), 0);
            }
            assert_eq!((first, SEEN.load(Ordering::Relaxed)), (3, 3));
            33
        }),
        33,
    );
}

/// The thread believes SIGTRAP to be blocked, as the one that had its stack before did. A
/// breakpoint that is not ours kills one that believes that by itself.
fn meets_a_breakpoint(is_another: bool) -> i32 {
    in_child(|| {
        let world = install(&[], handler as *const () as u64, libc::SA_SIGINFO as u64, 0);
        let pointer: u64;
        // SAFETY: glibc has the thread pointer there.
        unsafe { std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly)) };
        let thread = world.enter(pointer).unwrap();
        // SAFETY: the state of this thread, which nobody else looks at.
        unsafe {
            assert_ne!((*thread.state).tid_word, 0, "glibc's thread id is where the agent looks");
            (*thread.state).blocked.now = 1 << (libc::SIGTRAP - 1);
            (*thread.state).tid += u32::from(is_another);
        }
        call(code(&[INT3, 0xc3]));
        SEEN.load(Ordering::Relaxed) as i32 & 1
    })
}

#[test]
fn a_new_thread_believed_what_the_one_before_on_its_stack_did() {
    assert_killed(meets_a_breakpoint(false));
    assert_exit(meets_a_breakpoint(true), 1);
}

#[test]
fn a_one_shot_handler_is_used_once() {
    assert_killed(in_child(|| {
        install(&[], handler as *const () as u64, (libc::SA_SIGINFO | libc::SA_RESETHAND) as u32 as u64, 0);
        // SAFETY: signals to this process.
        unsafe {
            libc::raise(libc::SIGTRAP);
            assert_eq!(SEEN.load(Ordering::Relaxed), 1);
            libc::raise(libc::SIGTRAP);
        }
        1
    }));
}

/// A page with a record, and behind it what stands for the copy.
fn record(op: Option<Op>, newest: u32, copy: &[u8]) -> u64 {
    let record = TrapRecord { op: op.map_or([0; 2], Op::to_words), newest, pad: 0 };
    code(&[&record.to_bytes()[..], copy].concat()) | TrapEntry::RECORD
}

/// Two probes at one site, with cells 3 and 4.
fn two_probes() -> Setup {
    let probe = |hits, older| ProbeDesc { hits, older, ..world::flow(Flow::Entry) };
    Setup { probes: vec![probe(3, 0), probe(4, 1)], ..Setup::default() }
}

fn counting(traps: &[(u64, u64)], stack: i32) -> World {
    install_with(&two_probes(), stack, traps, SigAction::default())
}

fn counts(world: World) -> [u64; 2] {
    [world.cell(3), world.cell(4)]
}

/// The copies do something else than the instructions, to tell who did it.
#[test]
fn the_handler_does_what_it_can_and_the_copy_the_rest() {
    assert_exit(
        in_child(|| {
            let function = answer(7);
            let sites: Vec<u64> = (0..2).map(|_| code(&[&[INT3], &function[1..]].concat())).collect();
            let done = record(prepare(Isa::X64, &function), 2, &answer(9));
            let displaced = record(None, 2, &answer(9));
            let world = counting(&[(sites[0], done), (sites[1], displaced)], 0);
            assert_eq!((call(sites[0]), counts(world)), (7, [1, 1]));
            assert_eq!((call(sites[1]), counts(world)), (9, [2, 2]));
            1
        }),
        1,
    );
}

/// `push`, `pop`, `call`, `ret` on the interrupted stack.
#[test]
fn the_interrupted_stack_is_used() {
    const WRONG: [u8; 2] = [0x0f, 0x0b]; // ud2
    assert_exit(
        in_child(|| {
            // push $41; pop %rax; call +2; jmp +3; inc %eax; ret; ret
            let plain = [0x6a, 41, 0x58, 0xe8, 2, 0, 0, 0, 0xeb, 3, 0xff, 0xc0, 0xc3, 0xc3];
            let page = code(&plain);
            let insns = [0, 2, 3, 8, 12, 13];
            let traps = insns.map(|at| (page + at, record(prepare(Isa::X64, &plain[at as usize..]), 1, &WRONG)));
            for (site, _) in traps {
                // SAFETY: the page of code.
                unsafe { (site as *mut u8).write(INT3) };
            }
            let world = counting(&traps, 0);
            // Somewhere in a page, where the page above does not matter.
            let answers: Vec<i32> = (0..8).map(|depth| at_depth(depth * 16, page)).collect();
            assert_eq!((answers, counts(world)), (vec![42; 8], [48, 0]));
            1
        }),
        1,
    );
}

/// Calls with the stack pointer in the middle of a page, or so many bytes below.
fn at_depth(below: u64, function: u64) -> i32 {
    let answer: u64;
    // SAFETY: moves the stack pointer down within the stack.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "sub rsp, 8192",
            "and rsp, -4096",
            "add rsp, 2048",
            "sub rsp, {below}",
            "call {function}",
            "mov rsp, r12",
            below = in(reg) below, function = in(reg) function, out("rax") answer, out("r12") _,
            clobber_abi("C"));
    }
    answer as i32
}

/// Where a fault was, and nothing else to do.
extern "C" fn fault(_: i32, info: *mut libc::siginfo_t, context: *mut libc::ucontext_t) {
    // SAFETY: what the kernel passed.
    unsafe {
        let at = (*context).uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
        let exhausted = (*info).si_addr() as u64 == SEEN.load(Ordering::Relaxed);
        libc::_exit(if exhausted && at == SITE.load(Ordering::Relaxed) { 7 } else { 8 });
    }
}

/// With an alternate stack the handler of the trap has room, and must not fault itself.
#[test]
fn a_push_on_a_used_up_stack_is_the_copys_fault() {
    assert_exit(
        in_child(|| {
            let (other, page) = (world::map(1 << 16, libc::MAP_PRIVATE), world::map(8192, libc::MAP_PRIVATE));
            let site = code(&[INT3, 0xc3]);
            let record = record(prepare(Isa::X64, &[0x50]), 1, &[0x50, 0xc3]); // push %rax
            counting(&[(site, record)], libc::SA_ONSTACK);
            SITE.store((record & !TrapEntry::RECORD) + size_of::<TrapRecord>() as u64, Ordering::Relaxed);
            SEEN.store(page as u64 + 4096 - 8, Ordering::Relaxed);
            // SAFETY: a stack for signals, and one that is used up, from which nobody comes back.
            unsafe {
                let stack = libc::stack_t { ss_sp: other.cast(), ss_flags: 0, ss_size: 1 << 16 };
                assert_eq!(libc::sigaltstack(&stack, ptr::null_mut()), 0);
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGSEGV, &action, ptr::null_mut()), 0);
                assert_eq!(libc::mprotect(page.cast(), 4096, libc::PROT_NONE), 0);
                std::arch::asm!("mov rsp, {}", "jmp {}", in(reg) page.add(4096), in(reg) site, options(noreturn));
            }
        }),
        7,
    );
}
