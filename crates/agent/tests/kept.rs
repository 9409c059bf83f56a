//! Calls that end at an exit: each exit gets what the entry of its own call has kept.

mod world;

use std::sync::atomic::Ordering;

use sidestep_wire::private::{CALLS, SHADOW_FIRST};
use sidestep_wire::{Call, Flow, ProbeDesc, Regs, ShadowEntry, ThreadState};
use world::{Random, Setup, Thread, World, behind_call, flow, program};

/// Counted at exits that got the right word, and the wrong one.
const RIGHT: u32 = 8;
const WRONG: u32 = 9;
/// Two functions.
const FUNCTIONS: u32 = 2;
/// Words of a stack: its slots share entries of the table of calls.
const WORDS: usize = 3 * CALLS * Call::DISTANCE as usize / 8;

/// The first function may jump to a third one, which is not probed.
const JUMP: u32 = 2 * FUNCTIONS;
/// An exit of that one.
const JUMPED_EXIT: u32 = JUMP + 1;

/// Probes 0 and 1: the entries of two functions, which keep `rdi`. 2 and 3: their exits. 4: a jump
/// of the first one, and 5: the exit to which that leads.
fn setup() -> Setup {
    let enter = ProbeDesc { hits: 0, ..program(Flow::Enter, keep) };
    let exit = |function: u32| ProbeDesc {
        hits: 1,
        pair: 1 + function,
        exit: compare as *const () as u64,
        flags: 0,
        ..flow(Flow::Exit)
    };
    let jump = ProbeDesc { pair: 1, flags: ProbeDesc::JUMP, ..flow(Flow::Exit) };
    let jumped = ProbeDesc { pair: 1 + ShadowEntry::JUMPED as u32, flags: ProbeDesc::SHARED, ..exit(0) };
    Setup { probes: vec![enter, enter, exit(0), exit(1), jump, jumped], ..Setup::default() }
}

unsafe extern "C" fn keep(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, _: *mut ThreadState) -> u64 {
    // SAFETY: the program gets the registers of a hit, and the word behind them is its cookie.
    unsafe { regs.add(1).cast::<u64>().write((*regs).rdi) };
    0
}

unsafe extern "C" fn compare(regs: *mut Regs, _: u64, _: u64, _: u64, _: u64, state: *mut ThreadState) -> u64 {
    // SAFETY: the program gets the registers of a hit, and the word behind them is its cookie. The
    // thread's cells are large enough.
    unsafe {
        let is_right = regs.add(1).cast::<u64>().read() == (*regs).rdi;
        let cells = (*state).cells as *mut u64;
        *cells.add(if is_right { RIGHT } else { WRONG } as usize) += 1;
    }
    0
}

/// A stack, the calls that go on there, and the thread that runs on it.
struct Stack {
    words: Vec<u64>,
    calls: Vec<Running>,
    thread: usize,
}

struct Running {
    at: usize,
    function: u32,
    kept: u64,
    jumped: bool,
}

/// Calls on several stacks.
struct Scene {
    world: World,
    threads: Vec<Thread>,
    stacks: Vec<Stack>,
    random: Random,
    entered: u64,
    left: u64,
}

impl Scene {
    fn new(threads: u64, stacks: usize) -> Scene {
        let world = World::new(&setup());
        let threads: Vec<Thread> = (0..threads).map(|i| world.enter(0x1000 + i).unwrap()).collect();
        let stack = |i| Stack { words: vec![0; WORDS], calls: Vec::new(), thread: i % threads.len() };
        let stacks = (0..stacks).map(stack).collect();
        Scene { world, threads, stacks, random: Random(5), entered: 0, left: 0 }
    }

    fn hit(&mut self, which: usize, at: usize, probe: u32, kept: u64) {
        let stack = &mut self.stacks[which];
        let rsp = &raw mut stack.words[at] as u64;
        self.threads[stack.thread].hit(&mut Regs { rsp, rdi: kept, ..Regs::default() }, probe);
    }

    fn call(&mut self, which: usize) {
        let function = self.random.below(u64::from(FUNCTIONS)) as u32;
        let distance = 2 * (1 + self.random.below(20) as usize);
        let stack = &mut self.stacks[which];
        let Some(at) = stack.calls.last().map_or(WORDS, |call| call.at).checked_sub(distance) else { return };
        self.entered += 1;
        let kept = self.entered;
        stack.words[at] = behind_call(kept);
        stack.calls.push(Running { at, function, kept, jumped: false });
        self.hit(which, at, function, kept);
    }

    fn ret(&mut self, which: usize) {
        let Some(Running { at, function, kept, jumped }) = self.stacks[which].calls.pop() else { return };
        self.left += 1;
        self.hit(which, at, if jumped { JUMPED_EXIT } else { FUNCTIONS + function }, kept);
    }

    /// The newest call goes on in the third function, if it is one of the first.
    fn jump(&mut self, which: usize) {
        let Some(call) = self.stacks[which].calls.last_mut() else { return };
        if call.function == 0 && !call.jumped {
            call.jumped = true;
            let (at, kept) = (call.at, call.kept);
            self.hit(which, at, JUMP, kept);
        }
    }

    /// Leaves the calls that go on, up to some of them.
    fn leave(&mut self, which: usize) -> Vec<Running> {
        let depth = self.stacks[which].calls.len() as u64;
        let left = self.random.below(depth + 1) as usize;
        self.stacks[which].calls.split_off(left)
    }

    /// Calls the third function itself, with the return address `ret`, and returns from it.
    fn call_third(&mut self, which: usize, at: usize, ret: u64) {
        self.stacks[which].words[at] = ret;
        self.hit(which, at, JUMPED_EXIT, 0);
    }

    /// Lets all calls that go on return.
    fn finish(mut self) {
        for which in 0..self.stacks.len() {
            while !self.stacks[which].calls.is_empty() {
                self.ret(which);
            }
        }
        let [entries, exits] = [0, 1].map(|cell| self.world.cell(cell));
        assert_eq!((entries, exits), (self.entered, self.left));
        let [right, wrong] = [RIGHT, WRONG].map(|cell| self.world.cell(cell.into()));
        assert_eq!((right, wrong), (self.left, 0));
    }
}

#[test]
fn calls_deeper_than_the_table_are_told_apart() {
    let mut scene = Scene::new(1, 1);
    for n in 0..200_000 {
        // In waves, so that the whole stack is used.
        match scene.random.below(100) < if n / 1000 % 2 == 0 { 60 } else { 40 } {
            true => scene.call(0),
            false => scene.ret(0),
        }
    }
    assert!(scene.threads[0].state().shadow_cap == SHADOW_FIRST as u64, "few calls should need the shadow stack");
    scene.finish();
}

#[test]
fn calls_that_were_left_are_not_taken_for_new_ones() {
    let mut scene = Scene::new(1, 4);
    for _ in 0..200_000 {
        let which = scene.random.below(4) as usize;
        match scene.random.below(100) {
            0..52 => scene.call(which),
            52..99 => scene.ret(which),
            _ => {
                scene.leave(which);
            }
        }
    }
    scene.finish();
}

/// The third function was called itself where a call of the first one had been left: that was taken
/// for returned.
#[test]
fn calls_that_were_left_do_not_end_where_they_would_have_jumped_to() {
    let mut scene = Scene::new(2, 4);
    for _ in 0..200_000 {
        let which = scene.random.below(4) as usize;
        match scene.random.below(100) {
            0..46 => scene.call(which),
            46..60 => scene.jump(which),
            60..99 => scene.ret(which),
            _ => {
                for Running { at, kept, jumped, .. } in scene.leave(which) {
                    // The same instruction calls it, or another one.
                    let ret = if !jumped && scene.random.below(2) == 0 { kept } else { kept + 1 };
                    scene.call_third(which, at, behind_call(ret));
                }
            }
        }
    }
    scene.finish();
}

#[test]
fn calls_that_have_jumped_move_to_other_threads_with_their_stacks() {
    let mut scene = Scene::new(3, 5);
    for n in 0..100_000 {
        let which = scene.random.below(5) as usize;
        match scene.random.below(100) {
            0..46 => scene.call(which),
            46..60 => scene.jump(which),
            60..99 => scene.ret(which),
            _ if n > 10_000 => scene.stacks[which].thread = scene.random.below(3) as usize,
            _ => {}
        }
    }
    scene.finish();
}

/// Each call of a function that others may jump to looked at all calls that had been left.
#[test]
fn calls_that_have_not_jumped_are_not_searched_among_those_that_were_left() {
    let mut scene = Scene::new(1, 1);
    let cost = |scene: &mut Scene| {
        let rounds = (0..20).map(|_| {
            let start = std::time::Instant::now();
            (0..200).for_each(|_| scene.call_third(0, WORDS - 1, behind_call(0)));
            start.elapsed()
        });
        rounds.min().expect("some rounds")
    };
    let before = cost(&mut scene);
    // Their words stay, so they look alive. The table has the first ones, the shadow stack the
    // rest.
    for n in 1..WORDS as u64 / 2 - 1 {
        let at = WORDS - 2 * (n as usize + 1);
        scene.stacks[0].words[at] = behind_call(n);
        scene.hit(0, at, 0, n);
    }
    assert!(scene.threads[0].state().shadow_len.load(Ordering::Relaxed) > 900);
    let after = cost(&mut scene);
    assert!(after < 3 * before, "{before:?} {after:?}");
}

#[test]
fn calls_move_to_other_threads_with_their_stacks() {
    let mut scene = Scene::new(3, 5);
    for n in 0..100_000 {
        let which = scene.random.below(5) as usize;
        match scene.random.below(100) {
            0..51 => scene.call(which),
            51..99 => scene.ret(which),
            _ if n > 10_000 => scene.stacks[which].thread = scene.random.below(3) as usize,
            _ => {}
        }
    }
    scene.finish();
}

/// A signal handler came while an entry was being filled, and never came back.
#[test]
fn an_entry_that_is_never_filled_costs_no_call() {
    let mut scene = Scene::new(1, 1);
    scene.call(0);
    let slot = &raw const scene.stacks[0].words[scene.stacks[0].calls[0].at] as u64;
    scene.ret(0);
    let table = scene.threads[0].state as u64 + sidestep_wire::private::CALLS_OFF as u64;
    let entry = scene.world.word(table + (Call::index(slot) * size_of::<Call>()) as u64);
    assert_eq!(entry.swap(Call::BUSY, Ordering::Relaxed), 0);
    for _ in 0..1000 {
        scene.call(0);
        scene.ret(0);
    }
    assert_eq!(entry.load(Ordering::Relaxed), Call::BUSY);
    scene.finish();
}
