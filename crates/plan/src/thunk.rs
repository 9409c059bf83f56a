//! Code that all detours of a slab share, and the return trampoline.
//!
//! Every thunk saves all that the C ABI lets a callee change, so that agent functions can be plain compiled code:
//!
//! ```text
//!   high   probe, cell …           pushed by the detour
//!          return into the detour  pushed by its call     (trampoline: the slot that gets the real return address)
//!          Frame.rsp
//!          Frame.rax … Frame.r11   rax first
//!          flags                   lahf/seto form
//!          rbx                     holds the stack pointer over the agent call
//!   low    xmm registers that the agent's code uses, 16-aligned
//! ```

use sidestep_isa::Va;
pub use sidestep_isa::x86::emit::thread_pointer_through_self;
use sidestep_isa::x86::emit::{Asm, Cond, Reg};

/// Run-time facts that generated code contains.
#[derive(Clone, Debug, Default)]
pub struct Env {
    /// Address of the private region.
    pub private: Va,
    /// Address of the first bucket of the lookup table; below 2 GiB, so that it fits a displacement.
    pub buckets: Va,
    /// Address of the array of missed counts.
    pub missed: Va,
    /// `agent_slot`.
    pub agent_slot: Va,
    /// `agent_hit`.
    pub agent_hit: Va,
    /// `agent_return`.
    pub agent_return: Va,
    /// `agent_sigtrap`.
    pub agent_sigtrap: Va,
    /// The xmm registers that the agent's code touches, a bit each.
    pub agent_xmm: u16,
    /// Every thread has its thread pointer at `%fs:0`, now and from now on.
    pub self_pointer: bool,
    /// Multiplier of the lookup hash (`wire::lookup`).
    pub hash_multiplier: i32,
    /// Shift of the lookup hash.
    pub hash_shift: u8,
    /// Number of buckets, a power of two.
    pub bucket_count: u32,
}

/// Size of a lookup entry, and offsets of its fields (`wire::LookupEntry`).
const ENTRY_SHIFT: u8 = 5;
const ENTRY_CELLS: i32 = 8;
const ENTRY_STATE: i32 = 16;

/// Where the shared code of a slab is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thunks {
    /// A count that did not find its thread in the first bucket: stack = cell, probe (pushed in the order probe, cell).
    pub count_slow: Va,
    /// Frame context at a function entry: stack = probe.
    pub hit_entry: Va,
    /// Frame context elsewhere; the detour has stepped over the red zone.
    pub hit_inside: Va,
}

/// Process-wide code: the return trampoline and the signal entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Globals {
    /// What a replaced return address points to.
    pub trampoline: Va,
    /// SIGTRAP handler.
    pub sigtrap: Va,
    /// Its restorer.
    pub restorer: Va,
}

/// Bytes of red zone below the stack pointer (System V ABI, AMD64 supplement, 3.2.2).
pub const RED_ZONE: i32 = 128;

const SAVED: [Reg; 9] = [Reg::Rax, Reg::Rcx, Reg::Rdx, Reg::Rsi, Reg::Rdi, Reg::R8, Reg::R9, Reg::R10, Reg::R11];
/// Bytes of `wire::Frame`.
const FRAME: i32 = 80;

impl Env {
    /// Bucket address of the key in `key` to `out`, as displacement base for `self.buckets`.
    pub(crate) fn emit_hash(&self, asm: &mut Asm, out: Reg, key: Reg) {
        asm.imul_imm(out, key, self.hash_multiplier);
        asm.shr(out, self.hash_shift - ENTRY_SHIFT);
        asm.and32(out, ((self.bucket_count - 1) << ENTRY_SHIFT) as i32);
    }

    pub(crate) fn bucket_disp(&self) -> i32 {
        self.buckets.0 as i32
    }

    /// Offset of the cells pointer in a lookup entry.
    pub(crate) fn cells_disp(&self) -> i32 {
        self.bucket_disp() + ENTRY_CELLS
    }
}

/// Saves registers as drawn above. Expects `Frame.rsp` to lie `above_sp` bytes above the stack pointer at the start.
fn save(asm: &mut Asm, env: &Env, above_sp: i32) {
    asm.push(Reg::Rax); // becomes Frame.rsp
    for reg in SAVED {
        asm.push(reg);
    }
    asm.flags_to_ax();
    asm.push(Reg::Rax);
    asm.push(Reg::Rbx);
    asm.mov(Reg::Rbx, Reg::Rsp);
    asm.lea(Reg::Rcx, Reg::Rbx, 16 + FRAME + above_sp);
    asm.store(Reg::Rbx, 16 + FRAME - 8, Reg::Rcx);
    let xmm: Vec<u8> = (0..16).filter(|i| env.agent_xmm >> i & 1 == 1).collect();
    if !xmm.is_empty() {
        asm.lea(Reg::Rsp, Reg::Rsp, -16 * xmm.len() as i32);
    }
    asm.and_imm8(Reg::Rsp, -16);
    for (i, x) in xmm.iter().enumerate() {
        asm.store_xmm(16 * i as i32, *x);
    }
}

fn restore(asm: &mut Asm, env: &Env) {
    for (i, x) in (0..16u8).filter(|i| env.agent_xmm >> i & 1 == 1).enumerate() {
        asm.load_xmm(16 * i as i32, x);
    }
    asm.mov(Reg::Rsp, Reg::Rbx);
    asm.pop(Reg::Rbx);
    asm.pop(Reg::Rax);
    asm.ax_to_flags();
    for reg in SAVED.iter().rev() {
        asm.pop(*reg);
    }
    asm.lea(Reg::Rsp, Reg::Rsp, 8);
}

fn call(asm: &mut Asm, function: Va) {
    asm.mov_imm64(Reg::Rax, function.0);
    asm.call_reg(Reg::Rax);
}

/// `rax` = lookup entry of this thread, or 0: the first bucket, else `agent_slot`.
fn find_entry(asm: &mut Asm, env: &Env) {
    let slow = asm.label();
    let found = asm.label();
    let done = asm.label();
    asm.thread_pointer(Reg::Rsi, env.self_pointer);
    env.emit_hash(asm, Reg::Rax, Reg::Rsi);
    asm.cmp_mem(Reg::Rax, env.bucket_disp(), Reg::Rsi);
    asm.jcc(Cond::Ne, slow);
    asm.load(Reg::Rcx, Reg::Rax, env.cells_disp());
    asm.test(Reg::Rcx);
    asm.jcc(Cond::Ne, found);
    asm.bind(slow);
    asm.mov_imm64(Reg::Rdi, env.private.0);
    call(asm, env.agent_slot);
    asm.jmp(done);
    asm.bind(found);
    asm.lea(Reg::Rax, Reg::Rax, env.bucket_disp());
    asm.bind(done);
}

/// `[missed + probe * 8] += 1`, for all threads.
fn count_missed(asm: &mut Asm, env: &Env, probe_disp: i32) {
    asm.load32(Reg::Rcx, Reg::Rbx, probe_disp);
    asm.mov_imm64(Reg::R9, env.missed.0);
    asm.lea_index8(Reg::Rcx, Reg::R9, Reg::Rcx);
    asm.add_one(Reg::Rcx, 0, true);
}

fn count_slow(asm: &mut Asm, env: &Env) {
    // stack: return, cell, probe
    let missed = asm.label();
    let out = asm.label();
    save(asm, env, 24);
    let cell = 16 + FRAME + 8;
    find_entry(asm, env);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, missed);
    asm.load(Reg::Rax, Reg::Rax, ENTRY_CELLS);
    asm.load32(Reg::Rcx, Reg::Rbx, cell);
    asm.lea_index8(Reg::Rax, Reg::Rax, Reg::Rcx);
    asm.add_one(Reg::Rax, 0, false);
    asm.jmp(out);
    asm.bind(missed);
    count_missed(asm, env, cell + 8);
    asm.bind(out);
    restore(asm, env);
    asm.ret();
}

fn hit(asm: &mut Asm, env: &Env, red_zone: i32) {
    // stack: return, probe
    let missed = asm.label();
    let out = asm.label();
    save(asm, env, 16 + red_zone);
    let probe = 16 + FRAME + 8;
    find_entry(asm, env);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, missed);
    asm.lea(Reg::Rdi, Reg::Rbx, 16);
    asm.load(Reg::Rsi, Reg::Rax, ENTRY_STATE);
    asm.mov_imm64(Reg::Rdx, env.private.0);
    asm.load32(Reg::Rcx, Reg::Rbx, probe);
    call(asm, env.agent_hit);
    asm.jmp(out);
    asm.bind(missed);
    count_missed(asm, env, probe);
    asm.bind(out);
    restore(asm, env);
    asm.ret();
}

/// The shared code at the start of a slab.
#[must_use]
pub fn thunks(at: Va, env: &Env) -> (Vec<u8>, Thunks) {
    let mut asm = Asm::new(at);
    let count_at = asm.here();
    count_slow(&mut asm, env);
    asm.align(16);
    let entry_at = asm.here();
    hit(&mut asm, env, 0);
    asm.align(16);
    let inside_at = asm.here();
    hit(&mut asm, env, RED_ZONE);
    asm.align(16);
    (asm.finish(), Thunks { count_slow: count_at, hit_entry: entry_at, hit_inside: inside_at })
}

/// The process-wide code.
///
/// The trampoline leaves by an indirect jump, not by `ret`: the return predictor has already consumed the entry of
/// the call, and a second `ret` would put all outer returns out of step. The address it jumps to lies in the red zone,
/// where no signal handler writes.
#[must_use]
pub fn globals(at: Va, env: &Env) -> (Vec<u8>, Globals) {
    let mut asm = Asm::new(at);
    let trampoline = asm.here();
    // The slot becomes the real return address. Until then it still holds the trampoline's address: that is how the agent
    // sees, in a signal handler, that the frame is alive.
    asm.lea(Reg::Rsp, Reg::Rsp, -8);
    save(&mut asm, env, 8);
    find_entry(&mut asm, env);
    let no_entry = asm.label();
    asm.mov(Reg::Rsi, Reg::Rax);
    asm.test(Reg::Rax);
    asm.jcc(Cond::E, no_entry);
    asm.load(Reg::Rsi, Reg::Rax, ENTRY_STATE);
    asm.bind(no_entry);
    asm.lea(Reg::Rdi, Reg::Rbx, 16);
    asm.mov_imm64(Reg::Rdx, env.private.0);
    call(&mut asm, env.agent_return);
    asm.store(Reg::Rbx, 16 + FRAME, Reg::Rax);
    restore(&mut asm, env);
    asm.lea(Reg::Rsp, Reg::Rsp, 8);
    asm.jmp_mem_rsp(-8);
    asm.align(16);

    // The kernel calls this with (sig, info, context) in rdi, rsi, rdx; the agent wants its memory first.
    let sigtrap = asm.here();
    asm.mov(Reg::Rcx, Reg::Rdx);
    asm.mov(Reg::Rdx, Reg::Rsi);
    asm.mov(Reg::Rsi, Reg::Rdi);
    asm.mov_imm64(Reg::Rdi, env.private.0);
    asm.mov_imm64(Reg::Rax, env.agent_sigtrap.0);
    asm.raw(&[0xff, 0xe0]); // jmp *%rax: a tail call
    asm.align(16);

    let restorer = asm.here();
    asm.syscall(15); // rt_sigreturn
    asm.align(16);
    (asm.finish(), Globals { trampoline, sigtrap, restorer })
}
