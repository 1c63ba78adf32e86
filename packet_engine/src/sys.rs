//! The system calls that std lacks: batches of datagrams, GSO and GRO, epoll, eventfd. All the
//! unsafe code of the crate is here.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use crate::outbox::{Outgoing, Train};

/// Asked for; the kernel gives at most net.core.rmem_max and wmem_max.
pub const SOCKET_BUFFER_BYTES: i32 = 4 << 20;

const MESSAGES: usize = 64;
/// A train that the kernel joined (GRO) has up to 64 KiB.
const MESSAGE_BYTES: usize = 1 << 16;
/// From one message's place to the next's; a power of two would have all of them compete for the
/// same few lines of the caches.
const STRIDE_BYTES: usize = MESSAGE_BYTES + 23 * 64;
const MAX_IOVECS: usize = 1024;

const CONTROL_WORDS: usize = 8;

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    let fd = checked(fd)?;
    // SAFETY: the call before has just made this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A second descriptor of the same file, closed on exec.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
}

pub fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = checked(unsafe { libc::fcntl(fd, libc::F_GETFL) })?;
    checked(unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) }).map(drop)
}

fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let size = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` lives through the call and `size` is its size.
    checked(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size) }).map(drop)
}

/// Have the kernel join datagrams that came as a train; false when it can't.
pub fn enable_gro(fd: RawFd) -> bool {
    set_option(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
}

/// Whether the kernel cuts trains (UDP_SEGMENT).
pub fn has_gso(fd: RawFd) -> bool {
    set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 1400).is_ok()
        && set_option(fd, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok()
}

/// How late this thread's sleeps may end; the default is 50 microseconds.
pub fn set_timer_slack(nanoseconds: u64) {
    // SAFETY: no memory is passed.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanoseconds, 0, 0, 0) };
}

/// Nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

struct Mapping {
    start: *mut libc::c_void,
    words: usize,
}

// SAFETY: the memory is reached through atomics alone.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl std::ops::Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by SharedWords::map with this length, and unmapped once.
        unsafe { libc::munmap(self.start, self.words * size_of::<u64>()) };
    }
}

/// Words that other processes write and read, too.
#[derive(Clone)]
pub struct SharedWords(Arc<Mapping>);

impl SharedWords {
    /// The first words of a file in memory, which must be that long.
    pub fn map(fd: RawFd, words: usize) -> io::Result<Self> {
        Self::new(fd, libc::MAP_SHARED, words)
    }

    pub fn anonymous(words: usize) -> io::Result<Self> {
        Self::new(-1, libc::MAP_SHARED | libc::MAP_ANONYMOUS, words)
    }

    fn new(fd: RawFd, flags: i32, words: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses a free place.
        let start = unsafe { libc::mmap(null_mut(), words * size_of::<u64>(), protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self(Arc::new(Mapping { start, words })))
    }

    pub fn get(&self, at: usize) -> Option<&AtomicU64> {
        // SAFETY: within the mapping, which lives as long as we do, and aligned, as pages are.
        (at < self.0.words).then(|| unsafe { &*self.0.start.cast::<AtomicU64>().add(at) })
    }
}

/// A bound, non-blocking UDP socket with large buffers.
pub fn bind_udp(address: SocketAddr, device: Option<&CStr>) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let socket = owned(unsafe { libc::socket(family, kind, 0) })?;
    let fd = socket.as_raw_fd();
    for name in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        set_option(fd, libc::SOL_SOCKET, name, SOCKET_BUFFER_BYTES)?;
    }
    if address.is_ipv6() {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
    }
    if let Some(device) = device {
        let size = device.to_bytes_with_nul().len() as libc::socklen_t;
        // SAFETY: `device` lives through the call and `size` is its size.
        checked(unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_BINDTODEVICE, device.as_ptr().cast(), size)
        })?;
    }
    let mut name = Name::default();
    name.set(address);
    // SAFETY: `name` holds `length` bytes of a socket address.
    checked(unsafe { libc::bind(fd, (&raw const name.storage).cast(), name.length) })?;
    Ok(socket)
}

/// A socket address as the kernel wants it. IPv6's is the larger of the two.
#[derive(Clone, Copy)]
struct Name {
    storage: libc::sockaddr_in6,
    length: libc::socklen_t,
}

impl Default for Name {
    fn default() -> Self {
        // SAFETY: all zeroes is a valid sockaddr_in6.
        Self { storage: unsafe { zeroed() }, length: 0 }
    }
}

impl Name {
    fn set(&mut self, address: SocketAddr) {
        match address {
            SocketAddr::V4(address) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_in is the smaller, its alignment the same.
                unsafe { (&raw mut self.storage).cast::<libc::sockaddr_in>().write(v4) };
                self.length = size_of::<libc::sockaddr_in>() as libc::socklen_t;
            }
            SocketAddr::V6(address) => {
                self.storage = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                self.length = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            }
        }
    }

    fn get(&self) -> Option<SocketAddr> {
        match i32::from(self.storage.sin6_family) {
            libc::AF_INET => {
                // SAFETY: the kernel wrote a sockaddr_in, as the family says.
                let v4 = unsafe { (&raw const self.storage).cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let v6 = &self.storage;
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(ip, port, v6.sin6_flowinfo, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

/// Receives batches into buffers that are reused.
pub struct Inbox {
    buffers: Box<[u8]>,
    names: Box<[Name]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    iovecs: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    stale: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        // SAFETY: all zeroes is a valid iovec and mmsghdr.
        let (iovec, header): (libc::iovec, libc::mmsghdr) = unsafe { (zeroed(), zeroed()) };
        Self {
            buffers: vec![0; MESSAGES * STRIDE_BYTES].into_boxed_slice(),
            names: vec![Name::default(); MESSAGES].into_boxed_slice(),
            controls: vec![[0; CONTROL_WORDS]; MESSAGES].into_boxed_slice(),
            iovecs: vec![iovec; MESSAGES].into_boxed_slice(),
            headers: vec![header; MESSAGES].into_boxed_slice(),
            stale: MESSAGES,
        }
    }
}

impl Inbox {
    /// Take what waits, up to 64 messages; returns how many. Never blocks.
    pub fn receive(&mut self, fd: RawFd) -> io::Result<usize> {
        let places = self.buffers.chunks_exact_mut(STRIDE_BYTES).zip(&mut self.names).zip(&mut self.controls);
        let records = self.iovecs.iter_mut().zip(&mut self.headers);
        for (((buffer, name), control), (iovec, header)) in places.zip(records).take(self.stale) {
            iovec.iov_base = buffer.as_mut_ptr().cast();
            iovec.iov_len = MESSAGE_BYTES;
            let message = &mut header.msg_hdr;
            message.msg_name = (&raw mut name.storage).cast();
            message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
            message.msg_iov = iovec;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of::<[u64; CONTROL_WORDS]>() as _;
            message.msg_flags = 0;
        }
        self.stale = 0;
        // SAFETY: every header points at a name, a control buffer and an iovec, and that at a buffer,
        // all on the heap, of the sizes given, and not touched by anybody during the call.
        let received = unsafe {
            libc::recvmmsg(fd, self.headers.as_mut_ptr(), MESSAGES as u32, libc::MSG_DONTWAIT as _, null_mut())
        };
        self.stale = checked(received)?.unsigned_abs() as usize;
        Ok(self.stale)
    }

    /// Message number `index` of the last batch: from whom, and where its datagrams lie.
    pub fn message(&self, index: usize) -> Option<(SocketAddr, impl Iterator<Item = Range<usize>> + use<>)> {
        let header = self.headers.get(index)?;
        let from = self.names.get(index)?.get()?;
        let bytes = header.msg_len as usize;
        let segment = joined_segment(&header.msg_hdr).filter(|size| *size > 0).unwrap_or(bytes);
        let start = index * STRIDE_BYTES;
        let end = start + bytes;
        Some((from, (start..end).step_by(segment.max(1)).map(move |at| at..end.min(at + segment))))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffers
    }

    pub fn datagram(&mut self, at: Range<usize>) -> Option<&mut [u8]> {
        self.buffers.get_mut(at)
    }
}

/// The segment size that the kernel says with a joined train (UDP_GRO).
fn joined_segment(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled the control buffer that the header still points at.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = control.as_ref() {
            if found.cmsg_level == libc::SOL_UDP && found.cmsg_type == libc::UDP_GRO {
                let size = libc::CMSG_DATA(control).cast::<i32>().read_unaligned();
                return usize::try_from(size).ok();
            }
            control = libc::CMSG_NXTHDR(message, control);
        }
    }
    None
}

// SAFETY: its pointers lead into its own boxes, or are not followed before they are set again.
unsafe impl Send for Inbox {}

/// Sends batches of trains.
pub struct TrainSender {
    names: Box<[Name]>,
    controls: Box<[[u64; CONTROL_WORDS]]>,
    iovecs: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: its pointers lead into its own boxes, or are not followed before they are set again.
unsafe impl Send for TrainSender {}

impl Default for TrainSender {
    fn default() -> Self {
        // SAFETY: all zeroes is a valid iovec and mmsghdr.
        let (iovec, header): (libc::iovec, libc::mmsghdr) = unsafe { (zeroed(), zeroed()) };
        Self {
            names: vec![Name::default(); MESSAGES].into_boxed_slice(),
            controls: vec![[0; CONTROL_WORDS]; MESSAGES].into_boxed_slice(),
            iovecs: vec![iovec; MAX_IOVECS].into_boxed_slice(),
            headers: vec![header; MESSAGES].into_boxed_slice(),
        }
    }
}

impl TrainSender {
    /// Send the first trains in one call; returns how many were taken. The error is the first train's.
    pub fn send(&mut self, fd: RawFd, outgoing: &Outgoing<'_>, trains: &[Train]) -> io::Result<usize> {
        let mut free = self.iovecs.iter_mut();
        let mut count = 0;
        let records = self.headers.iter_mut().zip(&mut self.names).zip(&mut self.controls);
        for (train, ((header, name), control)) in trains.iter().zip(records) {
            let entries = outgoing.entries.get(train.entries.clone()).unwrap_or(&[]);
            if entries.len() > free.len() {
                break;
            }
            let Some(first) = entries.first() else { break };
            name.set(first.to);
            let message = &mut header.msg_hdr;
            message.msg_name = (&raw mut name.storage).cast();
            message.msg_namelen = name.length;
            message.msg_iovlen = 0;
            let mut last: Option<&mut libc::iovec> = None;
            for entry in entries {
                let bytes = outgoing.bytes(entry);
                if let Some(last) = &mut last {
                    if last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == bytes.as_ptr().cast() {
                        last.iov_len += bytes.len();
                        continue;
                    }
                }
                let Some(iovec) = free.next() else { break };
                iovec.iov_base = bytes.as_ptr().cast_mut().cast();
                iovec.iov_len = bytes.len();
                if message.msg_iovlen == 0 {
                    message.msg_iov = iovec;
                }
                message.msg_iovlen += 1;
                last = Some(iovec);
            }
            set_segment(message, control, (entries.len() > 1).then_some(train.segment_bytes));
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point at names, control buffers and consecutive iovecs
        // made above, and those at bytes of the mail, which outlives the call; nothing is written.
        let sent = unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), count, flags as _) };
        Ok(checked(sent)?.unsigned_abs() as usize)
    }
}

/// Tell the kernel where to cut the train (UDP_SEGMENT), or that there is nothing to cut.
fn set_segment(message: &mut libc::msghdr, control: &mut [u64; CONTROL_WORDS], segment_bytes: Option<usize>) {
    let size = segment_bytes.and_then(|bytes| u16::try_from(bytes).ok());
    let Some(size) = size else {
        message.msg_control = null_mut();
        message.msg_controllen = 0;
        return;
    };
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: the control buffer has room for one header with two bytes, and is aligned for it.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<u16>() as u32) as _;
        if let Some(header) = libc::CMSG_FIRSTHDR(message).as_mut() {
            header.cmsg_level = libc::SOL_UDP;
            header.cmsg_type = libc::UDP_SEGMENT;
            header.cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
            libc::CMSG_DATA(header).cast::<u16>().write_unaligned(size);
        }
    }
}

/// A counter to wake whoever polls it.
pub struct EventFd(File);

impl EventFd {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(|fd| Self(fd.into()))
    }

    pub fn ring(&self) {
        // Full means that it rings already.
        let _ = io::Write::write(&mut &self.0, &1u64.to_ne_bytes());
    }

    pub fn silence(&self) {
        let _ = io::Read::read(&mut &self.0, &mut [0; 8]);
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

pub struct Epoll {
    fd: OwnedFd,
    ready: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { fd, ready: vec![libc::epoll_event { events: 0, u64: 0 }; 128] })
    }

    fn control(&self, operation: i32, fd: RawFd, events: i32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events.unsigned_abs(), u64: token };
        // SAFETY: `event` lives through the call.
        checked(unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), operation, fd, &raw mut event) }).map(drop)
    }

    /// Report `token` while the descriptor can be read.
    pub fn add_reader(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, token)
    }

    /// Report `token` while the descriptor can be written.
    pub fn add_writer(&self, fd: RawFd, token: u64) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLOUT, token)
    }

    pub fn remove(&self, fd: RawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    /// Wait until something is ready, or so long, in whole milliseconds; the tokens of what is.
    pub fn wait(&mut self, at_most: Option<Duration>) -> io::Result<impl Iterator<Item = u64> + '_> {
        let room = i32::try_from(self.ready.len()).unwrap_or(i32::MAX);
        let timeout = at_most.map_or(-1, |time| i32::try_from(time.as_millis()).unwrap_or(i32::MAX));
        // SAFETY: `ready` has room for as many events.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.ready.as_mut_ptr(), room, timeout) };
        let count = checked(count)?.unsigned_abs() as usize;
        Ok(self.ready.iter().take(count).map(|event| event.u64))
    }
}
