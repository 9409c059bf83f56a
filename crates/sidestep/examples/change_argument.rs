//! A function is called with another argument than the program gave it: `getenv` is asked for
//! another name.
#![allow(unsafe_code, reason = "handlers are promises")]

use std::ffi::{CStr, c_char};

use sidestep::{Error, Probe, Session};

fn variable(name: &CStr) -> String {
    // SAFETY: nobody changes the environment here.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return String::new();
    }
    // SAFETY: what `getenv` gives is a text of C.
    unsafe { CStr::from_ptr(value) }.to_string_lossy().into_owned()
}

fn main() -> Result<(), Error> {
    let session = Session::own().start()?;
    // SAFETY: `getenv` takes any text of C.
    let probe = unsafe {
        Probe::at("libc:getenv")?.on_entry(|context| {
            let name = context.word_argument(0).cast::<*const c_char>();
            if CStr::from_ptr(*name) == c"GREETING" {
                *name = c"FAREWELL".as_ptr();
            }
        })
    };
    println!("before: {}", variable(c"GREETING"));
    let getenv = session.register(probe)?;
    println!("probed: {}", variable(c"GREETING"));
    session.unregister(getenv)?;
    println!("after: {}", variable(c"GREETING"));
    session.detach()
}
