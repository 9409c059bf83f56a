//! Probes that come inside the jumps of others, and go.

use std::arch::global_asm;
use std::hint::black_box;

use sidestep::{Probe, Registration, Session};

use super::{calls_meanwhile, turn};

// Instructions at 0, 3, 5, 8 and 11; no padding near that a short jump could lead to. Its argument
// is in `ecx`.
global_asm!(
    ".type narrow,@function",
    ".rept 40",
    "lea eax, [eax + 1]",
    ".endr",
    "ret",
    "narrow:",
    ".if {word} == 8",
    "lea eax, [rcx + 1]",
    ".else",
    "lea eax, [ecx + 1]",
    ".endif",
    "add eax, ecx",
    "add eax, 3",
    "xor eax, 1",
    "ret",
    ".size narrow, . - narrow",
    ".rept 40",
    "lea eax, [eax + 1]",
    ".endr",
    "ret",
    ".type call_narrow,@function",
    "call_narrow:",
    ".if {word} == 8",
    "mov ecx, edi",
    ".else",
    "mov ecx, [esp + 4]",
    ".endif",
    "jmp narrow",
    ".size call_narrow, . - call_narrow",
    word = const size_of::<usize>(),
);

unsafe extern "C" {
    fn narrow();
    safe fn call_narrow(number: u32) -> u32;
}

#[track_caller]
fn call() {
    assert_eq!(black_box(call_narrow as extern "C" fn(u32) -> u32)(5), 15);
}

fn at(offset: usize) -> Probe {
    Probe::function((narrow as *const ()).wrapping_byte_add(offset)).unwrap()
}

/// Which of these are jumps.
fn optimized(session: &Session, ids: &[Registration]) -> Vec<bool> {
    let list = session.list().unwrap();
    let of = |id: &Registration| list.iter().find(|probe| probe.registration == id.0).unwrap().optimized;
    ids.iter().map(of).collect()
}

#[test]
fn a_jump_makes_way_for_a_probe_that_comes_inside_it() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let outer = session.register(at(0)).unwrap();
    call();
    assert_eq!(optimized(&session, &[outer]), [true]);
    for round in 0..5 {
        let inner = session.register(at(3)).unwrap();
        assert!(!optimized(&session, &[outer])[0], "{round}");
        call();
        // Off and on again.
        session.disable(inner).unwrap();
        assert!(optimized(&session, &[outer])[0]);
        call();
        session.enable(inner).unwrap();
        assert!(!optimized(&session, &[outer])[0]);
        call();
        assert_eq!(session.counts(inner).unwrap(), (2, 0));
        session.unregister(inner).unwrap();
        assert!(optimized(&session, &[outer])[0], "{round}");
        call();
    }
    assert_eq!(session.counts(outer).unwrap(), (21, 0));
    session.detach().unwrap();
    call();
}

#[test]
fn a_probe_is_a_jump_when_the_one_inside_is_gone() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let ids = session.register_all([at(0), at(3)]).unwrap();
    let optimized = || optimized(&session, &ids[..1])[0];
    call();
    assert!(!optimized());
    session.disable(ids[1]).unwrap();
    call();
    assert!(optimized());
    session.enable(ids[1]).unwrap();
    call();
    assert!(!optimized());
    session.unregister(ids[1]).unwrap();
    call();
    assert!(optimized());
    // It can come again.
    let again = session.register(at(3)).unwrap();
    call();
    assert!(!optimized());
    session.unregister(again).unwrap();
    call();
    assert!(optimized());
    assert_eq!((session.counts(ids[0]).unwrap(), session.list().unwrap().len()), ((6, 0), 1));
    session.detach().unwrap();
    call();
}

#[test]
fn the_inner_probe_may_be_older() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let inner = session.register(at(3)).unwrap();
    call();
    let outer = session.register(at(0)).unwrap();
    call();
    let optimized = || optimized(&session, &[outer])[0];
    assert!(!optimized());
    session.unregister(inner).unwrap();
    call();
    assert!(optimized());
    assert_eq!(session.counts(outer).unwrap(), (2, 0));
    session.detach().unwrap();
    call();
}

#[test]
fn a_jump_that_is_off_makes_way_too() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let outer = session.register(at(0)).unwrap();
    session.disable(outer).unwrap();
    let inner = session.register(at(3)).unwrap();
    call();
    session.enable(outer).unwrap();
    call();
    assert_eq!((session.counts(outer).unwrap(), session.counts(inner).unwrap()), ((1, 0), (2, 0)));
    assert!(!optimized(&session, &[outer])[0]);
    session.unregister(inner).unwrap();
    assert!(optimized(&session, &[outer])[0]);
    call();
    assert_eq!(session.counts(outer).unwrap(), (2, 0));
    session.detach().unwrap();
    call();
}

#[test]
fn every_instruction_is_probed_in_any_order() {
    let _turn = turn();
    for order in [[0, 3, 5], [0, 5, 3], [3, 0, 5], [3, 5, 0], [5, 0, 3], [5, 3, 0]] {
        let session = Session::own().start().unwrap();
        let ids = order.map(|offset| session.register(at(offset)).unwrap());
        call();
        call();
        for id in ids {
            assert_eq!(session.counts(id).unwrap(), (2, 0), "{order:?}");
        }
        session.unregister(ids[0]).unwrap();
        call();
        assert_eq!([1, 2].map(|i| session.counts(ids[i]).unwrap()), [(3, 0); 2], "{order:?}");
        session.unregister(ids[1]).unwrap();
        call();
        assert_eq!(session.counts(ids[2]).unwrap(), (4, 0), "{order:?}");
        assert_eq!(optimized(&session, &ids[2..]), [true], "{order:?}");
        session.detach().unwrap();
        call();
    }
}

#[test]
fn no_hit_is_lost_while_others_come_and_go_inside() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    let outer = session.register(at(0)).unwrap();
    let calls = calls_meanwhile(call, || {
        for round in 0..40 {
            let first = session.register(at(3)).unwrap();
            let second = session.register(at(if round % 2 == 0 { 5 } else { 8 })).unwrap();
            session.unregister(if round % 3 == 0 { first } else { second }).unwrap();
            session.unregister(if round % 3 == 0 { second } else { first }).unwrap();
        }
    });
    assert_eq!(session.counts(outer).unwrap(), (calls, 0));
    assert!(optimized(&session, &[outer])[0]);
    session.detach().unwrap();
    call();
}

#[test]
fn a_pun_makes_way_and_comes_back() {
    let _turn = turn();
    let session = Session::own().start().unwrap();
    // Too short for a jump that ends in it.
    let outer = session.register(at(8)).unwrap();
    assert_eq!(session.list().unwrap()[0].technique, "pun");
    for round in 1..4 {
        let inner = session.register(at(11)).unwrap();
        assert_eq!(optimized(&session, &[outer]), [false]);
        call();
        session.disable(inner).unwrap();
        assert_eq!(optimized(&session, &[outer]), [true]);
        call();
        session.enable(inner).unwrap();
        call();
        assert_eq!(session.counts(inner).unwrap(), (2, 0));
        session.unregister(inner).unwrap();
        assert_eq!(optimized(&session, &[outer]), [true]);
        call();
        assert_eq!(session.counts(outer).unwrap(), (4 * round, 0));
    }
    session.detach().unwrap();
    call();
}

// A call in it returns to where its jump would be. It calls what is in `ecx`.
global_asm!(
    ".type returned_to,@function",
    ".p2align 4",
    "returned_to:",
    ".if {word} == 8",
    "push rbx",
    "call rcx",
    "inc eax",
    "pop rbx",
    ".else",
    "push ebx",
    "call ecx",
    "inc eax",
    "pop ebx",
    ".endif",
    "ret",
    ".size returned_to, . - returned_to",
    ".type call_returned_to,@function",
    "call_returned_to:",
    ".if {word} == 8",
    "mov rcx, rdi",
    ".else",
    "mov ecx, [esp + 4]",
    ".endif",
    "jmp returned_to",
    ".size call_returned_to, . - call_returned_to",
    word = const size_of::<usize>(),
);

unsafe extern "C" {
    fn returned_to();
    safe fn call_returned_to(number: extern "C" fn() -> u32) -> u32;
}

extern "C" fn thirteen() -> u32 {
    black_box(13)
}

#[test]
fn what_cannot_make_way_says_what_to_do() {
    let _turn = turn();
    let at = |offset: usize| Probe::function((returned_to as *const ()).wrapping_byte_add(offset)).unwrap();
    let call = || assert_eq!(black_box(call_returned_to as extern "C" fn(extern "C" fn() -> u32) -> u32)(thirteen), 14);
    let session = Session::own().start().unwrap();
    let outer = session.register(at(0)).unwrap();
    assert_eq!(session.list().unwrap()[0].technique, "guarded jump");
    let error = session.register(at(3)).unwrap_err().to_string();
    assert!(error.contains("register this one first, or both at once"), "{error}");
    call();
    assert_eq!(session.counts(outer).unwrap(), (1, 0));
    session.unregister(outer).unwrap();
    let both = session.register_all([at(0), at(3)]).unwrap();
    call();
    assert_eq!([0, 1].map(|i| session.counts(both[i]).unwrap()), [(1, 0); 2]);
    session.detach().unwrap();
    call();
}
