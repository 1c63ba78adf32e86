"""Test vectors on which both engines must agree: addresses, and the contents of datagrams."""

PUBLIC = ["8.8.8.8", "130.161.119.206", "2001:4860:4860::8888", "::ffff:8.8.8.8"]
PRIVATE = [
    "127.0.0.1",
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.1.1",
    "100.64.0.1",
    "100.127.255.255",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "240.0.0.1",
    "::1",
    "fe80::1",
    "fc00::1",
    "2001:db8::1",
    "100::1",
    "::ffff:127.0.0.1",
    "::ffff:192.168.1.1",
]
NEVER = [
    "0.0.0.0",
    "224.0.0.1",
    "239.255.255.250",
    "255.255.255.255",
    "::",
    "ff02::1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "::7f00:2",
    "fec0::1",
]
BORDERS = {"172.15.255.255": True, "172.32.0.0": True, "100.63.255.255": True, "100.128.0.0": True, "198.20.0.0": True}

UTP = bytes([0x41, 0]) + bytes(18)
BITTORRENT = {
    "uTP": UTP,
    "uTP, last type and extension": bytes([0x41, 3]) + bytes(18),
    "tracker request": bytes.fromhex("0000041727101980") + bytes(8),
    "tracker answer": bytes([0, 0, 0, 3]) + bytes(4),
    "DHT": b"d1:y1:qe",
    "shortest DHT": b"de",
}
NOT_BITTORRENT = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "uTP one byte short": UTP[:-1].replace(b"\x00", b"\xff"),
    "uTP of type 5": bytes([0x51, 0]) + b"\xff" * 18,
    "uTP of version 2": bytes([0x42, 0]) + b"\xff" * 18,
    "uTP with extension 4": bytes([0x41, 4]) + b"\xff" * 18,
    "tracker action 4": bytes([0, 0, 0, 4]) + b"\xff" * 12,
    "d alone": b"d",
}
IPV8 = {"version 1": bytes([0, 1]) + b"\xff" * 21, "version 2": bytes([0, 2]) + b"\xff" * 21}
NOT_IPV8 = {"too short": bytes([0, 1]) + b"\xff" * 20, "version 3": bytes([0, 3]) + b"\xff" * 21}
