"""Gives each socket of a group its owner: the programs of steering/bpf.py return these indexes. Pure."""

OWN_SOCKET = 0  # that of the process that opened the group


def socket_of_slot(slot: int) -> int:
    """Return the index of the socket that the child of a slot has in every group."""
    return slot + 1
