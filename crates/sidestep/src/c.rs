//! The same for C: `include/sidestep.h` says what each function does.
#![allow(unsafe_code, reason = "pointers of C")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use sidestep_engine::Options;

use crate::context::{Callback, Context};
use crate::error::Error;
use crate::order::{Ended, Listed, State};
use crate::original::Original;
use crate::probe::Probe;
use crate::session::{Builder, Registration, Session};

const EINVAL: c_int = -1;
const EREFUSED: c_int = -2;
const EGONE: c_int = -3;
const ESYSTEM: c_int = -4;
const GENERAL_ONLY: c_uint = 1;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps an error for [`sidestep_error`], and gives its number.
fn failed(error: &Error) -> c_int {
    let text = CString::new(error.to_string().replace('\0', " ")).unwrap_or_default();
    ERROR.with(|last| *last.borrow_mut() = text);
    match error {
        Error::Place { .. } | Error::NoCode { .. } | Error::NoRegistration { .. } | Error::NotOwn => EINVAL,
        Error::Engine { .. } => EREFUSED,
        Error::Forked | Error::ControllerGone => EGONE,
        Error::Own { .. } => ESYSTEM,
    }
}

fn number(result: Result<c_int, Error>) -> c_int {
    result.unwrap_or_else(|error| failed(&error))
}

fn invalid(message: &str) -> Error {
    Error::Place { message: message.to_owned() }
}

/// `struct sidestep_probe`.
#[repr(C)]
pub struct CProbe {
    place: *const c_char,
    address: *const c_void,
    on_entry: Option<Callback>,
    on_return: Option<Callback>,
    data: *mut c_void,
    replacement: *const c_void,
    original: *mut *mut c_void,
    flags: c_uint,
}

/// `struct sidestep_info`.
#[repr(C)]
pub struct CInfo {
    registration: c_int,
    state: c_int,
    optimized: c_int,
    reserved: c_int,
    address: u64,
    hits: u64,
    missed: u64,
    technique: [c_char; 32],
    name: [c_char; 256],
    object: [c_char; 256],
}

impl CProbe {
    /// # Safety
    /// What is not null is what `sidestep.h` says: texts of C, functions of these signatures that
    /// stay, and a word for the original.
    unsafe fn probe(&self) -> Result<Probe, Error> {
        // SAFETY: the caller promises that a place is null or a text of C, as `sidestep.h` says.
        let probe = match unsafe { self.place.as_ref().map(|place| CStr::from_ptr(place)) } {
            Some(place) => Probe::at(place.to_str().map_err(|_| invalid("the place is not UTF-8"))?)?,
            None if self.address.is_null() => return Err(invalid("a probe needs a place or an address")),
            None => Probe::function(self.address.cast())?,
        };
        let handlers = self.on_entry.is_some() || self.on_return.is_some();
        if !self.replacement.is_null() {
            if handlers || self.original.is_null() {
                return Err(invalid("a replacement needs a word for the original, and has no handlers"));
            }
            let original = Original::new()?;
            // SAFETY: the caller promises that the pointers are to a function of the same signature
            // and to a word. The replacement runs later, and reads what is written here.
            return unsafe {
                *self.original = original.address().cast_mut().cast();
                Ok(probe.replace(self.replacement.cast(), &original))
            };
        }
        let data = self.data as usize;
        if self.flags & GENERAL_ONLY != 0 {
            let with_data = |callback| (callback, data);
            // SAFETY: the caller promises that the callbacks are functions as in `sidestep.h`, and
            // stay.
            return Ok(unsafe { probe.callbacks(self.on_entry.map(with_data), self.on_return.map(with_data), true) });
        }
        let closure = |callback: Callback| {
            // SAFETY: the callback is a function as in `sidestep.h`, by the promise of the caller
            // of `probe`. The context lives during the call.
            move |context: &mut Context| unsafe { callback(context, data as *mut c_void) }
        };
        let probe = match self.on_entry {
            // SAFETY: the caller promises that the callback is a function that stays.
            Some(callback) => unsafe { probe.on_entry(closure(callback)) },
            None => probe,
        };
        Ok(match self.on_return {
            // SAFETY: the caller promises that the callback is a function that stays.
            Some(callback) => unsafe { probe.on_return(closure(callback)) },
            None => probe,
        })
    }
}

/// # Safety
/// There are `count` probes.
unsafe fn probes(probes: *const CProbe, count: usize) -> Result<Vec<Probe>, Error> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if probes.is_null() {
        return Err(invalid("there are no probes"));
    }
    // SAFETY: the caller promises `count` probes there, each as `sidestep.h` says.
    unsafe { std::slice::from_raw_parts(probes, count).iter().map(|probe| probe.probe()).collect() }
}

/// # Safety
/// A session, or null.
unsafe fn session<'a>(session: *const Session) -> Result<&'a Session, Error> {
    // SAFETY: the caller promises a session or null.
    unsafe { session.as_ref().ok_or_else(|| invalid("there is no session")) }
}

fn start(builder: Result<Builder, Error>) -> *mut Session {
    match builder.and_then(Builder::start) {
        Ok(session) => Box::into_raw(Box::new(session)),
        Err(error) => {
            failed(&error);
            ptr::null_mut()
        }
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn sidestep_own() -> *mut Session {
    start(Ok(Session::own()))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn sidestep_attach(pid: libc::pid_t) -> *mut Session {
    start(Ok(Session::attach(pid)))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn sidestep_own_live() -> *mut Session {
    start(Ok(Session::own().options(live())))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn sidestep_attach_live(pid: libc::pid_t) -> *mut Session {
    start(Ok(Session::attach(pid).options(live())))
}

fn live() -> Options {
    Options { live: true, ..Options::default() }
}

/// See the header.
///
/// # Safety
/// `argv` holds texts of C and ends with null; there are `count` probes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_spawn(
    argv: *const *const c_char,
    wanted: *const CProbe,
    count: usize,
) -> *mut Session {
    let command = || {
        if argv.is_null() {
            return Err(invalid("there is no command"));
        }
        let mut words = Vec::new();
        // SAFETY: the caller promises that `argv` ends with null, and the loop ends there.
        while let Some(word) = unsafe { (*argv.add(words.len())).as_ref() } {
            // SAFETY: the caller promises that each word of `argv` is a text of C.
            words.push(OsStr::from_bytes(unsafe { CStr::from_ptr(word) }.to_bytes()));
        }
        // SAFETY: the caller promises `count` probes.
        let probes = unsafe { probes(wanted, count) }?;
        Ok(probes.into_iter().fold(Session::command(words), Builder::probe))
    };
    start(command())
}

/// See the header.
///
/// # Safety
/// It is a session, and there are `count` probes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_register(this: *mut Session, wanted: *const CProbe, count: usize) -> c_int {
    // SAFETY: the caller promises a session and `count` probes.
    let registered = unsafe { session(this).and_then(|session| session.register_all(probes(wanted, count)?)) };
    let first = registered.and_then(|all| all.first().copied().ok_or_else(|| invalid("there are no probes")));
    number(first.map(|first| first.0 as c_int))
}

/// # Safety
/// A session, or null.
unsafe fn switch(this: *mut Session, id: c_int, how: fn(&Session, Registration) -> Result<(), Error>) -> c_int {
    // No session has so many.
    let id = u32::try_from(id).unwrap_or(u32::MAX);
    // SAFETY: the caller promises a session or null.
    number(unsafe { session(this) }.and_then(|session| how(session, Registration(id))).map(|()| 0))
}

/// See the header.
///
/// # Safety
/// It is a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_enable(this: *mut Session, registration: c_int) -> c_int {
    // SAFETY: the caller promises a session.
    unsafe { switch(this, registration, Session::enable) }
}

/// See the header.
///
/// # Safety
/// It is a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_disable(this: *mut Session, registration: c_int) -> c_int {
    // SAFETY: the caller promises a session.
    unsafe { switch(this, registration, Session::disable) }
}

/// See the header.
///
/// # Safety
/// It is a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_optimize(this: *mut Session, registration: c_int, on: c_int) -> c_int {
    let how = if on == 0 { |s: &Session, id| s.optimize(id, false) } else { |s: &Session, id| s.optimize(id, true) };
    // SAFETY: the caller promises a session.
    unsafe { switch(this, registration, how) }
}

/// See the header.
///
/// # Safety
/// It is a session.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_unregister(this: *mut Session, registration: c_int) -> c_int {
    // SAFETY: the caller promises a session.
    unsafe { switch(this, registration, Session::unregister) }
}

/// See the header.
///
/// # Safety
/// It is a session, and there is room for `room` entries at `infos`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_list(this: *mut Session, infos: *mut CInfo, room: usize) -> c_int {
    // SAFETY: the caller promises a session.
    let list = unsafe { session(this) }.and_then(Session::list);
    number(list.map(|list| {
        for (i, probe) in list.iter().take(room).enumerate() {
            // SAFETY: the caller promises `room` entries at `infos`, and `i` is below `room`.
            unsafe { infos.add(i).write(info(probe)) };
        }
        list.len() as c_int
    }))
}

fn info(probe: &Listed) -> CInfo {
    CInfo {
        registration: probe.registration as c_int,
        state: match probe.state {
            State::Enabled => 0,
            State::Disabled => 1,
            State::Gone => 2,
        },
        optimized: probe.optimized.into(),
        reserved: 0,
        address: probe.address,
        hits: probe.hits,
        missed: probe.missed,
        technique: text(probe.technique.as_ref()),
        name: text(probe.name.as_ref()),
        object: text(&probe.object),
    }
}

/// A text of C, cut if it is too long.
fn text<const N: usize>(from: &Path) -> [c_char; N] {
    let mut to = [0; N];
    for (to, from) in to[..N - 1].iter_mut().zip(from.as_os_str().as_bytes()) {
        *to = *from as c_char;
    }
    to
}

/// See the header.
///
/// # Safety
/// It is a session; `status` is null or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_wait(this: *mut Session, status: *mut c_int) -> c_int {
    // SAFETY: the caller promises a session.
    let code = match unsafe { session(this) }.and_then(Session::wait) {
        Ok(Ended::Exited(code)) => code,
        Ok(Ended::Killed(signal)) => 128 + signal,
        Ok(Ended::Unknown) => return failed(&invalid("the session has no command to wait for")),
        Err(error) => return failed(&error),
    };
    // SAFETY: the caller promises that `status` is null or writable.
    if let Some(status) = unsafe { status.as_mut() } {
        *status = code;
    }
    0
}

/// See the header.
///
/// # Safety
/// It is a session, which nobody uses any more; or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidestep_detach(this: *mut Session) -> c_int {
    if this.is_null() {
        return failed(&invalid("there is no session"));
    }
    // SAFETY: it came from `start`.
    number(unsafe { Box::from_raw(this) }.detach().map(|()| 0))
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn sidestep_error() -> *const c_char {
    ERROR.with(|last| last.borrow().as_ptr())
}
