//! Where a remote call finds what it needs in the target: room for the frame, and the instructions.

use sidestep_isa::{Len, Va};

use crate::arch::{GADGET_CODE, Gadgets, Regs, Word, is_frame};
use crate::process::Process;
use crate::procfs::Mapping;

/// Left free below the frame, for a signal handler's own frame should we die while the thread
/// stands there.
const BELOW: u64 = 4096;
/// Distance kept from every stack pointer: more than any red zone or guard, and callees have not
/// been there lately.
const FROM_SP: u64 = 16 * 1024;
/// The red zone, and as much again.
const BEHIND_RED_ZONE: u64 = 256;
/// Places tried on one stack, and their distance: something else may be in the way.
const PLACES: u64 = 4;
const APART: u64 = 24 * 1024;
/// How far above a stack pointer the frame of a signal handler is looked for. Alternate stacks are
/// smaller.
const HANDLER: usize = 256 * 1024;
/// The end of a mapping must have this many zero bytes before our own gadgets go there.
const PADDING: usize = 64;

/// An address for `len` bytes of frame, aligned to 64. The low end of a thread's stack is used,
/// which nobody has reached if it is far from all stack pointers or still all zero. Just below a
/// stack pointer only if there is nothing else, and only on the main stack, which grows: a
/// goroutine's stack is tiny and its neighbour is the heap.
pub fn for_frame(process: &Process, maps: &[Mapping], threads: &[Regs], len: usize) -> Option<Va> {
    let main = maps.iter().filter(|m| is_main_stack(m));
    let others = maps.windows(2).filter(|w| is_guarded(&w[0], &w[1])).map(|w| &w[1]);
    let low_ends = main.chain(others).flat_map(|m| (0..PLACES).map(move |i| (m, i * APART))).find_map(|(m, offset)| {
        let frame = Va((m.start.0 + BELOW + offset).next_multiple_of(64));
        let end = frame.offset(len as i64);
        if end > m.end {
            return None;
        }
        let is_free = if is_frame(process, frame) {
            !is_awaited(process, maps, threads, frame)
        } else {
            let lowest = threads.iter().map(Regs::sp).filter(|sp| m.contains(*sp)).min();
            let far = lowest.is_some_and(|sp| sp.0 >= end.0 + FROM_SP);
            far || is_zero(process, frame, len)
        };
        is_free.then_some(frame)
    });
    low_ends.or_else(|| {
        let main = maps.iter().find(|m| is_main_stack(m))?;
        let lowest = threads.iter().map(Regs::sp).filter(|sp| main.contains(*sp)).min()?;
        let frame = Va(lowest.0.checked_sub(BEHIND_RED_ZONE + len as u64)? & !63);
        (frame >= main.start).then_some(frame)
    })
}

/// Will a thread return through the frame at `frame`, which a dead controller has left? Threads on
/// such a frame return before the stop is complete. But a signal handler may have interrupted one
/// of them: then the handler's own frame, above the stack pointer, has the address.
fn is_awaited(process: &Process, maps: &[Mapping], threads: &[Regs], frame: Va) -> bool {
    const WORD: usize = size_of::<Word>();
    let addresses = [frame, frame.offset(WORD as i64)].map(|at| at.0 as Word);
    threads.iter().map(Regs::sp).any(|sp| {
        let end = maps.iter().find(|m| m.contains(sp)).map_or(sp, |m| m.end);
        let mut stack = vec![0; HANDLER.min((end.0 - sp.0) as usize)];
        addresses.contains(&(sp.0 as Word))
            || process.read(sp, &mut stack).is_err()
            || stack.chunks_exact(WORD).any(|word| addresses.iter().any(|a| a.to_ne_bytes() == *word))
    })
}

fn is_main_stack(m: &Mapping) -> bool {
    m.name == "[stack]"
}

/// Is `m` a private anonymous mapping right above a guard, as thread libraries make their stacks?
fn is_guarded(guard: &Mapping, m: &Mapping) -> bool {
    let is_guard = !guard.read && !guard.write && !guard.exec && guard.name.is_empty();
    is_guard && guard.end == m.start && m.name.is_empty() && m.read && m.write && !m.exec
}

fn is_zero(process: &Process, at: Va, len: usize) -> bool {
    let mut buf = vec![0xff; len];
    process.read(at, &mut buf).is_ok() && buf.iter().all(|b| *b == 0)
}

/// Are the gadgets of last time still there?
pub fn has_gadgets(process: &Process) -> bool {
    process.gadgets().get().is_some_and(|g| g.check(process))
}

/// The gadgets of the target: those of last time, or any in its code.
pub fn gadgets(process: &Process, maps: &[Mapping]) -> Option<Gadgets> {
    if let Some(g) = process.gadgets().get().filter(|g| g.check(process)) {
        return Some(g);
    }
    let found = search(process, maps);
    process.gadgets().set(found);
    found
}

fn search(process: &Process, maps: &[Mapping]) -> Option<Gadgets> {
    const CHUNK: u64 = 256 * 1024;
    /// So that a pattern across two chunks is seen.
    const OVERLAP: u64 = 16;
    let mut found = (None, None);
    let mut buf = vec![0; (CHUNK + OVERLAP) as usize];
    // C libraries first: they have both, and are small.
    let c_library = |m: &Mapping| {
        let name = m.name.to_string_lossy();
        name.contains("/libc.") || name.contains("/libc-") || name.contains("/ld-")
    };
    // And what belongs to no file last: it may go, or become other code.
    let rank = |m: &Mapping| (m.name.is_empty(), !c_library(m));
    let mut code: Vec<&Mapping> = maps.iter().filter(|m| m.exec && m.read && !process.is_leaving(m)).collect();
    code.sort_by_key(|m| rank(m));
    for m in code {
        let mut at = m.start;
        while at < m.end {
            let len = (m.end.0 - at.0).min(CHUNK + OVERLAP);
            let Some(chunk) = buf.get_mut(..len as usize) else {
                break;
            };
            if process.read(at, chunk).is_ok() {
                Gadgets::search(&mut found, at, chunk);
            }
            if let (Some(syscall_ret), Some(sigreturn)) = found {
                return Some(Gadgets { syscall_ret, sigreturn });
            }
            at = at.plus(Len(CHUNK));
        }
    }
    None
}

/// A place for [`GADGET_CODE`] in the zero padding behind the last code of an executable mapping.
/// The vdso has some in every process. The page is private to the process when written.
pub fn for_gadgets(process: &Process, maps: &[Mapping]) -> Option<Va> {
    let vdso_first = |m: &&Mapping| m.name != "[vdso]";
    let mut code: Vec<&Mapping> = maps.iter().filter(|m| m.exec && m.read).collect();
    code.sort_by_key(vdso_first);
    code.iter().map(|m| m.end.offset(-(PADDING as i64))).find_map(|at| {
        let place = at.offset((PADDING - GADGET_CODE.len().next_multiple_of(16)) as i64);
        is_zero(process, at, PADDING).then_some(place)
    })
}
