"""TLS: the certificates of a broker, those it trusts, and their exchange without a restart."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tallystick.broker.config import Config
from tallystick.core.errors import ConfigError

log = logging.getLogger("tallystick.api")

LOOK_SECONDS = 2.0
_SETTINGS = ("tls_cert", "tls_key", "tls_client_ca", "tls_ca")
_Signature = tuple[tuple[int, int, int] | None, ...]


class LoadedTls(Struct, frozen=True):
    """What the files held when they were read. `server` is None if the broker does not speak TLS."""

    server: ssl.SSLContext | None
    peers: ssl.SSLContext
    chain: bytes
    key: bytes
    client_ca: bytes | None
    expires_at: float

    def __repr__(self) -> str:
        return f"LoadedTls(expires_at={self.expires_at})"  # not the key


class Tls(Collector):
    """What a broker's connections are encrypted with, as the files of the configuration have it now."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._seen = self._signature()
        self.now = self._load()
        self._reloads = {"done": 0, "refused": 0}

    @property
    def on(self) -> bool:
        return self.now.server is not None

    @property
    def has_files(self) -> bool:
        """Whether there is something to be exchanged."""
        return any(getattr(self._config, name) for name in _SETTINGS)

    @property
    def client_required(self) -> bool:
        return self._config.tls_client_required

    def server(self) -> ssl.SSLContext | None:
        """For a connection that comes in now."""
        return self.now.server

    def peers(self) -> ssl.SSLContext:
        """For a connection to another broker."""
        return self.now.peers

    # --- exchange --------------------------------------------------------------------------------------------------

    async def watch(self, told: asyncio.Event) -> None:
        """Look at the files now and then, and whenever somebody tells to."""
        while True:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await told.wait()
            except TimeoutError:
                pass
            told.clear()
            try:
                await asyncio.to_thread(self.look)
            except Exception:  # the next look may find them in order
                log.exception("the certificates cannot be looked at, the ones before are used")

    def look(self) -> None:
        """Use the files if they are others than before; if they are not right, what was used is used on."""
        seen = self._signature()
        if seen == self._seen:
            return
        try:
            loaded = self._load()
        except ConfigError as error:
            self._seen = seen
            self._reloads["refused"] += 1
            log.error("the new certificates are not used, the ones before are: %s", error.detail)
            return
        if seen != self._signature():
            return  # they are being exchanged: what was read may be of both
        self._seen, self.now = seen, loaded
        self._reloads["done"] += 1
        log.info("the certificates were exchanged%s", f"; valid until {_day(loaded.expires_at)}" if self.on else "")

    def _signature(self) -> _Signature:
        return tuple(_stat(getattr(self._config, name)) for name in _SETTINGS)

    # --- reading ---------------------------------------------------------------------------------------------------

    def _load(self) -> LoadedTls:
        config = self._config
        peers = _peers_context(config)
        if not config.tls_cert:
            return LoadedTls(None, peers, b"", b"", None, 0.0)
        chain, key = _read(config, "tls_cert"), _read(config, "tls_key")
        expires_at = _check_pair(config, chain, key)
        client_ca = _read(config, "tls_client_ca") if config.tls_client_ca else None
        server = _server_context(config)
        if client_ca is not None:
            _ask_clients(server, config)
            _load_pair(peers, config)
        return LoadedTls(server, peers, chain, key, client_ca, expires_at)

    def collect(self) -> Iterable[Metric]:
        """For Prometheus."""
        if not self.on:
            return
        yield GaugeMetricFamily(
            "tallystick_tls_expires_seconds",
            "Time until the certificate expires; negative once it has.",
            value=self.now.expires_at - time.time(),
        )
        reloads = CounterMetricFamily(
            "tallystick_tls_reloads", "Certificates that were exchanged, or were not right.", labels=["outcome"]
        )
        for outcome, count in self._reloads.items():
            reloads.add_metric([outcome], count)
        yield reloads


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(config: Config, setting: str) -> bytes:
    path = Path(getattr(config, setting))
    try:
        return path.read_bytes()
    except OSError as error:
        raise _wrong(config, setting, error.strerror or str(error)) from error


def _wrong(config: Config, setting: str, why: str) -> ConfigError:
    return ConfigError(f"{setting}: {getattr(config, setting)}: {why}", field=setting)


def _check_pair(config: Config, chain: bytes, key: bytes) -> float:
    """When the certificate expires; raises if it has, or if the two are not a certificate and its key."""
    from cryptography import x509  # late, as below: a broker without TLS starts without it

    try:
        certificate = x509.load_pem_x509_certificates(chain)[0]
    except ValueError as error:
        raise _wrong(config, "tls_cert", "there is no certificate in it, in PEM") from error
    now, last = datetime.now(UTC), certificate.not_valid_after_utc
    if now > last:
        raise _wrong(config, "tls_cert", f"the certificate expired on {last:%Y-%m-%d %H:%M} UTC; renew it")
    if now < certificate.not_valid_before_utc:
        raise _wrong(
            config,
            "tls_cert",
            f"the certificate is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on",
        )
    if _public_key_of(config, key) != certificate.public_key():
        raise _wrong(config, "tls_key", "this is not the key of the certificate in tls_cert")
    return last.timestamp()


def _public_key_of(config: Config, key: bytes) -> object:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(key, None).public_key()
    except TypeError as error:
        raise _wrong(
            config, "tls_key", "it has a password; give a file without one that only this user reads"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _wrong(config, "tls_key", "there is no key in it, in PEM, of a kind that is known here") from error


def _server_context(config: Config) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    _load_pair(context, config)
    return context


def _load_pair(context: ssl.SSLContext, config: Config) -> None:
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key, password="")  # or a person is asked for one
    except (OSError, ValueError) as error:  # of a kind that nobody should use any more, or exchanged just now
        raise _wrong(config, "tls_cert", f"the certificate and its key cannot be used: {error}") from error


def _ask_clients(context: ssl.SSLContext, config: Config) -> None:
    _trust(context, config, "tls_client_ca")
    context.verify_mode = ssl.CERT_REQUIRED if config.tls_client_required else ssl.CERT_OPTIONAL
    # A session that is taken up again is not verified again: a certificate could outlive its CA's place in the file.
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET


def _peers_context(config: Config) -> ssl.SSLContext:
    if not config.tls_ca:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _trust(context, config, "tls_ca")
    return context


def _trust(context: ssl.SSLContext, config: Config, setting: str) -> None:
    _read(config, setting)  # says more plainly what keeps it from being read
    try:
        context.load_verify_locations(getattr(config, setting))
    except OSError as error:
        raise _wrong(config, setting, "there is no certificate in it, in PEM") from error


def _day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"
