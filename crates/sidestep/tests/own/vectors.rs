//! The registers that are saved around handlers, in 64-bit code, and what handlers see of them.

use std::arch::asm;
use std::hint::black_box;
use std::sync::{Arc, Mutex};

use sidestep::{Context, Session};

use super::{at, turn};

#[test]
fn a_handler_sees_numbers_with_a_point() {
    let _turn = turn();
    extern "C" fn third(a: f64, b: f64, c: f64) -> f64 {
        black_box(a + b * c)
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (entry, exit) = (Arc::clone(&seen), Arc::clone(&seen));
    // SAFETY: they change nothing.
    let probe = unsafe {
        at(third as *const ())
            .on_entry(move |context| entry.lock().unwrap().extend((0..3).filter_map(|n| context.double(n))))
            .on_return(move |context| exit.lock().unwrap().extend(context.double(0)))
    };
    let session = Session::own().probe(probe).start().unwrap();
    assert_eq!(black_box(third as extern "C" fn(f64, f64, f64) -> f64)(1.5, 2.5, 3.0), 9.0);
    assert_eq!(*seen.lock().unwrap(), [1.5, 2.5, 3.0, 9.0]);
    session.detach().unwrap();
}

std::arch::global_asm!(
    ".type spoilt, @function",
    "spoilt:",
    "mov %rdi, %rax",
    ".type spoilt_inside, @function",
    "spoilt_inside:",
    "lea 1(%rax), %rax",
    "ret",
    ".size spoilt, . - spoilt",
    options(att_syntax)
);

unsafe extern "C" {
    fn spoilt();
    fn spoilt_inside();
}

/// The state that is looked at: `ymm7`, `ymm9`, `zmm17`, `k3`, flags, MXCSR.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen([[u8; 32]; 2], [u8; 64], u64, u64, u32);

/// Changes all of it, and `errno`.
fn spoil(_: &mut Context) {
    // SAFETY: these registers are the C ABI's to change, or nobody's in code that is compiled
    // without AVX-512; the x87 stack is what it was.
    unsafe {
        asm!(
            "vcmpps ymm7, ymm7, ymm7, 15", "vmovaps ymm9, ymm7", "fldpi", "fstp st(0)",
            "mov {three}, 3", "cvtsi2sd xmm0, {three}", "divsd xmm0, xmm7",
            three = out(reg) _,
            out("xmm0") _, out("xmm7") _, out("xmm9") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
        if is_x86_feature_detected!("avx512bw") {
            asm!("vpternlogd zmm17, zmm17, zmm17, 255", "kxnorq k3, k3, k3");
        }
        black_box(black_box(1.0) / black_box(3.0));
        *libc::__errno_location() = libc::EXDEV;
    }
}

/// Calls `spoilt` with this state, and gives the state afterwards.
fn call_spoilt(before: &Seen, wide: bool) -> Seen {
    let mut after = Seen([[0; 32]; 2], [0; 64], 0, 0, 0);
    // SAFETY: a call of the C ABI, but for the direction flag and registers that `spoilt` does not
    // look at.
    unsafe {
        asm!(
            "test r15, r15", "jz 2f", "vmovdqa64 zmm17, [r12 + 64]", "kmovq k3, [r12 + 128]",
            "2:", "vmovdqu ymm7, [r12]", "vmovdqu ymm9, [r12 + 32]", "ldmxcsr [r12 + 144]", "fldpi", "std",
            "call {spoilt}",
            "pushfq", "cld", "pop rcx", "and ecx, 0x400", "mov [r13 + 136], rcx",
            "stmxcsr [r13 + 144]", "vmovdqu [r13], ymm7", "vmovdqu [r13 + 32], ymm9", "fstp st(0)",
            "test r15, r15", "jz 2f", "vmovdqa64 [r13 + 64], zmm17", "kmovq [r13 + 128], k3",
            "2:",
            spoilt = sym spoilt, in("r12") before, in("r13") &mut after, in("r15") u64::from(wide),
            in("rdi") 9u64, clobber_abi("C"),
        );
    }
    after
}

#[test]
fn vectors_flags_and_errno_survive_a_handler() {
    if !is_x86_feature_detected!("avx") {
        eprintln!("SKIPPED, NOT TESTED: this CPU has no AVX");
        return;
    }
    let _turn = turn();
    let wide = is_x86_feature_detected!("avx512bw");
    let bytes = |from: u8| std::array::from_fn(|i| (i as u8).wrapping_mul(7) + from);
    let long = if wide { std::array::from_fn(|i| i as u8 * 3 + 1) } else { [0; 64] };
    // The direction flag is set, and MXCSR is as at the start.
    let before = Seen([bytes(1), bytes(2)], long, u64::from(wide) * 0x1234_5678_9abc_def0, 0x400, 0x1f80);
    assert_eq!(call_spoilt(&before, wide), before);
    // SAFETY: what they change is saved.
    let probes = unsafe {
        [
            at(spoilt as *const ()).on_entry(spoil),
            at(spoilt as *const ()).on_entry(spoil).on_return(spoil),
            at(spoilt_inside as *const ()).on_entry(spoil),
        ]
    };
    let session = Session::own().start().unwrap();
    for probe in probes {
        let id = session.register(probe).unwrap();
        // SAFETY: it is this thread's.
        unsafe { *libc::__errno_location() = libc::E2BIG };
        let after = call_spoilt(&before, wide);
        // SAFETY: the word is this thread's.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::E2BIG);
        assert_eq!(after, before);
        assert_eq!(session.counts(id).unwrap(), (1, 0));
        session.unregister(id).unwrap();
    }
    session.detach().unwrap();
}
