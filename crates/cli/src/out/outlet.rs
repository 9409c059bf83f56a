//! Output of a command that has a target: written by a thread of its own, so that nobody who does
//! not read it (a stopped pager, a full pipe, a terminal after Ctrl-S) keeps the target attached.
//!
//! What is written is queued in order. While one stream is blocked, lines of the other may overtake
//! it. A command asks [`is_full`] before it makes more, and leaves its records where they are
//! lost and counted.

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::signals::{self, Signals};

/// So many bytes wait at most before nothing is added to them.
const FULL: usize = 256 << 10;
/// A pipe that can be written to takes so many bytes at once (`PIPE_BUF`, pipe(7)).
const ROOM: usize = 4096;
/// How long the thread waits for a stream that is blocked before it looks for new lines of the
/// other.
const PATIENCE_MS: i32 = 20;
/// After a signal, what is still to be read is given up after this time.
const LAST: Duration = Duration::from_millis(200);

/// The thread's work; `None`: there is no thread, and whoever writes waits.
static QUEUE: Mutex<Option<Arc<Queue>>> = Mutex::new(None);

struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What is written, in order.
    pieces: VecDeque<Piece>,
    bytes: usize,
    /// A signal has said that nobody waits for the rest.
    given_up: bool,
}

/// Bytes on their way.
struct Piece {
    to: Arc<Stream>,
    bytes: Vec<u8>,
    written: usize,
}

/// Something that is written to.
struct Stream {
    file: File,
    error: Mutex<Option<io::Error>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that never blocks its writer while there is a thread.
pub struct Outlet(Arc<Stream>);

impl Outlet {
    /// Of a descriptor, whose offset and flags it shares.
    ///
    /// # Errors
    /// There is no room for another descriptor.
    pub fn of(fd: impl AsFd) -> io::Result<Outlet> {
        Ok(Outlet::file(File::from(fd.as_fd().try_clone_to_owned()?)))
    }

    /// Stderr, always the same one.
    pub fn stderr() -> Option<Outlet> {
        static STDERR: OnceLock<Option<Arc<Stream>>> = OnceLock::new();
        STDERR.get_or_init(|| Outlet::of(io::stderr()).ok().map(|outlet| outlet.0)).clone().map(Outlet)
    }

    /// Of a file.
    pub fn file(file: File) -> Outlet {
        Outlet(Arc::new(Stream { file, error: Mutex::new(None) }))
    }
}

impl Write for Outlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(error) = locked(&self.0.error).take() {
            return Err(error);
        }
        let Some(queue) = locked(&QUEUE).clone() else {
            return (&self.0.file).write(bytes);
        };
        let mut state = locked(&queue.state);
        state.bytes += bytes.len();
        state.pieces.push_back(Piece { to: self.0.clone(), bytes: bytes.to_vec(), written: 0 });
        queue.changed.notify_all();
        Ok(bytes.len())
    }

    /// Nothing is waited for; tells what went wrong with what was written before.
    fn flush(&mut self) -> io::Result<()> {
        locked(&self.0.error).take().map_or(Ok(()), Err)
    }
}

/// From now on a thread writes.
///
/// # Errors
/// There is no room for a thread.
pub fn start() -> io::Result<()> {
    let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
    let own = queue.clone();
    let builder = std::thread::Builder::new().name("output".to_owned());
    signals::blocked(|| builder.spawn(move || own.work()))?;
    *locked(&QUEUE) = Some(queue);
    Ok(())
}

/// The user has given up what was to be printed.
#[derive(Debug)]
pub struct GivenUp;

impl fmt::Display for GivenUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("given up at the second signal")
    }
}

impl std::error::Error for GivenUp {}

/// Is this what [`is_wanted`] has said?
pub fn is_given_up(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<GivenUp>())
}

/// Does anybody want results? The first signal asks for the end, the second one for no results.
///
/// # Errors
/// [`GivenUp`].
pub fn is_wanted() -> io::Result<()> {
    if sidestep_engine::interrupts() < 2 {
        return Ok(());
    }
    give_up();
    Err(io::Error::other(GivenUp))
}

/// Nobody waits for the rest.
fn give_up() {
    if let Some(queue) = &*locked(&QUEUE) {
        locked(&queue.state).given_up = true;
    }
}

/// Is there so much to be read that nothing should be added?
pub fn is_full() -> bool {
    locked(&QUEUE).as_ref().is_some_and(|queue| locked(&queue.state).bytes > FULL)
}

/// Waits until all is written, or a signal says that nobody wants to wait. False: it is not.
pub fn drain(signals: &Signals) -> bool {
    while !wait(Duration::from_millis(10)) {
        if signals.wait(Duration::ZERO).is_some() {
            give_up();
            return false;
        }
    }
    true
}

/// The end of the program: the rest is written as well, unless nobody waits for it. No target is
/// attached any more, so signals end it as they end any program.
pub fn end() {
    if locked(&QUEUE).as_ref().is_some_and(|queue| locked(&queue.state).given_up) {
        wait(LAST);
        return;
    }
    signals::give_back();
    while !wait(LAST) {}
}

/// Is all written within this time?
fn wait(limit: Duration) -> bool {
    let Some(queue) = locked(&QUEUE).clone() else { return true };
    let end = Instant::now() + limit;
    let mut state = locked(&queue.state);
    while state.bytes > 0 {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        state = queue.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
    }
    true
}

impl Queue {
    fn work(&self) {
        loop {
            let mut state = locked(&self.state);
            while state.pieces.is_empty() {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            // The first piece of each stream.
            let mut heads: Vec<Arc<Stream>> = Vec::new();
            for piece in &state.pieces {
                if !heads.iter().any(|head| Arc::ptr_eq(head, &piece.to)) {
                    heads.push(piece.to.clone());
                }
            }
            drop(state);
            let files: Vec<&File> = heads.iter().map(|head| &head.file).collect();
            if let Some(ready) = signals::first_writable(&files, PATIENCE_MS) {
                self.write_to(&heads[ready]);
            }
        }
    }

    /// Writes what is first for a stream, as much as it has room for.
    fn write_to(&self, stream: &Arc<Stream>) {
        let mut state = locked(&self.state);
        let Some(index) = state.pieces.iter().position(|piece| Arc::ptr_eq(&piece.to, stream)) else { return };
        let piece = &state.pieces[index];
        let bytes: Vec<u8> = piece.bytes.iter().skip(piece.written).take(ROOM).copied().collect();
        drop(state);
        let written = (&stream.file).write(&bytes);
        state = locked(&self.state);
        // Only this thread takes pieces away, so it is where it was.
        let Some(piece) = state.pieces.get_mut(index) else { return };
        let count = match written {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => 0,
            Err(error) => {
                // Nobody will read the rest of it.
                locked(&stream.error).get_or_insert(error);
                piece.bytes.len() - piece.written
            }
        };
        piece.written += count;
        if piece.written == piece.bytes.len() {
            state.pieces.remove(index);
        }
        state.bytes -= count;
        self.changed.notify_all();
    }
}
