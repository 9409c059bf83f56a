//! Giving a stopped process a descriptor of ours, whatever namespaces it lives in: over a pair of
//! sockets that it makes, one of which we take a copy of (`pidfd_getfd`).
#![allow(unsafe_code, reason = "pidfd_getfd, sendmsg and the structs that they take")]

use std::fs::File;
use std::io;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use sidestep_isa::Va;

use crate::call::CallError;
use crate::memory::MemoryError;
use crate::stopped::Stopped;

/// Why a descriptor could not be given. None is left behind.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError {
    /// A system call of the target failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Its memory could not be read or written.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A system call of ours failed.
    #[error("cannot give process {pid} memory of the session: {source}; several processes need Linux 5.6")]
    Io {
        /// Process id.
        pid: i32,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What `recvmsg` is told in the target, in one piece of memory.
#[repr(C)]
struct Message {
    head: libc::msghdr,
    iov: libc::iovec,
    control: Control,
    byte: [u8; 8],
}

/// One descriptor.
#[repr(C)]
struct Control {
    head: libc::cmsghdr,
    fd: RawFd,
    pad: RawFd,
}

/// `CMSG_SPACE(4)`: words of the machine. To a 32-bit kernel interface half a header behind it is
/// one that is wrong.
const CONTROL_LEN: usize = (size_of::<libc::cmsghdr>() + size_of::<RawFd>()).next_multiple_of(size_of::<usize>());

/// Bytes of the target's memory that [`Stopped::hand_over`] uses.
pub const HAND_OVER_LEN: usize = size_of::<Message>();

fn message(at: u64, fd: RawFd) -> Message {
    let place = |field: usize| (at + field as u64) as usize;
    // SAFETY: structs of integers and pointers, for which zeros are values.
    let mut message: Message = unsafe { zeroed() };
    message.head.msg_iov = place(offset_of!(Message, iov)) as *mut libc::iovec;
    message.head.msg_iovlen = 1;
    message.head.msg_control = place(offset_of!(Message, control)) as *mut libc::c_void;
    message.head.msg_controllen = CONTROL_LEN as _;
    message.iov.iov_base = place(offset_of!(Message, byte)) as *mut libc::c_void;
    message.iov.iov_len = 1;
    message.control.head.cmsg_level = libc::SOL_SOCKET;
    message.control.head.cmsg_type = libc::SCM_RIGHTS;
    message.control.head.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<RawFd>()) as _;
    message.control.fd = fd;
    message
}

impl Stopped {
    /// Gives the target a descriptor of ours, closed on exec: its number there. Uses
    /// [`HAND_OVER_LEN`] bytes of the target's memory at `at`, a multiple of 8.
    pub fn hand_over(&mut self, file: &File, at: Va) -> Result<i32, HandOverError> {
        let kind = (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as u64;
        self.call(libc::SYS_socketpair, [libc::AF_UNIX as u64, kind, 0, at.0, 0, 0])?;
        let pair: u64 = self.read_pod(at)?;
        let (near, far) = (pair as u32 as i32, (pair >> 32) as i32);
        let result = self.send(file, near).and_then(|()| self.receive(far, at));
        for fd in [near, far] {
            self.call(libc::SYS_close, [fd as u64, 0, 0, 0, 0, 0])?;
        }
        result
    }

    /// Into our copy of the target's socket.
    fn send(&self, file: &File, socket: i32) -> Result<(), HandOverError> {
        let pid = self.process().pid();
        let io = |()| HandOverError::Io { pid, source: io::Error::last_os_error() };
        // SAFETY: no memory is involved; what the kernel gives us is ours.
        let ours = unsafe {
            let pidfd = owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)).map_err(io)?;
            owned(libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), socket, 0)).map_err(io)?
        };
        let mut message = message(0, file.as_raw_fd());
        message.head.msg_iov = &raw mut message.iov;
        message.head.msg_control = (&raw mut message.control).cast();
        message.iov.iov_base = (&raw mut message.byte).cast();
        // SAFETY: all pointers are to `message`.
        match unsafe { libc::sendmsg(ours.as_raw_fd(), &raw const message.head, libc::MSG_DONTWAIT) } {
            1 => Ok(()),
            _ => Err(io(())),
        }
    }

    /// In the target.
    fn receive(&mut self, socket: i32, at: Va) -> Result<i32, HandOverError> {
        let message = message(at.0, -1);
        // SAFETY: all of it is initialised: it was zeroed as a whole.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const message).cast::<u8>(), size_of::<Message>()) };
        self.write(at, bytes)?;
        let flags = (libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT) as u64;
        self.call(libc::SYS_recvmsg, [socket as u64, at.0, flags, 0, 0, 0])?;
        let fd: u32 = self.read_pod(Va(at.0 + (offset_of!(Message, control) + offset_of!(Control, fd)) as u64))?;
        let pid = self.process().pid();
        i32::try_from(fd).map_err(|_| HandOverError::Io { pid, source: io::ErrorKind::InvalidData.into() })
    }
}

/// # Safety
/// `fd` is a new descriptor that nothing else owns, or negative.
unsafe fn owned(fd: libc::c_long) -> Result<OwnedFd, ()> {
    // SAFETY: `fd` is not negative, and the caller promises that nothing else owns that descriptor.
    if fd < 0 { Err(()) } else { Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) }) }
}
