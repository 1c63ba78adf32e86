//! What an exit lets out: by content (py-ipv8 exit_socket.py, DataChecker) and by destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::cell::Prefix;
use crate::counters::DropReason;
use crate::rules::{BITTORRENT, DHT, FLAG_EXIT_BT, FLAG_EXIT_IPV8, FLAG_RELAY, IPV8, UDP_TRACKERS};
use crate::utp::could_be_utp;

/// BEP 15: the action, 0-3, is the first word of an answer and the third of a request.
fn could_be_udp_tracker(data: &[u8]) -> bool {
    let word = |at: usize| data.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word));
    (data.len() >= 8 && word(0).is_some_and(|action| action <= 3)) || word(8).is_some_and(|action| action <= 3)
}

/// BEP 5: a bencoded dictionary.
fn could_be_dht(data: &[u8]) -> bool {
    matches!(data, [b'd', .., b'e'])
}

fn could_be_any_of(protocols: u8, data: &[u8]) -> bool {
    let may = |protocol: u8| protocols & protocol != 0;
    (may(BITTORRENT) && could_be_utp(data))
        || (may(UDP_TRACKERS) && could_be_udp_tracker(data))
        || (may(DHT) && could_be_dht(data))
        || (may(IPV8) && could_be_ipv8(data))
}

/// A message of an overlay: version 1 or 2 of py-ipv8's prefix, and a message id.
fn could_be_ipv8(data: &[u8]) -> bool {
    data.len() >= 23 && matches!(data, [0, 1 | 2, ..])
}

/// A question to an introduction point of others (py-ipv8 payload.py): create-e2e, peers-request.
pub fn is_question(data: &[u8], prefix: &Prefix) -> bool {
    matches!(data.strip_prefix(prefix), Some([13 | 17, ..]))
}

/// An introduction point's answer: created-e2e, peers-response.
pub fn is_answer(data: &[u8], prefix: &Prefix) -> bool {
    matches!(data.strip_prefix(prefix), Some([14 | 18, ..]))
}

/// The network's rules of what an exit lets out, with the settings of this node.
#[derive(Clone, Copy, Debug)]
pub struct ExitPolicy {
    /// py-ipv8's peer flags, or-ed.
    pub peer_flags: u16,
    /// Let all messages of the node's own overlay out whatever the flags say, as py-ipv8 does; else
    /// only those of hidden services.
    pub own_messages: bool,
    /// Let datagrams go to private networks and other special-purpose ones.
    pub allow_private: bool,
}

impl ExitPolicy {
    /// Whether anything may leave from this node.
    pub fn offers(&self) -> bool {
        self.own_messages || self.peer_flags & (FLAG_RELAY | FLAG_EXIT_BT | FLAG_EXIT_IPV8) != 0
    }

    /// `protocols` are those that the rules or the peer flags let out (rules.rs).
    pub fn content(&self, data: &[u8], prefix: &Prefix, protocols: u8) -> Result<(), DropReason> {
        let allowed = could_be_any_of(protocols, data)
            || (could_be_ipv8(data)
                && ((self.own_messages && data.starts_with(prefix))
                    || is_question(data, prefix)
                    || is_answer(data, prefix)));
        allowed.then_some(()).ok_or(DropReason::ExitContentRefused)
    }

    /// Refuses port 0, unspecified, multicast and broadcast addresses, IPv6 addresses that embed an IPv4 address and,
    /// without `allow_private`, addresses that are not global. An IPv4-mapped address is judged as the IPv4 address.
    pub fn destination(&self, to: SocketAddr) -> Result<(), DropReason> {
        let ip = to.ip().to_canonical();
        let allowed = to.port() != 0
            && match ip {
                IpAddr::V4(ip) => is_anybody_v4(ip) && (self.allow_private || is_global_v4(ip)),
                IpAddr::V6(ip) => is_anybody_v6(ip) && (self.allow_private || is_global_v6(ip)),
            };
        allowed.then_some(()).ok_or(DropReason::ExitDestinationRefused)
    }
}

/// Whether the address is a single host's: not unspecified, multicast or broadcast.
fn is_anybody_v4(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast())
}

/// IANA's IPv4 special-purpose registry; overlay/ground/destinations.py has the same list.
fn is_global_v4(ip: Ipv4Addr) -> bool {
    !matches!(
        ip.octets(),
        [0 | 10 | 127, ..]
            | [100, 64..=127, ..]
            | [169, 254, ..]
            | [172, 16..=31, ..]
            | [192, 0, 0 | 2, _]
            | [192, 88, 99, _]
            | [192, 168, ..]
            | [198, 18 | 19, ..]
            | [198, 51, 100, _]
            | [203, 0, 113, _]
            | [224..=255, ..]
    )
}

/// Not nobody, not everybody, and not an IPv4 address by another name: NAT64 (RFC 6052, RFC 8215), 6to4
/// (RFC 3056), IPv4-translated (RFC 2765), IPv4-compatible and site-local (RFC 4291, RFC 3879).
fn is_anybody_v6(ip: Ipv6Addr) -> bool {
    let segments = ip.segments();
    let by_another_name = matches!(
        segments,
        [0x64, 0xff9b, 0, 0, 0, 0, _, _]
            | [0x64, 0xff9b, 1, ..]
            | [0, 0, 0, 0, 0xffff, 0, _, _]
            | [0x2002, ..]
            | [0, 0, 0, 0, 0, 0, _, _]
            | [0xfec0..=0xfeff, ..]
    );
    !(ip.is_unspecified() || ip.is_multicast()) && (ip.is_loopback() || !by_another_name)
}

/// Global unicast (2000::/3) without IANA's IPv6 special-purpose registry.
fn is_global_v6(ip: Ipv6Addr) -> bool {
    match ip.segments() {
        [0x2001, second, ..] if second < 0x200 => false,
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_content_panics(data in prop::collection::vec(any::<u8>(), 0..40)) {
            let policy = ExitPolicy { peer_flags: FLAG_EXIT_BT, own_messages: false, allow_private: false };
            let allowed = policy.content(&data, &[0; 22], BITTORRENT | DHT).is_ok();
            prop_assert_eq!(allowed, could_be_utp(&data) || could_be_dht(&data));
        }

        #[test]
        fn private_networks_stay_closed_in_ipv6_clothes(ip: u32) {
            let policy = ExitPolicy { peer_flags: FLAG_EXIT_BT, own_messages: false, allow_private: false };
            let plain = Ipv4Addr::from(ip);
            let mapped = SocketAddr::new(plain.to_ipv6_mapped().into(), 80);
            prop_assert_eq!(policy.destination(mapped), policy.destination(SocketAddr::new(plain.into(), 80)));
            let compatible = Ipv6Addr::from(u128::from(ip));
            prop_assert!(policy.destination(SocketAddr::new(compatible.into(), 80)).is_err());
        }
    }
}
