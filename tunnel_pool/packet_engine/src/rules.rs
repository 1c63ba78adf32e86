//! What an operator lets out of an exit beside what the network's rules say (policy.rs): protocols,
//! networks and ports, and how many destinations a circuit may have (overlay/ground/exit_rules.py is the twin).

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::counters::DropReason;
use crate::limits::OwnBucket;

/// The peer flag of a relay, which lets messages of hidden services out (py-ipv8 tunnel.py, PEER_FLAG_RELAY).
pub const FLAG_RELAY: u16 = 1;
/// The peer flag of an exit for uTP, the DHT and UDP trackers (py-ipv8 tunnel.py, PEER_FLAG_EXIT_BT).
pub const FLAG_EXIT_BT: u16 = 2;
/// The peer flag of an exit for messages of py-ipv8's overlays (py-ipv8 tunnel.py, PEER_FLAG_EXIT_IPV8).
pub const FLAG_EXIT_IPV8: u16 = 4;

/// uTP (BEP 29). Protocols are bits of `ExitRules::protocols` (overlay/ground/exit_rules.py, Protocol).
pub const BITTORRENT: u8 = 1;
/// Messages of the DHT (BEP 5).
pub const DHT: u8 = 2;
/// Messages to and from UDP trackers (BEP 15).
pub const UDP_TRACKERS: u8 = 4;
/// Messages of py-ipv8's overlays.
pub const IPV8: u8 = 8;
/// BitTorrent over TCP with its plain handshake (BEP 3), by streams.
pub const TCP: u8 = 32;
/// TLS to `HTTPS_PORT`, by streams.
pub const HTTPS: u8 = 64;
/// BitTorrent over TCP with its encrypted handshake, by streams. It can't be told from anything else, so that anything
/// passes.
pub const ENCRYPTED_TCP: u8 = 128;
/// The only TCP port that `HTTPS` allows.
pub const HTTPS_PORT: u16 = 443;

/// After so long without a datagram either way, a destination makes room for another.
const QUIET_NS: u64 = 60_000_000_000;
const LOOK_EVERY_NS: u64 = 1_000_000_000;
const RANGE_BYTES: usize = 32;
const PORTS_BYTES: usize = 4;

/// What peer flags alone would let out.
fn protocols_of(peer_flags: u16) -> u8 {
    let of = |flag: u16, protocols: u8| if peer_flags & flag == 0 { 0 } else { protocols };
    of(FLAG_EXIT_BT, BITTORRENT | DHT | UDP_TRACKERS) | of(FLAG_EXIT_IPV8, IPV8)
}

/// Ranges, first and last, in order and apart.
#[derive(Clone, Debug, Default)]
pub struct Ranges<T>(Vec<(T, T)>);

impl<T: Copy + Ord> Ranges<T> {
    fn contains(&self, value: T) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= value);
        after.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|(_, last)| value <= *last)
    }
}

impl Ranges<u128> {
    /// Of addresses, IPv4 mapped into IPv6: 16 bytes each, big endian.
    pub fn of_addresses(packed: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u128::from_be_bytes);
        let range = |bytes: &[u8]| Some((word(bytes.get(..16)?)?, word(bytes.get(16..)?)?));
        unpack(packed, RANGE_BYTES, range)
    }
}

impl Ranges<u16> {
    /// Of ports: 2 bytes each, big endian.
    pub fn of_ports(packed: &[u8]) -> Option<Self> {
        let word = |bytes: &[u8]| bytes.try_into().ok().map(u16::from_be_bytes);
        let range = |bytes: &[u8]| Some((word(bytes.get(..2)?)?, word(bytes.get(2..)?)?));
        unpack(packed, PORTS_BYTES, range)
    }
}

fn unpack<T>(packed: &[u8], size: usize, range: impl Fn(&[u8]) -> Option<(T, T)>) -> Option<Ranges<T>> {
    let pieces = packed.chunks_exact(size);
    if !pieces.remainder().is_empty() {
        return None;
    }
    pieces.map(range).collect::<Option<Vec<_>>>().map(Ranges)
}

/// An operator's rules. The default ones leave the protocols to the peer flags, limit nothing, and let no strangers in.
#[derive(Clone, Debug, Default)]
pub struct ExitRules {
    /// None: what the peer flags say.
    pub protocols: Option<u8>,
    /// The networks that nothing may go to, even if `allowed` has them.
    pub denied: Ranges<u128>,
    /// None: all.
    pub allowed: Option<Ranges<u128>>,
    /// The ports that nothing may go to, even if `allowed_ports` has them.
    pub denied_ports: Ranges<u16>,
    /// The ports that may be sent to; None: all ports.
    pub allowed_ports: Option<Ranges<u16>>,
    /// The names, and those that end in a dot and one of them, that TLS may go to; None: all.
    pub https_names: Option<Vec<String>>,
    /// The most destinations that a circuit has at a time; 0: any number.
    pub max_destinations: u32,
    /// Datagrams to a destination that never answered; 0: any number.
    pub max_unanswered: u32,
    /// New destinations of a circuit a second, with a burst of ten seconds' worth; 0: any number.
    pub new_per_s: u32,
    /// With how many datagrams a second strangers may reach a circuit that has asked to be found (strangers.rs); None:
    /// with none, 0: with any number.
    pub inbound_per_s: Option<u32>,
}

/// The fields of packed rules that have not been read yet.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Read the next field; None where it is malformed, and within where it says none.
    fn optional<T>(&mut self, read: impl Fn(&'a [u8]) -> Option<T>) -> Option<Option<T>> {
        let (is_there, rest) = self.0.split_first()?;
        if *is_there == 0 {
            self.0 = rest;
            return Some(None);
        }
        let (length, rest) = rest.split_first_chunk()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
        self.0 = rest;
        read(value).map(Some)
    }

    fn required<T>(&mut self, read: impl Fn(&'a [u8]) -> Option<T>) -> Option<T> {
        self.optional(read)?
    }
}

fn byte(value: &[u8]) -> Option<u8> {
    value.try_into().ok().map(u8::from_be_bytes)
}

fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_be_bytes)
}

/// Names, each with a line feed after it.
fn names(value: &[u8]) -> Option<Vec<String>> {
    let text = std::str::from_utf8(value).ok()?;
    Some(text.split_terminator('\n').map(str::to_owned).collect())
}

impl ExitRules {
    /// Read rules that overlay/ground/exit_rules.py (ExitRules.pack) has packed; it describes the bytes.
    pub fn unpack(packed: &[u8]) -> Option<Self> {
        let mut fields = Fields(packed);
        let rules = Self {
            protocols: fields.optional(byte)?,
            denied: fields.required(Ranges::of_addresses)?,
            allowed: fields.optional(Ranges::of_addresses)?,
            denied_ports: fields.required(Ranges::of_ports)?,
            allowed_ports: fields.optional(Ranges::of_ports)?,
            max_destinations: fields.required(number)?,
            max_unanswered: fields.required(number)?,
            new_per_s: fields.required(number)?,
            inbound_per_s: fields.optional(number)?,
            https_names: fields.optional(names)?,
        };
        fields.0.is_empty().then_some(rules)
    }

    /// Returns the bits of the protocols that may leave: those that the operator names, else those that the peer flags
    /// stand for.
    pub fn protocols_or(&self, peer_flags: u16) -> u8 {
        self.protocols.unwrap_or_else(|| protocols_of(peer_flags))
    }

    /// Whether a stream may go to this name, empty where an address was asked for. Where names are listed, TLS goes to
    /// these alone.
    pub fn stream_name(&self, name: &str, port: u16) -> Result<(), DropReason> {
        let Some(names) = self.https_names.as_ref().filter(|_| port == HTTPS_PORT) else { return Ok(()) };
        let is_listed = names.iter().any(|listed| {
            let start = name.len().checked_sub(listed.len());
            let ends_so = start.and_then(|at| name.get(at..)).is_some_and(|end| end.eq_ignore_ascii_case(listed));
            ends_so
                && (name.len() == listed.len()
                    || name.get(..start.unwrap_or(0)).is_some_and(|start| start.ends_with('.')))
        });
        is_listed.then_some(()).ok_or(DropReason::StreamNameRefused)
    }

    /// Whether a host is in a network that may be sent to.
    pub fn network(&self, host: IpAddr) -> Result<(), DropReason> {
        let address = match host.to_canonical() {
            IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
            IpAddr::V6(ip) => u128::from(ip),
        };
        let is_allowed = self.allowed.as_ref().is_none_or(|allowed| allowed.contains(address));
        if !is_allowed || self.denied.contains(address) {
            return Err(DropReason::ExitNetworkDenied);
        }
        Ok(())
    }

    /// Returns Err if the network or the port of a destination is denied, or not among the allowed ones.
    pub fn destination(&self, to: SocketAddr) -> Result<(), DropReason> {
        self.network(to.ip())?;
        let is_allowed = self.allowed_ports.as_ref().is_none_or(|allowed| allowed.contains(to.port()));
        if !is_allowed || self.denied_ports.contains(to.port()) {
            return Err(DropReason::ExitPortDenied);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Contact {
    /// None: it has answered, and wants to be spoken to.
    unanswered: Option<u32>,
    active_ns: u64,
}

/// A burst of new destinations, in time of their rate.
const BURST_NS: u64 = 10_000_000_000;
/// Destinations that a circuit may have where nothing else is said.
const MAX_KNOWN: usize = 1 << 16;

/// The destinations of one circuit that ends here, by IP address: whoever floods one can choose any port.
#[derive(Debug, Default)]
pub struct Contacts {
    known: HashMap<IpAddr, Contact>,
    new: OwnBucket,
    looked_ns: u64,
}

impl Contacts {
    /// Whether one more datagram may go there; it is counted then.
    pub fn may_send(&mut self, rules: &ExitRules, to: SocketAddr, now_ns: u64) -> Result<(), DropReason> {
        if rules.max_destinations == 0 && rules.max_unanswered == 0 && rules.new_per_s == 0 {
            return Ok(());
        }
        if let Some(contact) = self.known.get_mut(&to.ip()) {
            contact.active_ns = now_ns;
            if let Some(sent) = &mut contact.unanswered {
                if rules.max_unanswered > 0 && *sent >= rules.max_unanswered {
                    return Err(DropReason::ExitUnanswered);
                }
                *sent = sent.saturating_add(1);
            }
            return Ok(());
        }
        let most = if rules.max_destinations == 0 { MAX_KNOWN } else { rules.max_destinations as usize };
        if rules.new_per_s > 0 && !self.new.permits(now_ns) {
            return Err(DropReason::ExitNewDestinationsTooFast);
        }
        self.forget_the_quiet(most, now_ns);
        if self.known.len() >= most {
            return Err(DropReason::ExitTooManyDestinations);
        }
        if rules.new_per_s > 0 {
            self.new.take(1, u64::from(rules.new_per_s), BURST_NS, now_ns);
        }
        self.known.insert(to.ip(), Contact { unanswered: Some(1), active_ns: now_ns });
        Ok(())
    }

    /// Once a minute, and in a full table once a second.
    fn forget_the_quiet(&mut self, most: usize, now_ns: u64) {
        let period_ns = if self.known.len() >= most { LOOK_EVERY_NS } else { QUIET_NS };
        if now_ns.saturating_sub(self.looked_ns) >= period_ns {
            self.looked_ns = now_ns;
            self.known.retain(|_, contact| now_ns.saturating_sub(contact.active_ns) < QUIET_NS);
            self.known.shrink_to(2 * self.known.len());
        }
    }

    /// Records that a destination has answered: `max_unanswered` no longer applies to it. Unknown addresses are
    /// ignored.
    pub fn answered(&mut self, from: SocketAddr, now_ns: u64) {
        if let Some(contact) = self.known.get_mut(&from.ip()) {
            contact.unanswered = None;
            contact.active_ns = now_ns;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn to(number: u16) -> SocketAddr {
        let [high, low] = number.to_be_bytes();
        SocketAddr::from(([8, 8, high, low], 6881))
    }

    #[test]
    fn another_port_is_no_other_destination() {
        let rules = ExitRules { max_unanswered: 2, ..ExitRules::default() };
        let mut contacts = Contacts::default();
        let sent =
            (1..=1000).filter(|port| contacts.may_send(&rules, SocketAddr::from(([8, 8, 8, 8], *port)), 0).is_ok());
        assert_eq!(sent.count(), 2);
    }

    #[test]
    fn a_destination_that_never_answered_gets_so_many() {
        let rules = ExitRules { max_unanswered: 2, ..ExitRules::default() };
        let mut contacts = Contacts::default();
        let sent: Vec<_> = (0..4).map(|_| contacts.may_send(&rules, to(1), 0)).collect();
        assert_eq!(sent, [Ok(()), Ok(()), Err(DropReason::ExitUnanswered), Err(DropReason::ExitUnanswered)]);
        contacts.answered(to(1), 0);
        assert!((0..100).all(|_| contacts.may_send(&rules, to(1), 0).is_ok()));
        assert!(contacts.may_send(&rules, to(2), 0).is_ok());
    }

    #[test]
    fn a_circuit_has_so_many_destinations_at_a_time() {
        let rules = ExitRules { max_destinations: 2, ..ExitRules::default() };
        let mut contacts = Contacts::default();
        let sent: Vec<_> = [1, 2, 3, 1].map(|port| contacts.may_send(&rules, to(port), 0)).into();
        assert_eq!(sent, [Ok(()), Ok(()), Err(DropReason::ExitTooManyDestinations), Ok(())]);
        assert!(contacts.may_send(&rules, to(3), QUIET_NS).is_ok());
    }

    #[test]
    fn new_destinations_come_at_a_rate() {
        let rules = ExitRules { new_per_s: 5, ..ExitRules::default() };
        let mut contacts = Contacts::default();
        let now_ns = 1_000_000_000_000;
        let at_once = (0..1000).filter(|port| contacts.may_send(&rules, to(*port), now_ns).is_ok()).count();
        assert!((50..=51).contains(&at_once), "{at_once}");
        assert_eq!(contacts.may_send(&rules, to(2000), now_ns), Err(DropReason::ExitNewDestinationsTooFast));
        let later =
            (2000..3000).filter(|port| contacts.may_send(&rules, to(*port), now_ns + 1_000_000_000).is_ok()).count();
        assert!((4..=6).contains(&later), "{later}");
    }

    proptest! {
        #[test]
        fn ranges_hold_what_is_between_their_ends(mut ends in prop::collection::btree_set(any::<u16>(), 0..20), port: u16) {
            if ends.len() % 2 == 1 {
                ends.pop_last();
            }
            let ends: Vec<_> = ends.into_iter().collect();
            let packed: Vec<u8> = ends.iter().flat_map(|end| end.to_be_bytes()).collect();
            let ranges = Ranges::of_ports(&packed).unwrap();
            let expected = ends.chunks(2).any(|ends| matches!(ends, [first, last] if (*first..=*last).contains(&port)));
            prop_assert_eq!(ranges.contains(port), expected);
        }

        #[test]
        fn no_packed_rules_panic(packed in prop::collection::vec(any::<u8>(), 0..200), ip: u128, port: u16) {
            let rules = ExitRules {
                denied: Ranges::of_addresses(&packed).unwrap_or_default(),
                allowed_ports: Ranges::of_ports(&packed),
                ..ExitRules::default()
            };
            let _ = rules.destination(SocketAddr::new(IpAddr::V6(ip.into()), port));
            let _ = ExitRules::unpack(&packed);
        }
    }
}
