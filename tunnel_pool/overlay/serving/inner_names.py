"""Names that mean something inside a network alone: no exit looks them up, and no exit is asked for them. Pure.

An exit that looked them up would tell strangers which machines its own network has; who asks an exit for one tells it
of his.
"""

# RFC 6761, 6762, 7686, 8375, 9476 and ICANN's .internal; what home routers, companies and other networks use.
INNER_SUFFIXES = (
    "alt", "arpa", "corp", "dhcp", "domain", "home", "i2p", "internal", "intranet", "invalid", "lan", "local",
    "localdomain", "localhost", "mail", "onion", "private", "test", "wlan", "workgroup",
    "easy.box", "fritz.box", "o2.box", "speedport.ip",
)  # fmt: skip


def is_inner_name(name: str) -> bool:
    """Return whether a name can't be a host's on the internet: of one label, of an inner domain, or a number.

    A last label that is a number, decimal or hexadecimal, makes it an IPv4 address to some resolvers: 127.1, 0x7f.1.
    """
    labels = name.lower().rstrip(".").split(".")
    if len(labels) < 2 or not all(labels):
        return True
    last = labels[-1]
    if last.isdigit() or (last.startswith("0x") and all(digit in "0123456789abcdef" for digit in last[2:])):
        return True
    return any(labels[-len(suffix) :] == suffix for suffix in _SUFFIXES)


_SUFFIXES = [suffix.split(".") for suffix in INNER_SUFFIXES]
