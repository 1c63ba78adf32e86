"""Sets libtorrent up so that nothing leaves outside the tunnels."""

from enum import Enum
from typing import Any

import libtorrent as lt

from tunnel_pool.socks5.messages import Secret
from tunnel_pool.torrent.sessions.transport import Transport

SOCKET_BUFFER_BYTES = 4_000_000
STOP_TRACKER_TIMEOUT_S = 2  # how long the end of a session waits for trackers that are told of it
ALERTS = int(
    lt.alert.category_t.error_notification
    | lt.alert.category_t.status_notification
    | lt.alert.category_t.storage_notification
    | lt.alert.category_t.tracker_notification
)


class Encryption(Enum):
    """Says whether connections to peers are encrypted (message stream encryption), in Transmission's words."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    TOLERATED = "tolerated"


# Every node of a private swarm is in the same network, and knows itself by a loopback address.
PRIVATE_DHT = {
    "dht_ignore_dark_internet": False,
    "dht_restrict_routing_ips": False,
    "dht_restrict_search_ips": False,
    "dht_prefer_verified_node_ids": False,
}


# default_settings() of libtorrent's Python leaves out these settings, whose default is a null string.
NAMED_NOT_LISTED = frozenset({
    "announce_ip", "dht_bootstrap_nodes", "i2p_hostname", "outgoing_interfaces", "proxy_hostname", "proxy_password",
    "proxy_username",
})  # fmt: skip

# One tracker of each tier is asked: public lists have a tier for each, and each knows other peers. libtorrent has the
# names of this setting and of announce_to_all_tiers the wrong way round (findings/, libtorrent-announce-to-all-*). It
# would put UDP trackers before HTTP trackers of one host, whatever their tiers, and then pass over some tiers.
ASK_ALL_TIERS = {"announce_to_all_trackers": True, "prefer_udp_trackers": False}

# A dead circuit looks like a silent peer: notice it and come back over another.
OVER_CIRCUITS = {
    "piece_timeout": 5,
    "request_timeout": 10,
    "peer_timeout": 30,
    "min_reconnect_time": 1,
    "max_failcount": 100,
}


def anonymous_settings(
    socks_port: int, dht: bool = False, private: bool = False, secret: Secret | None = None
) -> dict[str, Any]:
    """Return settings under which libtorrent's only way out is the SOCKS5 server on `socks_port`.

    uTP, UDP trackers and the DHT go by UDP ASSOCIATE, HTTP trackers by CONNECT.
    What could pass by the proxy is off: port mapping, LSD, TCP with peers, and
    look-ups of names; the DHT's first nodes are named by `add_dht_node` alone.
    With `private`, the DHT takes nodes of private networks. The `secret` is the server's.
    """
    settings = {
        **(PRIVATE_DHT if private else {}),
        "listen_interfaces": "127.0.0.1:0",
        "anonymous_mode": True,
        "force_proxy": True,
        "proxy_type": int(lt.proxy_type_t.socks5 if secret is None else lt.proxy_type_t.socks5_pw),
        "proxy_username": "" if secret is None else secret.user,
        "proxy_password": "" if secret is None else secret.password,
        "proxy_hostname": "127.0.0.1",
        "proxy_port": socks_port,
        "proxy_hostnames": True,
        "proxy_peer_connections": True,
        "proxy_tracker_connections": True,
        "proxy_send_host_in_connect": False,
        "socks5_udp_send_local_ep": False,
        # No way beside the proxy: WebTorrent and its STUN server, I2P, TLS with peers.
        "webtorrent_stun_server": "",
        "max_webtorrent_offers": 0,
        "i2p_hostname": "",
        "i2p_port": 0,
        "allow_i2p_mixed": False,
        "ssl_listen": 0,
        # Send nothing that distinguishes sessions or their owners.
        # Of private torrents alone, whose trackers let no program in that they don't know; of others it says curl's.
        "user_agent": f"libtorrent/{lt.__version__}",
        "always_send_user_agent": False,
        "announce_ip": "",
        "announce_port": 0,
        "outgoing_interfaces": "",
        "outgoing_port": 0,
        "num_outgoing_ports": 0,
        "peer_dscp": 0,
        "enable_outgoing_tcp": False,
        "enable_incoming_tcp": False,
        "enable_outgoing_utp": True,
        "enable_incoming_utp": True,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_lsd": False,
        "enable_dht": dht,
        "dht_bootstrap_nodes": "",
        "enable_ip_notifier": False,
        # It refuses announce URLs with a key or port of their own; an exit reaches no private network in any case.
        "ssrf_mitigation": False,
        # Without these uTP loses datagrams in the sockets and runs at a tenth.
        "recv_socket_buffer_size": SOCKET_BUFFER_BYTES,
        "send_socket_buffer_size": SOCKET_BUFFER_BYTES,
        # Peers share exits' addresses.
        "allow_multiple_connections_per_ip": True,
        "mixed_mode_algorithm": 0,
        "rate_limit_ip_overhead": False,
        **ASK_ALL_TIERS,
        **OVER_CIRCUITS,
        # Announces wait for the port that they name (announces/announcer.py), and exits have 20 s to answer.
        "tracker_completion_timeout": 60,
        "tracker_receive_timeout": 40,
        "connection_speed": 50,
        "tick_interval": 100,  # ms; uTP's time-outs and limits of speed are looked at in a tick
        "alert_mask": ALERTS,
    }
    known = lt.default_settings().keys() | NAMED_NOT_LISTED
    return {name: value for name, value in settings.items() if name in known}


def all_alike() -> lt.ip_filter:
    """Return a filter by which rate limits hold for private addresses, too: nobody behind a tunnel is near."""
    classes = lt.ip_filter()
    for first, last in (("0.0.0.0", "255.255.255.255"), ("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")):  # noqa: S104
        classes.add_rule(first, last, 1 << lt.session.global_peer_class_id)
    return classes


def plain_settings(listen: str, dht_nodes: str, private: bool = False) -> dict[str, Any]:
    """Return settings for torrents without hops: TCP and uTP, with everybody.

    `listen` is IP:PORT, `dht_nodes` are HOST:PORT with commas between, without any the DHT is off.
    """
    return {
        **(PRIVATE_DHT if private else {}),
        **ASK_ALL_TIERS,
        "listen_interfaces": listen,
        "enable_upnp": False,
        "enable_natpmp": False,
        "enable_lsd": False,
        "enable_dht": bool(dht_nodes),
        "dht_bootstrap_nodes": dht_nodes,
        "allow_multiple_connections_per_ip": private,
        # After the machine slept, or stood still for some seconds, peers are gone that libtorrent takes to be there. By
        # its defaults it asks for the same pieces again after a minute, and for the same peers after one or two.
        "request_timeout": 20,
        "min_reconnect_time": 10,
        "stop_tracker_timeout": STOP_TRACKER_TIMEOUT_S,
        "alert_mask": ALERTS,
    }


def encryption_settings(encryption: Encryption) -> dict[str, Any]:
    """Return libtorrent's settings for the encryption with peers that torrents without hops have."""
    outgoing, incoming = {
        Encryption.REQUIRED: (lt.enc_policy.forced, lt.enc_policy.forced),
        Encryption.PREFERRED: (lt.enc_policy.enabled, lt.enc_policy.enabled),
        Encryption.TOLERATED: (lt.enc_policy.disabled, lt.enc_policy.enabled),
    }[encryption]
    # The whole of a connection, or its first bytes alone, if that is what the other side would rather have.
    level = lt.enc_level.rc4 if encryption is Encryption.REQUIRED else lt.enc_level.both
    return {"out_enc_policy": int(outgoing), "in_enc_policy": int(incoming), "allowed_enc_level": int(level)}


def transport_settings(transport: Transport) -> dict[str, Any]:
    """Return libtorrent's settings; where encryption is tried and closed by an exit, a plain handshake comes next."""
    return {
        "enable_outgoing_tcp": transport.tcp,
        "enable_outgoing_utp": transport.utp,
        "out_enc_policy": int(lt.enc_policy.enabled if transport.encrypted else lt.enc_policy.disabled),
    }
