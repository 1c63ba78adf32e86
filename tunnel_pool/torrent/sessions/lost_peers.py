"""libtorrent's peers that it has lost: those whose circuit is gone, and those that it has given up."""

from collections.abc import Callable, Iterable

import libtorrent as lt
from ipv8.messaging.anonymization.tunnel import CIRCUIT_ID_PORT

from tunnel_pool.contract import Address


def is_end_to_end(peer: Address) -> bool:
    """Return whether this is the address of an end-to-end circuit; another circuit gives the peer another one."""
    return peer[1] == int(CIRCUIT_ID_PORT)


def connect_anew(handle: lt.torrent_handle, peer: Address) -> None:
    """Connect to a peer, also to one that could not be reached before.

    libtorrent gives a peer up after three failures, unless `max_failcount` is changed once the torrent knows peers, and
    forgives one failure where a tracker names the peer again (findings/libtorrent-gives-a-peer-up-after-three-*).
    """
    handle.connect_peer(peer, int(lt.peer_info.tracker))


def drop_and_forget(session: lt.session, hosts: Iterable[str]) -> None:
    """Drop the peers at these IP addresses, and have libtorrent forget them: it does when a filter is set on them."""
    before, blocked = session.get_ip_filter(), session.get_ip_filter()
    for host in hosts:
        blocked.add_rule(host, host, 1)
    session.set_ip_filter(blocked)
    session.set_ip_filter(before)


def drop_and_reconnect(
    session: lt.session, handles: Iterable[lt.torrent_handle], is_lost: Callable[[Address], bool]
) -> None:
    """Drop lost peers of these torrents, and ask again for those that are not end-to-end.

    They would know us by another exit's address from now on, and libtorrent
    would notice only by time-outs.
    """
    connected = [(handle, peer.ip) for handle in handles for peer in handle.get_peer_info()]
    lost_hosts = {peer[0] for _, peer in connected if is_lost(peer)}
    if not lost_hosts:
        return
    drop_and_forget(session, lost_hosts)
    # The filter knows addresses only: others behind a lost one come back, too.
    for handle, peer in connected:
        if peer[0] in lost_hosts and not (is_end_to_end(peer) and is_lost(peer)):
            handle.connect_peer(peer)
