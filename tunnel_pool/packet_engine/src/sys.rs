//! The system calls that neither std nor `nix`, `socket2` and `memmap2` have: batches of datagrams,
//! with GSO and GRO. All the unsafe code of the crate is here.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{fcntl, FcntlArg, OFlag};
use nix::sys::epoll::{Epoll as EpollFd, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd as EventFdNumber};
use nix::sys::prctl;
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use nix::time::{clock_gettime, ClockId};
use socket2::{Domain, SockAddr, SockAddrStorage, SockRef, Socket, Type};

use crate::arrivals::Arrivals;
use crate::outbox::{Outgoing, Train, Via};

/// Asked for; the kernel gives at most net.core.rmem_max and wmem_max.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;

const MESSAGES: usize = 64;
/// A train that the kernel joined (GRO) has up to 64 KiB.
const MESSAGE_BYTES: usize = 1 << 16;
/// From one message's place to the next's; a power of two would have all of them compete for the
/// same few lines of the caches.
const STRIDE_BYTES: usize = MESSAGE_BYTES + 23 * 64;
const MAX_IOVECS: usize = 1024;

/// Room for a segment's size and an address, each behind a header.
const CONTROL_WORDS: usize = 8;

/// Waiting less long than was asked for would be waiting in vain.
const SHORT_OF_A_MS: Duration = Duration::from_nanos(999_999);

/// Where a train goes before the sender is told.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A second descriptor of the same file, closed on exec, whose calls do not block.
pub fn duplicate(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is used during this call alone; that no such file is open is an error.
    let copy = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
    let flags = OFlag::from_bits_retain(fcntl(&copy, FcntlArg::F_GETFL)?);
    fcntl(&copy, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(copy)
}

/// Have the kernel join datagrams that came as a train; false when it can't.
pub fn enable_gro(socket: &impl AsFd) -> bool {
    setsockopt(socket, sockopt::UdpGroSegment, &true).is_ok()
}

/// Have the kernel say to which of our IPv4 addresses each datagram came (IP_PKTINFO); false when it can't.
pub fn enable_arrivals(socket: &impl AsFd) -> bool {
    setsockopt(socket, sockopt::Ipv4PacketInfo, &true).is_ok()
}

/// Whether the kernel cuts trains (UDP_SEGMENT).
pub fn has_gso(socket: &impl AsFd) -> bool {
    setsockopt(socket, sockopt::UdpGsoSegment, &1400).is_ok() && setsockopt(socket, sockopt::UdpGsoSegment, &0).is_ok()
}

/// How late this thread's sleeps may end; the default is 50 microseconds. Left as it is where that is refused.
pub fn set_timer_slack(nanoseconds: u64) {
    let _ = prctl::set_timerslack(nanoseconds);
}

/// Nanoseconds of CLOCK_MONOTONIC, which all processes share.
pub fn monotonic_ns() -> u64 {
    let since_boot = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    since_boot.as_secs() * 1_000_000_000 + u64::from(since_boot.subsec_nanos())
}

/// Words that other processes write and read, too.
#[derive(Clone)]
pub struct SharedWords {
    memory: Arc<MmapRaw>,
    words: usize,
}

impl SharedWords {
    /// The first words of a file in memory, which must be that long.
    pub fn map(fd: RawFd, words: usize) -> io::Result<Self> {
        let memory = MmapOptions::new().len(words * size_of::<u64>()).map_raw(fd)?;
        Ok(Self { memory: Arc::new(memory), words })
    }

    /// Words of this process alone, all zero.
    pub fn anonymous(words: usize) -> io::Result<Self> {
        let memory = MmapOptions::new().len(words * size_of::<u64>()).map_anon()?;
        Ok(Self { memory: Arc::new(memory.into()), words })
    }

    /// Returns the word at an index; None past the end.
    pub fn get(&self, at: usize) -> Option<&AtomicU64> {
        // SAFETY: within the mapping, which lives as long as we do, and aligned, as pages are; all
        // who have it reach it through atomics.
        (at < self.words).then(|| unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(at)) })
    }
}

/// A bound, non-blocking UDP socket with large buffers.
pub fn bind_udp(address: SocketAddr, device: Option<&CStr>) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
    socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if device.is_some() {
        socket.bind_device(device.map(CStr::to_bytes))?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Where a socket is bound; None when the kernel can't say.
pub fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    SockRef::from(socket).local_addr().ok()?.as_socket()
}

/// How large a packet to an address may be, by the route that the kernel knows; None when it can't say.
pub fn path_mtu(to: SocketAddr) -> Option<usize> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None).ok()?;
    socket.connect(&to.into()).ok()?;
    getsockopt(&socket, sockopt::IpMtu).ok().and_then(|bytes| usize::try_from(bytes).ok())
}

/// Receives batches into buffers that are reused.
pub struct Inbox {
    buffers: Box<[u8]>,
    names: Box<[SockAddrStorage]>,
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
            names: (0..MESSAGES).map(|_| SockAddrStorage::zeroed()).collect(),
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
            message.msg_name = (&raw mut *name).cast();
            message.msg_namelen = name.size_of();
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
        let from = address_of(self.names.get(index)?)?;
        let bytes = header.msg_len as usize;
        let segment = joined_segment(&header.msg_hdr).filter(|size| *size > 0).unwrap_or(bytes);
        let start = index * STRIDE_BYTES;
        let end = start + bytes;
        Some((from, (start..end).step_by(segment.max(1)).map(move |at| at..end.min(at + segment))))
    }

    /// Returns to which of our addresses message number `index` of the last batch came, where the kernel says so.
    pub fn came_to(&self, index: usize) -> Option<Ipv4Addr> {
        let header = self.headers.get(index)?;
        let info: libc::in_pktinfo = control_of(&header.msg_hdr, libc::IPPROTO_IP, libc::IP_PKTINFO)?;
        Some(Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr)))
    }

    /// Returns the whole receive buffer, which the ranges of `message` refer to.
    pub fn bytes(&self) -> &[u8] {
        &self.buffers
    }

    /// Returns the bytes of a datagram, for decryption in place; None if the range is outside the buffer.
    pub fn datagram(&mut self, at: Range<usize>) -> Option<&mut [u8]> {
        self.buffers.get_mut(at)
    }
}

/// The IP address that the kernel wrote; a datagram comes from no other kind.
fn address_of(name: &SockAddrStorage) -> Option<SocketAddr> {
    // SAFETY: a copy of plain bytes: all zeroes, or what the kernel wrote, of a family that says how
    // to read it.
    unsafe { SockAddr::new(std::ptr::read(name), name.size_of()) }.as_socket()
}

/// The segment size that the kernel says with a joined train (UDP_GRO).
fn joined_segment(message: &libc::msghdr) -> Option<usize> {
    let size: i32 = control_of(message, libc::SOL_UDP, libc::UDP_GRO)?;
    usize::try_from(size).ok()
}

/// What the kernel says by a control message of this kind, which has a value of this type of plain bytes.
fn control_of<T: Copy>(message: &libc::msghdr, level: i32, kind: i32) -> Option<T> {
    // SAFETY: the kernel filled the control buffer that the header still points at, and wrote values of their kinds.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(message);
        while let Some(found) = control.as_ref() {
            if found.cmsg_level == level && found.cmsg_type == kind {
                return Some(libc::CMSG_DATA(control).cast::<T>().read_unaligned());
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
    names: Box<[SockAddr]>,
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
            names: vec![SockAddr::from(NOWHERE); MESSAGES].into_boxed_slice(),
            controls: vec![[0; CONTROL_WORDS]; MESSAGES].into_boxed_slice(),
            iovecs: vec![iovec; MAX_IOVECS].into_boxed_slice(),
            headers: vec![header; MESSAGES].into_boxed_slice(),
        }
    }
}

impl TrainSender {
    /// Send the first trains in one call; returns how many were taken. The error is the first train's.
    ///
    /// What leaves by the tunnels' socket leaves from where its neighbour writes to, by `arrivals`.
    pub fn send(
        &mut self,
        fd: RawFd,
        outgoing: &Outgoing<'_>,
        trains: &[Train],
        arrivals: Option<&Arrivals>,
    ) -> io::Result<usize> {
        let mut free = self.iovecs.iter_mut();
        let mut count = 0;
        let records = self.headers.iter_mut().zip(&mut self.names).zip(&mut self.controls);
        for (train, ((header, name), control)) in trains.iter().zip(records) {
            let entries = outgoing.entries.get(train.entries.clone()).unwrap_or(&[]);
            if entries.len() > free.len() {
                break;
            }
            let Some(first) = entries.first() else { break };
            *name = first.to.into();
            let message = &mut header.msg_hdr;
            message.msg_name = name.as_ptr().cast_mut().cast();
            message.msg_namelen = name.len();
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
            let segment_bytes = (entries.len() > 1).then_some(train.segment_bytes);
            let from = arrivals.filter(|_| first.via == Via::Tunnel).and_then(|arrivals| arrivals.at(first.to));
            set_control(message, control, segment_bytes.and_then(|bytes| u16::try_from(bytes).ok()), from);
            count += 1;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the first `count` headers point at names, control buffers and consecutive iovecs
        // made above, and those at bytes of the mail, which outlives the call; nothing is written.
        let sent = unsafe { libc::sendmmsg(fd, self.headers.as_mut_ptr(), count, flags as _) };
        Ok(checked(sent)?.unsigned_abs() as usize)
    }
}

/// Tell the kernel where to cut the train (UDP_SEGMENT), where there is something to cut, and from which address it is to
/// leave (IP_PKTINFO), where that is not the kernel's to choose.
fn set_control(
    message: &mut libc::msghdr,
    control: &mut [u64; CONTROL_WORDS],
    segment_bytes: Option<u16>,
    from: Option<Ipv4Addr>,
) {
    message.msg_control = null_mut();
    message.msg_controllen = 0;
    let mut used = 0;
    if let Some(size) = segment_bytes {
        used = put_control(control, used, libc::SOL_UDP, libc::UDP_SEGMENT, size);
    }
    if let Some(address) = from {
        let spec_dst = libc::in_addr { s_addr: u32::from(address).to_be() };
        let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: spec_dst, ipi_addr: libc::in_addr { s_addr: 0 } };
        used = put_control(control, used, libc::IPPROTO_IP, libc::IP_PKTINFO, info);
    }
    if used > 0 {
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = used as _;
    }
}

/// Write a control message behind the first `used` bytes; returns how many are used then. Where there is no room, it is
/// left out.
fn put_control<T: Copy>(control: &mut [u64; CONTROL_WORDS], used: usize, level: i32, kind: i32, value: T) -> usize {
    // SAFETY: these two only calculate.
    let (space, length) = unsafe { (libc::CMSG_SPACE(size_of::<T>() as u32), libc::CMSG_LEN(size_of::<T>() as u32)) };
    let end = used + space as usize;
    if end > size_of_val(control) {
        return used;
    }
    // SAFETY: header and value lie within the buffer, and the header is aligned, as the space of each message is.
    unsafe {
        let header = control.as_mut_ptr().cast::<u8>().add(used).cast::<libc::cmsghdr>();
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = length as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
    end
}

/// A counter to wake whoever polls it.
pub struct EventFd(EventFdNumber);

impl EventFd {
    /// Creates a silent counter; its descriptor is closed on exec and does not block.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self(EventFdNumber::from_value_and_flags(0, flags)?))
    }

    /// Makes the descriptor readable until `silence`.
    pub fn ring(&self) {
        // Full means that it rings already.
        let _ = self.0.write(1);
    }

    /// Resets the counter: the descriptor is not readable until `ring`.
    pub fn silence(&self) {
        let _ = self.0.read();
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Says which descriptors can be read or written, by tokens.
pub struct Epoll {
    epoll: EpollFd,
    ready: Vec<EpollEvent>,
}

impl Epoll {
    /// Creates an instance that watches nothing; its descriptor is closed on exec.
    pub fn new() -> io::Result<Self> {
        let epoll = EpollFd::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, ready: vec![EpollEvent::empty(); 128] })
    }

    /// Report `token` while the descriptor can be read.
    pub fn add_reader(&self, fd: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, token))?)
    }

    /// Report `token` while the descriptor can be written.
    pub fn add_writer(&self, fd: &impl AsFd, token: u64) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLOUT, token))?)
    }

    /// Report `token` whenever it changes whether the descriptor can be read or written.
    pub fn add_changes(&self, fd: &impl AsFd, token: u64) -> io::Result<()> {
        let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        Ok(self.epoll.add(fd, EpollEvent::new(flags, token))?)
    }

    /// Stops watching a descriptor; one that is not watched is ignored.
    pub fn remove(&self, fd: &impl AsFd) {
        let _ = self.epoll.delete(fd);
    }

    /// Wait until something is ready, or so long, rounded up to whole milliseconds; the tokens of what is.
    pub fn wait(&mut self, at_most: Option<Duration>) -> io::Result<impl Iterator<Item = u64> + '_> {
        let timeout = at_most.map_or(EpollTimeout::NONE, |time| {
            EpollTimeout::try_from(time + SHORT_OF_A_MS).unwrap_or(EpollTimeout::MAX)
        });
        let count = self.epoll.wait(&mut self.ready, timeout)?;
        Ok(self.ready.iter().take(count).map(EpollEvent::data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_not_open_is_an_error() {
        for fd in [-1, -7, i32::MAX] {
            assert_eq!(duplicate(fd).map(drop).map_err(|error| error.raw_os_error()), Err(Some(libc::EBADF)));
        }
    }
}
