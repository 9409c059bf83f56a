//! What is to be probed, and what happens there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use sidestep_engine::pattern;

use crate::context::{Callback, Context, Handler, run};
use crate::error::Error;
use crate::order::{Does, Function, Place, Wanted};
use crate::original::Original;

/// A probe that is to be registered. At first it only counts hits.
pub struct Probe {
    pub(crate) place: Place,
    pub(crate) does: Does,
    /// Closures among its handlers.
    pub(crate) handlers: Vec<Handler>,
}

impl Probe {
    /// At all places that `[OBJECT:]FUNC` means, in the words of the command line: OBJECT is a path
    /// or a library's short name; FUNC is a name, a glob, `symbol+0xOFF`, `symbol+*`, `0xADDR`, an
    /// address in the file, or `0xADDR+*`. Or `usdt:OBJECT:PROVIDER:NAME`.
    ///
    /// # Errors
    /// It does not parse.
    pub fn at(place: &str) -> Result<Probe, Error> {
        pattern::place(place, false).map_err(|message| Error::Place { message })?;
        Ok(Probe::new(Place::Text(place.to_owned())))
    }

    /// At a function of this process, or at any instruction of it, by its address.
    ///
    /// # Errors
    /// There is no mapped file.
    pub fn function(address: *const ()) -> Result<Probe, Error> {
        let address = address as usize;
        let failed = |source| Error::Own { what: "read the mappings of this process", source };
        let maps = fs::read("/proc/self/maps").map_err(failed)?;
        let place = maps.split(|byte| *byte == b'\n').find_map(|line| file_at(line, address));
        let (path, offset) = place.ok_or(Error::NoCode { address })?;
        Ok(Probe::new(Place::File(path, offset)))
    }

    fn new(place: Place) -> Probe {
        Probe { place, does: Does::Programs(None, None), handlers: Vec::new() }
    }

    /// Runs eBPF programs of the session's bundle, by their index, at the entry and at the return.
    #[must_use]
    pub fn programs(mut self, entry: Option<usize>, exit: Option<usize>) -> Probe {
        let index = |program: usize| u32::try_from(program).unwrap_or(u32::MAX);
        self.does = Does::Programs(entry.map(index), exit.map(index));
        self
    }

    /// Runs a handler before the probed instruction; at a function, when it is called.
    ///
    /// # Safety
    /// The handler keeps the contract in the crate's documentation, and what it changes is right
    /// for the probed code.
    #[must_use]
    #[allow(unsafe_code, reason = "the handler runs anywhere, and changes registers")]
    pub unsafe fn on_entry(mut self, handler: impl Fn(&mut Context) + Send + Sync + 'static) -> Probe {
        let function = self.keep(Handler::new(handler));
        self.set(Some(function), None)
    }

    /// Runs a handler when the function returns.
    ///
    /// # Safety
    /// As for [`Probe::on_entry`].
    #[must_use]
    #[allow(unsafe_code, reason = "the handler runs anywhere, and changes registers")]
    pub unsafe fn on_return(mut self, handler: impl Fn(&mut Context) + Send + Sync + 'static) -> Probe {
        let function = self.keep(Handler::new(handler));
        self.set(None, Some(function))
    }

    /// As [`Probe::on_entry`] and [`Probe::on_return`], with functions of the C ABI, which are
    /// called as they are: `errno` is theirs to keep. `general_only`: they use general registers
    /// only, and the others need not be saved.
    ///
    /// # Safety
    /// As for [`Probe::on_entry`]; each `data` is what its function expects, for as long as the
    /// session lasts.
    #[must_use]
    #[allow(unsafe_code, reason = "the handler runs anywhere, and changes registers")]
    pub unsafe fn callbacks(
        self,
        entry: Option<(Callback, usize)>,
        exit: Option<(Callback, usize)>,
        general_only: bool,
    ) -> Probe {
        let function = |(callback, data): (Callback, usize)| Function {
            address: callback as *const () as u64,
            data: data as u64,
            general_only,
        };
        self.set(entry.map(function), exit.map(function))
    }

    /// Runs another function instead, with the arguments and the stack of the call; it can call the
    /// original.
    ///
    /// # Safety
    /// `replacement` is a function of the original's type that may be called wherever that is.
    #[must_use]
    #[allow(unsafe_code, reason = "another function runs")]
    pub unsafe fn replace(mut self, replacement: *const (), original: &Original) -> Probe {
        self.does = Does::Replace(replacement as u64, original.word());
        self
    }

    fn keep(&mut self, handler: Handler) -> Function {
        let data = handler.data();
        self.handlers.push(handler);
        Function { address: run as *const () as u64, data, general_only: false }
    }

    fn set(mut self, entry: Option<Function>, exit: Option<Function>) -> Probe {
        let (old_entry, old_exit) = match self.does {
            Does::Functions(entry, exit) => (entry, exit),
            Does::Programs(..) | Does::Replace(..) => (None, None),
        };
        self.does = Does::Functions(entry.or(old_entry), exit.or(old_exit));
        self
    }

    /// It has code of this process.
    pub(crate) fn is_native(&self) -> bool {
        !matches!(self.does, Does::Programs(..))
    }

    pub(crate) fn wanted(&self) -> Wanted {
        Wanted { place: self.place.clone(), does: self.does.clone() }
    }
}

/// The file that a line of `/proc/self/maps` is about, and the offset in it, if the address is
/// there.
fn file_at(line: &[u8], address: usize) -> Option<(PathBuf, u64)> {
    // START-END PERMS OFFSET DEVICE INODE      PATH
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let (start, end) = field()?.split_once('-')?;
    let hex = |text: &str| usize::from_str_radix(text, 16).ok();
    let (start, end) = (hex(start)?, hex(end)?);
    let offset = hex({
        field()?;
        field()?
    })?;
    let path = fields.nth(2)?.trim_ascii_start();
    let is_there = (start..end).contains(&address) && path.first() == Some(&b'/');
    is_there.then(|| (OsStr::from_bytes(path).into(), (address - start + offset) as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_maps_is_a_file_with_an_offset() {
        let line = b"7f001000-7f003000 r-xp 00026000 fe:00 1234                       /usr/lib/a b.so";
        assert_eq!(file_at(line, 0x7f00_1abc), Some((PathBuf::from("/usr/lib/a b.so"), 0x26abc)));
        assert_eq!(file_at(line, 0x7f00_3000), None);
        assert_eq!(
            file_at(b"7ffd0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]", 0x7ffd_0000),
            None
        );
        assert_eq!(file_at(b"", 0), None);
    }

    #[test]
    fn a_function_is_where_the_process_has_it() {
        let probe = Probe::function(a_function_is_where_the_process_has_it as *const ()).unwrap();
        let Place::File(path, _) = probe.place else { panic!("a file") };
        assert_eq!(path, std::env::current_exe().unwrap());
        assert!(matches!(Probe::function(std::ptr::null()), Err(Error::NoCode { address: 0 })));
    }
}
