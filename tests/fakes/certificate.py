"""Certificates of servers on this machine."""

import ssl
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


def certificate_for(host: str, folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A file with the key and the certificate of a server, and what a client trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2090, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(host))]), False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    file = folder / "server.pem"
    file.write_bytes(private + made.public_bytes(Encoding.PEM))
    trusted = ssl.create_default_context(cadata=made.public_bytes(Encoding.PEM).decode())
    return file, trusted
