"""A private Tor network's configuration: what each node's torrc says (tor(1)). Pure.

Three authorities agree on a consensus within seconds (`TestingTorNetwork`), and are used for nothing else. Clients
choose among the relays and exits as Tor does; entry guards are off, so that every circuit may have another first hop.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

OR_PORT, DIR_PORT, SOCKS_PORT = 5000, 7000, 9050
ROUND_S = 10  # a consensus is made so often


class Authority(NamedTuple):
    """Describes an authority to other nodes: its fingerprints as such, and as a relay, are hexadecimal."""

    name: str
    host: str
    identity: str
    relay: str

    def line(self) -> str:
        return (
            f"DirAuthority {self.name} orport={OR_PORT} no-v2 v3ident={self.identity} "
            f"{self.host}:{DIR_PORT} {self.relay}"
        )


def common(folder: Path, authorities: Iterable[Authority]) -> list[str]:
    """Return what all nodes' files say. Congestion control is on, as in the public network's consensus."""
    return [
        "TestingTorNetwork 1",
        f"DataDirectory {folder}",
        "Log notice stderr",
        "ShutdownWaitLength 0",
        "AssumeReachable 1",
        "PathsNeededToBuildCircuits 0.67",
        *(authority.line() for authority in authorities),
    ]


def router(name: str, host: str) -> list[str]:
    return [f"Nickname {name}", f"Address {host}", f"ORPort {host}:{OR_PORT} IPv4Only", "SocksPort 0"]


def relay(name: str, host: str) -> list[str]:
    return [*router(name, host), "ExitRelay 0"]


def exit_relay(name: str, host: str) -> list[str]:
    return [*router(name, host), "ExitRelay 1", "ExitPolicy accept *:*", "ExitPolicyRejectPrivate 0"]


def authority(name: str, host: str) -> list[str]:
    return [
        *relay(name, host),
        f"DirPort {host}:{DIR_PORT}",
        "AuthoritativeDirectory 1",
        "V3AuthoritativeDirectory 1",
        "ContactInfo nobody",
        f"V3AuthVotingInterval {ROUND_S}",
        "V3AuthVoteDelay 2",
        "V3AuthDistDelay 2",
        f"TestingV3AuthInitialVotingInterval {ROUND_S}",
        "TestingV3AuthInitialVoteDelay 2",
        "TestingV3AuthInitialDistDelay 2",
        "TestingDirAuthVoteExit *",
        "TestingDirAuthVoteGuard *",
        "ConsensusParams cc_alg=2",
    ]


def client(authorities: Iterable[Authority]) -> list[str]:
    """Return the lines of a client, none of whose circuits goes over authorities; each user of SOCKS has his own."""
    return [
        f"SocksPort 127.0.0.1:{SOCKS_PORT} IsolateSOCKSAuth",
        "ClientOnly 1",
        "UseEntryGuards 0",
        f"ExcludeNodes {','.join(authority.host for authority in authorities)}",
    ]


def identity_of(certificate: str) -> str:
    """Return the fingerprint that an authority's certificate names (dir-spec, "Authority key certificates")."""
    line = next(line for line in certificate.splitlines() if line.startswith("fingerprint "))
    return line.split()[1]
