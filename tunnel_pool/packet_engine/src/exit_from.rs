//! Where what leaves an exit comes from, datagrams and connections alike: an address, ports and a device.

use std::ffi::CString;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};

/// How many ports are tried before an exit goes without a socket.
const PORT_TRIES: u64 = 64;

/// Ports from 0 to 0 are any, no device is any.
pub struct ExitFrom {
    /// The local address. An unspecified one means any address, of IPv4 and IPv6.
    pub ip: IpAddr,
    /// The lowest port of the range.
    pub first_port: u16,
    /// The highest port of the range, itself included.
    pub last_port: u16,
    /// The name of the network device that sockets are bound to.
    pub device: Option<CString>,
}

impl ExitFrom {
    /// Have `bind` take a free port of the range at an address; `turn` chooses which is tried first.
    pub fn bind<T>(&self, ip: IpAddr, turn: u64, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
        let count = u64::from(self.last_port.saturating_sub(self.first_port)) + 1;
        let mut outcome = Err(io::Error::from(ErrorKind::AddrInUse));
        for attempt in 0..PORT_TRIES.min(count) {
            let port = self.first_port.saturating_add(u16::try_from((turn + attempt) % count).unwrap_or(0));
            outcome = bind(SocketAddr::new(ip, port));
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_of_the_range_is_tried_and_no_other() {
        let from = ExitFrom { ip: [127, 0, 0, 1].into(), first_port: 7000, last_port: 7003, device: None };
        for turn in 0..9 {
            let bound = from.bind(from.ip, turn, |address| {
                assert!((7000..=7003).contains(&address.port()));
                (address.port() == 7002).then_some(address).ok_or(ErrorKind::AddrInUse.into())
            });
            assert_eq!(bound.map(|address| address.port()).ok(), Some(7002));
        }
        assert!(from.bind::<()>(from.ip, 1, |_| Err(ErrorKind::AddrInUse.into())).is_err());
    }
}
