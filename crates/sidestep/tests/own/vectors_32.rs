//! The registers that are saved around handlers, in 32-bit code, and what handlers see of
//! arguments.

use std::arch::asm;
use std::hint::black_box;
use std::sync::{Arc, Mutex};

use sidestep::{Context, Session};

use super::{at, turn};

#[test]
fn a_handler_sees_and_changes_what_is_on_the_stack() {
    let _turn = turn();
    extern "C" fn all(small: u8, wide: u64, number: f64, pointer: *const u32) -> u64 {
        // SAFETY: the test's pointer, and the handler's.
        black_box(u64::from(small) + wide + number as u64 + u64::from(unsafe { *pointer }))
    }
    static OTHER: u32 = 7000;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    // SAFETY: the arguments are where the ABI has them, and the function takes any.
    let probe = unsafe {
        at(all as *const ())
            .on_entry(move |context| {
                let word = |n: usize| *context.stack_argument(n) as u64;
                let pair = |n: usize| word(n + 1) << 32 | word(n);
                theirs.lock().unwrap().push((word(0) as u8, pair(1), f64::from_bits(pair(3)), word(5) as usize));
                assert_eq!((context.argument(0), context.double(0), context.set_argument(0, 1)), (None, None, false));
                *context.stack_argument(5) = &raw const OTHER as usize;
            })
            .on_return(|context| context.regs.rdx += 1)
    };
    let session = Session::own().probe(probe).start().unwrap();
    let (call, four) = (black_box(all as extern "C" fn(u8, u64, f64, *const u32) -> u64), 4u32);
    assert_eq!(call(1, 0x2_0000_0000, 300.5, &four), 0x3_0000_0000 + 1 + 300 + 7000);
    assert_eq!(*seen.lock().unwrap(), [(1, 0x2_0000_0000, 300.5, &raw const four as usize)]);
    session.detach().unwrap();
    assert_eq!(call(1, 0x2_0000_0000, 300.5, &four), 0x2_0000_0000 + 1 + 300 + 4);
}

std::arch::global_asm!(
    ".type spoilt, @function",
    "spoilt:",
    "mov 4(%esp), %eax",
    ".type spoilt_inside, @function",
    "spoilt_inside:",
    "lea 1(%eax), %eax",
    "ret",
    ".size spoilt, . - spoilt",
    options(att_syntax)
);

unsafe extern "C" {
    fn spoilt();
    fn spoilt_inside();
}

/// The state that is looked at: `ymm7`, the whole x87 stack, MXCSR, the x87 control word, flags.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct Seen([u8; 32], [f64; 8], u32, u32, u32);

/// Changes all of it, and `errno`. It uses all of the x87 stack, as compiled code may.
fn spoil(_: &mut Context) {
    let (word, control) = (0x0f7fu16, 0x1f82u32);
    // SAFETY: these registers are the C ABI's to change; the x87 stack is empty at the end, as at
    // the start.
    unsafe {
        asm!(
            "vcmpps ymm7, ymm7, ymm7, 15", "fldcw [{word}]", "ldmxcsr [{control}]",
            "fld1", "fld1", "fld1", "fld1", "fld1", "fld1", "fld1", "fld1", "faddp", "faddp", "faddp", "faddp", "faddp",
            "faddp", "faddp", "fistp qword ptr [esp - 8]",
            word = in(reg) &raw const word, control = in(reg) &raw const control, out("xmm7") _,
            out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
            out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
        );
        *libc::__errno_location() = libc::EXDEV;
    }
}

/// Calls `spoilt` with this state, and gives the state afterwards.
fn call_spoilt(before: &Seen) -> Seen {
    let mut both = [*before, Seen([0; 32], [0.0; 8], 0, 0, 0)];
    // SAFETY: a call of the C ABI, but for the direction flag and registers that `spoilt` does not
    // look at; what the compiler believes of the control words is so again at the end.
    unsafe {
        asm!(
            "vmovdqu ymm7, [edi]", "ldmxcsr [edi + 96]", "fldcw [edi + 100]",
            "fld qword ptr [edi + 88]", "fld qword ptr [edi + 80]", "fld qword ptr [edi + 72]",
            "fld qword ptr [edi + 64]", "fld qword ptr [edi + 56]", "fld qword ptr [edi + 48]",
            "fld qword ptr [edi + 40]", "fld qword ptr [edi + 32]",
            "push 9", "std", "call {spoilt}", "pushfd", "cld", "pop ecx", "pop edx",
            "add edi, {len}", "and ecx, 0x400", "mov [edi + 104], ecx",
            "fstp qword ptr [edi + 32]", "fstp qword ptr [edi + 40]", "fstp qword ptr [edi + 48]",
            "fstp qword ptr [edi + 56]", "fstp qword ptr [edi + 64]", "fstp qword ptr [edi + 72]",
            "fstp qword ptr [edi + 80]", "fstp qword ptr [edi + 88]",
            "stmxcsr [edi + 96]", "fnstcw [edi + 100]", "vmovdqu [edi], ymm7",
            "push 0x1f80", "ldmxcsr [esp]", "fninit", "pop ecx",
            spoilt = sym spoilt, len = const size_of::<Seen>(), inout("edi") &raw mut both => _, clobber_abi("C"),
        );
    }
    both[1]
}

#[test]
fn vectors_x87_flags_and_errno_survive_a_handler() {
    if !is_x86_feature_detected!("avx") {
        eprintln!("SKIPPED, NOT TESTED: this CPU has no AVX");
        return;
    }
    let _turn = turn();
    let numbers = std::array::from_fn(|i| i as f64 * 1.5 - 4.0);
    // MXCSR rounds down, x87 up and to 53 bits; the direction flag is set.
    let before = Seen(std::array::from_fn(|i| i as u8 * 7 + 1), numbers, 0x3f80, 0x0a7f, 0x400);
    assert_eq!(call_spoilt(&before), before);
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
        let after = call_spoilt(&before);
        // SAFETY: the word is this thread's.
        assert_eq!(unsafe { *libc::__errno_location() }, libc::E2BIG);
        assert_eq!(after, before);
        assert_eq!(session.counts(id).unwrap(), (1, 0));
        session.unregister(id).unwrap();
    }
    session.detach().unwrap();
}
