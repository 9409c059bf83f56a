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
/// Gives a view of that end, too.
pub(super) fn map_shared(
    stopped: &mut Stopped,
    layout: &Layout,
    common: Option<&Arc<View>>,
) -> Result<(Head, Arc<View>), SessionError> {
    let pid = stopped.process().pid();
    let name = [MEMFD_NAME.as_bytes(), &[0]].concat();
    let at = unused_stack(stopped).ok_or(SessionError::NoStack { pid })?;
    let mut old = vec![0; name.len().max(HAND_OVER_LEN)];
    stopped.read(at, &mut old)?;
    let theirs = common.and_then(|view| view.file()).map(|file| stopped.hand_over(file, at)).transpose();
    let made = stopped.write(at, &name).map_err(SessionError::from).and_then(|()| {
        let mut remote = Remote(stopped);
        // The head has a file of its own: whoever has what is shared mapped can map all of that
        // file.
        let head = remote.memfd(at)?;
        let new = matches!(theirs, Ok(None)).then(|| remote.memfd(at)).transpose();
        if new.is_err() {
            remote.close(head)?;
        }
        Ok((head, new?))
    });
    stopped.write(at, &old)?;
    let (theirs, (head_fd, new)) = (theirs?, made?);
    let common_fd = new.or(theirs).unwrap_or(head_fd);
    let aside = space::aside(&used(&stopped_mappings(stopped)?), Len(layout.shared_len));
    let view = |fd, len| View::from_target_fd(pid, fd, len).map_err(SessionError::from);
    let views = view(head_fd, layout.common_off)
        .and_then(|head| Ok((head, new.map(|fd| view(fd, layout.shared_len)).transpose()?)));
    let mut remote = Remote(stopped);
    // Without a header no controller would find the mapping: it is made when there is room for one.
    let mapped = views.and_then(|views| Ok((remote.map_shared(aside, common_fd, Len(layout.shared_len))?, views)));
    let over = mapped.as_ref().map_or(Ok(()), |(at, _)| remote.map_head(*at, head_fd, Len(layout.common_off)));
    remote.close(head_fd)?;
    new.or(theirs).map_or(Ok(()), |fd| remote.close(fd))?;
    let (shared_va, (head_view, new)) = mapped?;
    let common = new.map(Arc::new).or_else(|| common.cloned()).ok_or(SessionError::Exchanged { pid })?;
    let parts = [(0, &head_view), (layout.common_off, &*common)];
    let checked = over.map_err(SessionError::from).and_then(|()| is_mapped(stopped, shared_va, &parts));
    if let Err(error) = checked {
        Remote(stopped).unmap(shared_va, Len(layout.shared_len))?;
        return Err(error);
    }
    let head = Head { process: stopped.process().clone(), at: shared_va };
    head.set_u32(at!(version), VERSION)?;
    head.set_u32(at!(controller_pid), std::process::id())?;
    head.set_u32(at!(target_pid), pid as u32)?;
    head.set_u64(at!(controller_start), sidestep_sys::start_time_of(std::process::id() as i32).unwrap_or(0))?;
    head.set_u64(at!(total_len), layout.shared_len)?;
    head.set_u64(at!(shared_va), shared_va.0)?;
    head.write(at!(layout), bytes_of(&layout.shared()))?;
    head.set_u64(at!(magic), MAGIC)?;
    Ok((head, common))
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
