"""Certificates for servers and clients of the tests."""

from __future__ import annotations

import datetime
import ssl
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)
# Python 3.13 accepts no authority without it.
CA_USAGE = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


def self_signed(path: Path, name: str) -> Path:
    """A file with a certificate that a server signed itself, and its key; `name` is its host's name or address."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _called(name)
    made = _builder(subject, subject, key, days=1).add_extension(x509.SubjectAlternativeName([_host(name)]), False)
    path.write_bytes(_pem(made.sign(key, hashes.SHA256())) + _secret(key))
    return path


class Authority:
    """A CA of its own, whose certificate is in `path`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory, self.name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _called(name)
        made = (
            _builder(self._subject, self._subject, self._key, days=30)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
            .add_extension(CA_USAGE, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(
        self, common_name: str, *hosts: str, uris: tuple[str, ...] = (), emails: tuple[str, ...] = (), days: float = 7
    ) -> tuple[Path, Path]:
        """Files with a certificate for these hosts, and its key. With `days` below 0 it has expired. The files of the
        same name are replaced, the way programs that renew certificates do it."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [*map(_host, hosts), *map(x509.UniformResourceIdentifier, uris)]
        names += map(x509.RFC822Name, emails)
        made = _builder(_called(common_name), self._subject, key, days).add_extension(
            # Python 3.13 accepts no certificate without it.
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
            False,
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), False)
        signed = made.sign(self._key, hashes.SHA256())
        paths = (self.directory / f"{common_name}.crt", self.directory / f"{common_name}.key")
        for path, content in zip(paths, (_pem(signed), _secret(key)), strict=True):
            fresh = path.with_suffix(path.suffix + ".new")
            fresh.write_bytes(content)
            fresh.replace(path)
        return paths

    def trusting(self, *own: Path, hostname: bool = True) -> ssl.SSLContext:
        """What a client connects with that trusts this CA; `own` are the files of its own certificate."""
        context = ssl.create_default_context(cafile=self.path)
        context.check_hostname = hostname
        if own:
            context.load_cert_chain(*own)
        return context


def serial_of(pem: bytes | str | Path) -> int:
    """Tells certificates apart."""
    data = pem.read_bytes() if isinstance(pem, Path) else pem.encode() if isinstance(pem, str) else pem
    return x509.load_pem_x509_certificate(data).serial_number


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    return x509.DNSName(name) if name[0].isalpha() or name[0] == "*" else x509.IPAddress(ip_address(name))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 3 * DAY)
        .not_valid_after(now + days * DAY)
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
