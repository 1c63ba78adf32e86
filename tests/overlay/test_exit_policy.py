import pytest

from overlay.exit_socket import is_allowed_destination

PUBLIC = ["8.8.8.8", "130.161.119.206", "2001:4860:4860::8888", "::ffff:8.8.8.8"]
PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.1.1",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "::1",
    "fe80::1",
    "fc00::1",
    "::ffff:127.0.0.1",
    "::ffff:192.168.1.1",
]
NEVER = ["0.0.0.0", "224.0.0.1", "239.255.255.250", "255.255.255.255", "::", "ff02::1", "not an address", ""]


@pytest.mark.parametrize("host", PUBLIC)
def test_public_is_allowed(host):
    assert is_allowed_destination(host, 6881, allow_private=False)


@pytest.mark.parametrize("host", PRIVATE)
def test_private_only_when_told(host):
    assert not is_allowed_destination(host, 6881, allow_private=False)
    assert is_allowed_destination(host, 6881, allow_private=True)


@pytest.mark.parametrize("host", NEVER)
@pytest.mark.parametrize("allow_private", [False, True])
def test_nobody_and_everybody_are_never_a_destination(host, allow_private):
    assert not is_allowed_destination(host, 6881, allow_private)


@pytest.mark.parametrize(("port", "allowed"), [(-1, False), (0, False), (1, True), (65535, True), (65536, False)])
def test_ports(port, allowed):
    assert is_allowed_destination("8.8.8.8", port, allow_private=False) is allowed
