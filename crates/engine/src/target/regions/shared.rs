//! The shared region, from nothing to a header that any controller finds.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use sidestep_isa::{Len, Va};
use sidestep_sys::{HAND_OVER_LEN, Mapping, Stopped};
use sidestep_wire::header::{MAGIC, MEMFD_NAME, VERSION};

use crate::error::SessionError;
use crate::memory::layout::Layout;
use crate::memory::raw::bytes_of;
use crate::memory::view::View;
use crate::target::discovery::MEMFD_LINK;
use crate::target::regions::Head;
use crate::target::remote::{Remote, mappings, stopped_mappings, used};
use crate::target::space;

/// A place for a few bytes below all stack pointers and red zones: the low end of the main thread's
/// stack.
fn unused_stack(stopped: &Stopped) -> Option<Va> {
    const FAR: u64 = 256;
    let maps = stopped.maps().ok()?;
    let stack = maps.iter().find(|m| m.name == *"[stack]")?;
    let used = stopped.threads().iter().map(|t| t.regs.sp()).filter(|sp| stack.contains(*sp)).min();
    used.is_none_or(|sp| sp.0 - stack.start.0 > FAR).then_some(stack.start)
}

/// Maps the shared region, whose header then says what any controller needs to find the list of
/// mappings. If the session has processes already, their `common` memory becomes the end of it.
/// Gives a view of that end, too: of all of it, where the process maps only a `part`.
pub(super) fn map_shared(
    stopped: &mut Stopped,
    (layout, part): (&Layout, &Layout),
    common: Option<&Arc<View>>,
) -> Result<(Head, Arc<View>), SessionError> {
    let pid = stopped.process().pid();
    let name = [MEMFD_NAME.as_bytes(), &[0]].concat();
    let at = unused_stack(stopped).ok_or(SessionError::NoStack { pid })?;
    let mut old = vec![0; name.len().max(HAND_OVER_LEN)];
    stopped.read(at, &mut old)?;
    let mut opened = Vec::new();
    let made = open(stopped, common, at, &name, &mut opened);
    stopped.write(at, &old)?;
    let mapped = made.and_then(|fds| map(stopped, (layout, part), &fds));
    opened.iter().try_for_each(|fd| Remote(stopped).close(*fd))?;
    let (shared_va, (head_view, new)) = mapped?;
    let common = new.map(Arc::new).or_else(|| common.cloned()).ok_or(SessionError::Exchanged { pid })?;
    let parts = [(0, &head_view), (layout.common_off, &*common)];
    if let Err(error) = is_mapped(stopped, shared_va, &parts) {
        Remote(stopped).unmap(shared_va, Len(part.shared_len))?;
        return Err(error);
    }
    let head = Head { process: stopped.process().clone(), at: shared_va };
    head.set_u32(at!(version), VERSION)?;
    head.set_u32(at!(controller_pid), std::process::id())?;
    head.set_u32(at!(target_pid), pid as u32)?;
    head.set_u64(at!(controller_start), sidestep_sys::start_time_of(std::process::id() as i32).unwrap_or(0))?;
    head.set_u64(at!(total_len), part.shared_len)?;
    head.set_u64(at!(shared_va), shared_va.0)?;
    head.write(at!(layout), bytes_of(&part.shared()))?;
    head.set_u64(at!(magic), MAGIC)?;
    Ok((head, common))
}

/// Descriptors in the target.
struct Descriptors {
    /// Of a new file, for the head.
    head: i32,
    /// Of what the processes of the session share.
    common: i32,
    /// Is that new?
    is_new: bool,
}

/// Opens all of them in the target, with `name` and what is handed over at `at`. `opened`: those
/// that have to be closed, also after an error.
fn open(
    stopped: &mut Stopped,
    common: Option<&Arc<View>>,
    at: Va,
    name: &[u8],
    opened: &mut Vec<i32>,
) -> Result<Descriptors, SessionError> {
    let theirs = common.and_then(|view| view.file()).map(|file| stopped.hand_over(file, at)).transpose()?;
    opened.extend(theirs);
    stopped.write(at, name)?;
    // The head has a file of its own: whoever has what is shared mapped can map all of that file.
    let head = Remote(stopped).memfd(at)?;
    opened.push(head);
    if let Some(common) = theirs {
        return Ok(Descriptors { head, common, is_new: false });
    }
    let common = Remote(stopped).memfd(at)?;
    opened.push(common);
    Ok(Descriptors { head, common, is_new: true })
}

/// Maps both, one over the start of the other: where that is, with views of the new files.
fn map(
    stopped: &mut Stopped,
    (layout, part): (&Layout, &Layout),
    fds: &Descriptors,
) -> Result<(Va, (View, Option<View>)), SessionError> {
    let pid = stopped.process().pid();
    let aside = space::aside(&used(&stopped_mappings(stopped)?), Len(part.shared_len));
    // Without a header no controller would find the mapping: it is made when there is room for one.
    let head = View::from_target_fd(pid, fds.head, layout.common_off)?;
    let new = fds.is_new.then(|| View::from_target_fd(pid, fds.common, layout.shared_len)).transpose()?;
    let mut remote = Remote(stopped);
    let at = remote.map_shared(aside, fds.common, Len(part.shared_len))?;
    if let Err(error) = remote.map_head(at, fds.head, Len(layout.common_off)) {
        remote.unmap(at, Len(part.shared_len))?;
        return Err(error.into());
    }
    Ok((at, (head, new)))
}

/// Is this what the controller has, at these offsets? A process with the target's table of
/// descriptors may have put another file in the place of the one that was to be mapped.
fn is_mapped(stopped: &Stopped, at: Va, parts: &[(u64, &View)]) -> Result<(), SessionError> {
    let maps = mappings(stopped.process())?;
    for (offset, view) in parts {
        let Some(file) = view.file() else { continue };
        let inode = file.metadata().map_err(|source| SessionError::Watch { source })?.ino();
        let there = maps.iter().find(|m| m.contains(Va(at.0 + offset)));
        let is_it = |m: &&Mapping| m.inode == inode && m.name.to_string_lossy().starts_with(MEMFD_LINK);
        if there.filter(is_it).is_none() {
            return Err(SessionError::Exchanged { pid: stopped.process().pid() });
        }
    }
    Ok(())
}
