//! The system calls `bpf(2)` and `perf_event_open(2)`, and `ioctl(2)` and `poll(2)` on what they
//! give.
#![allow(unsafe_code, reason = "raw system calls")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Commands of `bpf(2)` (`enum bpf_cmd`).
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub enum Command {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ProgTestRun = 10,
    MapFreeze = 22,
    LinkCreate = 28,
}

/// The part of `union bpf_attr` that a command uses; the kernel takes what is missing at its end as
/// zeros.
///
/// # Safety
/// `repr(C)` without padding, laid out as the union is for the commands it is used with.
pub unsafe trait Attr {}

/// `BPF_MAP_CREATE`
#[derive(Default)]
#[repr(C)]
pub struct MapCreate {
    pub kind: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub flags: u32,
    pub inner_map: u32,
    pub numa_node: u32,
    pub name: [u8; 16],
}

/// `BPF_MAP_*_ELEM`, `BPF_MAP_GET_NEXT_KEY`
#[repr(C)]
pub struct Element {
    pub map: u32,
    pub padding: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

/// `BPF_MAP_FREEZE`
#[repr(C)]
pub struct Freeze {
    pub map: u32,
}

/// `BPF_PROG_LOAD`
#[derive(Default)]
#[repr(C)]
pub struct ProgLoad {
    pub kind: u32,
    pub count: u32,
    pub code: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log: u64,
    pub kernel_version: u32,
    pub flags: u32,
    pub name: [u8; 16],
    pub device: u32,
    pub attach_type: u32,
}

/// `BPF_PROG_TEST_RUN`
#[derive(Default)]
#[repr(C)]
pub struct TestRun {
    pub program: u32,
    pub result: u32,
    pub data_in_len: u32,
    pub data_out_len: u32,
    pub data_in: u64,
    pub data_out: u64,
    pub repeat: u32,
    pub duration: u32,
}

/// `BPF_LINK_CREATE` for an event of perf.
#[repr(C)]
pub struct LinkPerfEvent {
    pub program: u32,
    pub event: u32,
    pub attach_type: u32,
    pub flags: u32,
    pub cookie: u64,
}

/// `BPF_LINK_CREATE` for many places of a file.
#[repr(C)]
pub struct LinkUprobes {
    pub program: u32,
    pub target: u32,
    pub attach_type: u32,
    pub flags: u32,
    pub path: u64,
    pub offsets: u64,
    pub counters: u64,
    pub cookies: u64,
    pub count: u32,
    pub probe_flags: u32,
    pub pid: u32,
    pub padding: u32,
}

// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for MapCreate {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for Element {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for Freeze {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for ProgLoad {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for TestRun {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for LinkPerfEvent {}
// SAFETY: laid out as the part of `union bpf_attr` for this command; padding is spelled out.
unsafe impl Attr for LinkUprobes {}

/// `bpf(2)`.
///
/// # Safety
/// `attr` belongs to the command; its pointers are valid for what the command reads and writes.
pub unsafe fn bpf<T: Attr>(command: Command, attr: &mut T) -> io::Result<i32> {
    // SAFETY: the attribute lives during the call and has the length given. The caller promises
    // that its pointers are valid for what the command reads and writes.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command as i32, attr as *mut T, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// `bpf(2)` with a command that makes a descriptor.
///
/// # Safety
/// `attr` belongs to the command; its pointers are valid for what the command reads and writes. The
/// command makes a descriptor.
pub unsafe fn bpf_new<T: Attr>(command: Command, attr: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises valid pointers in the attribute, and a command that makes a
    // descriptor. That is new, so nothing else owns it.
    unsafe { bpf(command, attr).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// `struct perf_event_attr` up to what came with Linux 2.6.33 (`PERF_ATTR_SIZE_VER1`).
#[derive(Default)]
#[repr(C)]
pub struct EventAttr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub breakpoint: u32,
    pub config1: u64,
    pub config2: u64,
}

/// Opens an event of perf.
///
/// # Safety
/// Pointers in the configuration are valid.
pub unsafe fn perf_event_open(attr: &EventAttr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    // linux/perf_event.h: PERF_FLAG_FD_CLOEXEC
    let flags: libc::c_ulong = 1 << 3;
    let attr = EventAttr { size: size_of::<EventAttr>() as u32, ..*attr };
    // SAFETY: the attribute lives during the call and says how long it is. The caller promises
    // that its pointers are valid.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, pid, cpu, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Requests to an event whose argument is a number (`_IO('$', 0)`, `_IOW('$', 8, __u32)`).
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum EventRequest {
    Enable = 0x2400,
    SetBpf = 0x4004_2408,
}

/// Makes a request to an event of perf.
pub fn event_request(event: BorrowedFd<'_>, request: EventRequest, argument: i32) -> io::Result<()> {
    // SAFETY: these requests take no pointer.
    let result = unsafe { libc::ioctl(event.as_raw_fd(), request as u32 as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until one of the descriptors can be read, at most so long. False: the time is over, or a
/// signal came.
pub fn wait_readable(fds: &[BorrowedFd<'_>], at_most: Duration) -> io::Result<bool> {
    let poll = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<_> = fds.iter().map(poll).collect();
    let millis = i32::try_from(at_most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: an array of that many entries.
    match unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, millis) } {
        0.. => Ok(polls.iter().any(|poll| poll.revents & libc::POLLIN != 0)),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            error => Err(error),
        },
    }
}

/// What the kernel keeps of a name: 15 characters, letters, digits, `_` and `.` only.
pub fn short_name(name: &str) -> [u8; 16] {
    let mut short = [0; 16];
    let known = |byte: u8| if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.') { byte } else { b'_' };
    short[..15].iter_mut().zip(name.bytes()).for_each(|(to, byte)| *to = known(byte));
    short
}

/// A path as system calls take it.
pub fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)
}
