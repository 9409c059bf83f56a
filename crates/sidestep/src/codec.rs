//! Values as bytes, for the socket between a session and its controller. Both are the same program,
//! so nothing has a version.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A value that can be sent.
pub trait Message: Sized {
    /// Appends it.
    fn put(&self, to: &mut Vec<u8>);
    /// Takes it from the front.
    fn get(from: &mut &[u8]) -> Option<Self>;
}

/// Sends a value.
pub fn send(value: &impl Message, to: &UnixStream) -> io::Result<()> {
    let mut bytes = vec![0; 8];
    value.put(&mut bytes);
    let len = (bytes.len() - 8) as u64;
    bytes[..8].copy_from_slice(&len.to_ne_bytes());
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        #[allow(unsafe_code)]
        // SAFETY: the bytes are there. Without a signal if the other side is gone, which a program
        // may not expect.
        let sent = unsafe { libc::send(to.as_raw_fd(), rest.as_ptr().cast(), rest.len(), libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => rest = &rest[sent..],
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
    }
    Ok(())
}

/// Receives a value.
pub fn receive<T: Message>(mut from: impl Read) -> io::Result<T> {
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let mut bytes = vec![0; u64::from_ne_bytes(len) as usize];
    from.read_exact(&mut bytes)?;
    T::get(&mut bytes.as_slice()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Message for $number {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend(self.to_ne_bytes());
            }

            fn get(from: &mut &[u8]) -> Option<$number> {
                let (bytes, rest) = from.split_first_chunk()?;
                *from = rest;
                Some(<$number>::from_ne_bytes(*bytes))
            }
        }
    )*};
}
numbers!(u8 i32 u32 u64);

impl Message for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn get(from: &mut &[u8]) -> Option<bool> {
        Some(u8::get(from)? != 0)
    }
}

impl Message for String {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_bytes().to_vec().put(to);
    }

    fn get(from: &mut &[u8]) -> Option<String> {
        String::from_utf8(Vec::get(from)?).ok()
    }
}

impl Message for PathBuf {
    fn put(&self, to: &mut Vec<u8>) {
        self.as_os_str().as_bytes().to_vec().put(to);
    }

    fn get(from: &mut &[u8]) -> Option<PathBuf> {
        Some(OsString::from_vec(Vec::get(from)?).into())
    }
}

impl<T: Message> Message for Vec<T> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn get(from: &mut &[u8]) -> Option<Vec<T>> {
        let len = u64::get(from)?;
        (0..len).map(|_| T::get(from)).collect()
    }
}

impl<T: Message> Message for Option<T> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        self.iter().for_each(|value| value.put(to));
    }

    fn get(from: &mut &[u8]) -> Option<Option<T>> {
        Some(if bool::get(from)? { Some(T::get(from)?) } else { None })
    }
}

impl<T: Message, E: Message> Message for Result<T, E> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_ok().put(to);
        match self {
            Ok(value) => value.put(to),
            Err(error) => error.put(to),
        }
    }

    fn get(from: &mut &[u8]) -> Option<Result<T, E>> {
        Some(if bool::get(from)? { Ok(T::get(from)?) } else { Err(E::get(from)?) })
    }
}

impl<A: Message, B: Message> Message for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn get(from: &mut &[u8]) -> Option<(A, B)> {
        Some((A::get(from)?, B::get(from)?))
    }
}

/// `message!(Struct { field, … })`, or `message!(enum Enum { Variant(field, …), … })`, for a type
/// that is defined elsewhere.
macro_rules! message {
    (enum $type:ident { $($variant:ident $(($($field:ident),*))?),* $(,)? }) => {
        impl crate::codec::Message for $type {
            fn put(&self, to: &mut Vec<u8>) {
                let mut number = 0u8;
                $(
                    if let $type::$variant $(($($field),*))? = self {
                        number.put(to);
                        $($($field.put(to);)*)?
                        return;
                    }
                    number += 1;
                )*
                unreachable!("variant {number}")
            }

            fn get(from: &mut &[u8]) -> Option<$type> {
                let mut number = u8::get(from)?;
                $(
                    if number == 0 {
                        return Some($type::$variant $(($({ let $field = crate::codec::Message::get(from)?; $field }),*))?);
                    }
                    number -= 1;
                )*
                let _ = number;
                None
            }
        }
    };
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl crate::codec::Message for $type {
            fn put(&self, to: &mut Vec<u8>) {
                $(self.$field.put(to);)*
            }

            fn get(from: &mut &[u8]) -> Option<$type> {
                Some($type { $($field: crate::codec::Message::get(from)?),* })
            }
        }
    };
}
pub(crate) use message;

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Example {
        Nothing,
        Two(u32, String),
        Many(Vec<(u64, Option<PathBuf>)>),
    }
    message!(
        enum Example {
            Nothing,
            Two(a, b),
            Many(all),
        }
    );

    #[test]
    fn values_arrive_as_they_were_sent() {
        let all = vec![
            Ok(Example::Nothing),
            Ok(Example::Two(7, "seven".to_owned())),
            Err(bool::default()),
            Ok(Example::Many(vec![(1, None), (u64::MAX, Some("/a b".into()))])),
        ];
        let (ours, theirs) = UnixStream::pair().unwrap();
        send(&all, &ours).unwrap();
        assert_eq!(receive::<Vec<Result<Example, bool>>>(&theirs).unwrap(), all);
        // Cut short, it is an error and no guess.
        let mut wire = Vec::new();
        all.put(&mut wire);
        for len in 0..wire.len() {
            assert_eq!(Vec::<Result<Example, bool>>::get(&mut &wire[..len]), None, "{len}");
        }
        drop(theirs);
        assert!(send(&all, &ours).is_err());
    }
}
