"""A CA for tests of clients, and what it signs: right certificates, and such as must be refused."""

from __future__ import annotations

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from certificates import CA_USAGE

DAY = datetime.timedelta(days=1)


class TestAuthority:
    """`TestAuthority(directory, "ours")`: its own certificate is in `file`."""

    __test__ = False

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = _named(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._serial = 1
        now = datetime.datetime.now(datetime.UTC)
        made = (
            self._builder(self._name, self._key, now - DAY, now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(CA_USAGE, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.file = directory / f"{name}-ca.pem"
        self.file.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, host: str = "127.0.0.1", *, expired: bool = False) -> Path:
        """A file with a certificate for a host, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        whom = x509.DNSName(host) if host[0].isalpha() else x509.IPAddress(ip_address(host))
        made = (
            self._builder(_named(name), key, now - 3 * DAY, now - DAY if expired else now + DAY)
            .add_extension(x509.SubjectAlternativeName([whom]), critical=False)
            # Python 3.13 accepts no certificate without it.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self._directory / f"{name}.pem"
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + _pem(key))
        return path

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begin: datetime.datetime,
        end: datetime.datetime,
    ) -> x509.CertificateBuilder:
        self._serial += 1
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(self._serial)
            .not_valid_before(begin)
            .not_valid_after(end)
        )


def serving(certificate: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """TLS for a server, which demands a certificate of this CA of its clients, if one is named."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
