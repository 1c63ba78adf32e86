//! Addresses as py-ipv8 packs them into messages and as SOCKS5 does (RFC 1928 section 5).
//!
//! ```text
//! py-ipv8 (serialization.py)             SOCKS5
//! 1 | IPv4 (4)            | port (2)     1 | IPv4 (4)           | port (2)
//! 2 | length (2) | name   | port (2)     3 | length (1) | name  | port (2)
//! 3 | IPv6 (16)           | port (2)     4 | IPv6 (16)          | port (2)
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest form of either: a name of 255 bytes.
pub const MAX_ADDRESS_BYTES: usize = 1 + 2 + 255 + 2;

/// The bytes are neither an address nor a message that begins with addresses, or they are cut short.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

/// An address in one of the two formats: an IP address with a port, or a name with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination<'a> {
    /// An IP address and a port. A name that is an IP address is parsed to this form, too.
    Ip(SocketAddr),
    /// A name as it was received, which need not be UTF-8, and a port.
    Name(&'a [u8], u16),
}

/// What one subscriber has: an address of IPv4, a /64 of IPv6 (RFC 6177) with zeros behind it.
pub fn subnet_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

impl Destination<'_> {
    /// Returns the port of either form.
    pub fn port(&self) -> u16 {
        match self {
            Destination::Ip(address) => address.port(),
            Destination::Name(_, port) => *port,
        }
    }
}

/// The address 0.0.0.0:0, which py-ipv8 writes where a message needs no address.
pub const NOWHERE: Destination<'static> = Destination::Ip(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));

/// Whether an address as SOCKS5 encodes it is of IPv6.
pub fn is_ipv6(encoded: &[u8]) -> bool {
    encoded.first() == Some(&4)
}

/// How one of the two formats says what follows.
struct Format {
    v4: u8,
    name: u8,
    v6: u8,
    name_length_bytes: usize,
}

const PACKED: Format = Format { v4: 1, name: 2, v6: 3, name_length_bytes: 2 };
const SOCKS5: Format = Format { v4: 1, name: 3, v6: 4, name_length_bytes: 1 };

/// A name that is an IP address is one: libtorrent has a proxy look those up, too.
fn destination_of(name: &[u8], port: u16) -> Destination<'_> {
    match std::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
        Some(ip) => Destination::Ip(SocketAddr::new(ip, port)),
        None => Destination::Name(name, port),
    }
}

fn port_of(bytes: &[u8]) -> Result<u16, Malformed> {
    bytes.first_chunk().map(|port| u16::from_be_bytes(*port)).ok_or(Malformed)
}

impl Format {
    fn parse<'a>(&self, bytes: &'a [u8]) -> Result<(Destination<'a>, usize), Malformed> {
        let (kind, rest) = bytes.split_first().ok_or(Malformed)?;
        if *kind == self.v4 {
            let (ip, rest) = rest.split_first_chunk::<4>().ok_or(Malformed)?;
            let address = SocketAddr::new(Ipv4Addr::from(*ip).into(), port_of(rest)?);
            Ok((Destination::Ip(address), 7))
        } else if *kind == self.v6 {
            let (ip, rest) = rest.split_first_chunk::<16>().ok_or(Malformed)?;
            let address = SocketAddr::new(Ipv6Addr::from(*ip).into(), port_of(rest)?);
            Ok((Destination::Ip(address), 19))
        } else if *kind == self.name {
            let (length, rest) = rest.split_at_checked(self.name_length_bytes).ok_or(Malformed)?;
            let length = length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let (name, rest) = rest.split_at_checked(length).ok_or(Malformed)?;
            let end = 1 + self.name_length_bytes + length + 2;
            Ok((destination_of(name, port_of(rest)?), end))
        } else {
            Err(Malformed)
        }
    }

    /// Bytes written; None when there is no room or the name is too long for the format.
    fn write(&self, destination: Destination<'_>, buffer: &mut [u8]) -> Option<usize> {
        let mut at = 0;
        let mut put = |bytes: &[u8]| -> Option<()> {
            buffer.get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
            at += bytes.len();
            Some(())
        };
        let port = match destination {
            Destination::Ip(SocketAddr::V4(address)) => {
                put(&[self.v4])?;
                put(&address.ip().octets())?;
                address.port()
            }
            Destination::Ip(SocketAddr::V6(address)) => {
                put(&[self.v6])?;
                put(&address.ip().octets())?;
                address.port()
            }
            Destination::Name(name, port) => {
                let length = u8::try_from(name.len()).ok()?;
                put(&[self.name])?;
                put([0, length].get(2 - self.name_length_bytes..)?)?;
                put(name)?;
                port
            }
        };
        put(&port.to_be_bytes())?;
        Some(at)
    }
}

/// An address in a py-ipv8 message, and how many bytes it takes.
pub fn parse_packed(bytes: &[u8]) -> Result<(Destination<'_>, usize), Malformed> {
    PACKED.parse(bytes)
}

/// Writes an address as py-ipv8 does; returns the bytes written. None when there is no room, or when a name has more
/// than 255 bytes.
pub fn write_packed(destination: Destination<'_>, buffer: &mut [u8]) -> Option<usize> {
    PACKED.write(destination, buffer)
}

/// An address in a SOCKS5 message, and how many bytes it takes.
pub fn parse_socks5(bytes: &[u8]) -> Result<(Destination<'_>, usize), Malformed> {
    SOCKS5.parse(bytes)
}

/// Writes an address as SOCKS5 does; returns the bytes written. None when there is no room, or when a name has more
/// than 255 bytes.
pub fn write_socks5(destination: Destination<'_>, buffer: &mut [u8]) -> Option<usize> {
    SOCKS5.write(destination, buffer)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn both_formats_read_what_they_wrote() {
        let long = [b'x'; 255];
        for destination in [
            Destination::Ip("1.2.3.4:80".parse().unwrap()),
            Destination::Ip("[2001:db8::1]:65535".parse().unwrap()),
            Destination::Name(b"tracker.example", 6969),
            Destination::Name(&long, 1),
            NOWHERE,
        ] {
            let mut buffer = [0; MAX_ADDRESS_BYTES];
            let written = write_packed(destination, &mut buffer).unwrap();
            assert_eq!(parse_packed(&buffer[..written]), Ok((destination, written)));
            assert_eq!(parse_packed(&buffer[..written - 1]), Err(Malformed));
            let written = write_socks5(destination, &mut buffer).unwrap();
            assert_eq!(parse_socks5(&buffer[..written]), Ok((destination, written)));
            assert_eq!(parse_socks5(&buffer[..written - 1]), Err(Malformed));
            assert_eq!(write_socks5(destination, &mut buffer[..written - 1]), None);
        }
    }

    #[test]
    fn a_name_that_is_an_address_is_one() {
        for name in ["1.2.3.4", "2001:db8::1", "01.2.3.4", "1.2.3", "0x7f.1", "1.2.3.4.", "[::1]"] {
            let mut buffer = [0; MAX_ADDRESS_BYTES];
            let written = write_socks5(Destination::Name(name.as_bytes(), 80), &mut buffer).unwrap();
            let expected = match name.parse() {
                Ok(ip) => Destination::Ip(SocketAddr::new(ip, 80)),
                Err(_) => Destination::Name(name.as_bytes(), 80),
            };
            assert_eq!(parse_socks5(&buffer[..written]), Ok((expected, written)));
            assert_eq!(matches!(expected, Destination::Ip(_)), ["1.2.3.4", "2001:db8::1"].contains(&name));
        }
    }

    #[test]
    fn a_name_too_long_for_socks5_is_refused() {
        assert_eq!(write_socks5(Destination::Name(&[b'x'; 256], 1), &mut [0; 400]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..40), kind in 0u8..6) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() { *first = kind; }
            for parsed in [parse_packed(&bytes), parse_socks5(&bytes)].into_iter().flatten() {
                prop_assert!(parsed.1 <= bytes.len());
            }
        }
    }
}
