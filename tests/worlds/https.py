"""Servers that speak TLS, with certificates of an authority that a test makes."""

import datetime
import ipaddress
import socket
import ssl
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.worlds.network import unused_host

HTTPS_PORT = 443  # exits let TLS out to no other


def _may_serve_https():
    with socket.socket() as sock, suppress(OSError):
        sock.bind((unused_host(), HTTPS_PORT))
        return True
    return False


needs_https = pytest.mark.skipif(not _may_serve_https(), reason="only root may listen on port 443")


def authority(folder, host):
    """Make an authority and its certificate for an address or a name; return where the authority is, and a context."""
    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, issuer, issuer_key, extension):
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).add_extension(extension, critical=True)
        builder = builder.not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
        return builder.sign(issuer_key, hashes.SHA256())

    ours, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("an authority", host)]
    of_authority = certificate(names[0], ours, names[0], ours, x509.BasicConstraints(ca=True, path_length=None))
    addresses = x509.SubjectAlternativeName([_general_name(host)])
    of_server = certificate(names[1], key, names[0], ours, addresses)
    trusted, chain = folder / "authority.pem", folder / "server.pem"
    trusted.write_bytes(of_authority.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    chain.write_bytes(of_server.public_bytes(serialization.Encoding.PEM) + private)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain)
    return trusted, context


def _general_name(host):
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    return x509.DNSName(host)
