"""Configuration: defaults, then a TOML file, then TALLYSTICK_* variables, then flags. Validated as a whole at start."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections import Counter
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from tallystick.core.access import AddressGrant, CertificateGrant, StaticToken
from tallystick.core.backoff import Backoff
from tallystick.core.claims import ClaimGrant, ClaimName
from tallystick.core.durations import DAY_MS, milliseconds
from tallystick.core.errors import ConfigError
from tallystick.core.limits import MIB, MOST_STORES, Limits
from tallystick.core.message import MAX_TIMEOUT_MS
from tallystick.core.store_urls import ENGINES, store_url
from tallystick.core.transaction import CheckDefaults
from tallystick.store.protocol import StoreSettings

PREFIX = "TALLYSTICK_"
TABLES = ("static_tokens", "address_grants", "certificates", "jwt_grants")
"""Settings that are lists of tables, which only a file can hold."""
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Duration = NotNegative  # in milliseconds, once parsed
Waiting = Annotated[int, Meta(ge=100, le=3_600_000)]  # a duration: for a connection, so neither nothing nor for ever
# As browsers write a name in `Host`, without its port.
BrowserHost = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?\Z")]
_DURATIONS = ("Duration", "Waiting")
LEAST_LEASE_MS = 500
LOCAL_STORES = ("rocksdb", "memory")
LOOPBACK_URLS = [f"{scheme}://{host}:*" for scheme in ("http", "grpc") for host in ("127.0.0.1", "localhost", "[::1]")]
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")
JWT_SETTINGS = ("jwt_issuer", "jwt_audience", "jwt_jwks")


class Config(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Every setting of a broker. Names ending in nothing else are counts; durations and sizes say so in `--help`."""

    # where
    data_dir: str = "tallystick-data"
    store: str = "rocksdb"
    host: str = "127.0.0.1"
    port: Port = 7440
    grpc: bool = True
    grpc_port: Port = 7441
    # TLS
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tls_client_required: bool = False
    tls_ca: str = ""
    certificates: list[CertificateGrant] = []
    # connections
    head_timeout: Waiting = 10_000
    body_timeout: Waiting = 60_000
    # Longer than clients keep an idle connection: if both end it at once, a request is lost between them.
    idle_timeout: Waiting = 75_000
    handshake_timeout: Waiting = 10_000
    max_connections: Positive = 10_000
    max_connections_per_address: Positive = 2_000
    # a cluster
    stores: Annotated[int, Meta(ge=0, le=MOST_STORES)] = 0
    advertise: str = ""
    advertise_grpc: str = ""
    lease: Duration = 3_000
    allow_weak_durability: bool = False
    # who may do what
    auth: Literal["off", "tokens"] = "off"
    allow_open: bool = False
    browser_hosts: list[BrowserHost] = []
    static_tokens: list[StaticToken] = []
    address_grants: list[AddressGrant] = []
    # limits
    max_message_bytes: Positive = 4 * MIB
    max_request_bytes: Positive = 16 * MIB
    max_transaction_messages: Positive = 1_000
    max_topics: Positive = 10_000
    max_groups: Positive = 10_000
    max_queues_per_topic: Annotated[int, Meta(ge=1, le=4096)] = 256
    max_waiting_bytes: Positive = 64 * MIB
    max_long_polls: Positive = 10_000
    min_free_bytes: NotNegative = 256 * MIB
    # topics and consumers
    auto_create_topics: bool = True
    default_queues: Annotated[int, Meta(ge=1, le=4096)] = 4
    retention: Duration = 7 * DAY_MS
    dedup_retention: Duration = 7 * DAY_MS
    part_ttl: Duration = DAY_MS
    audit_retention: Duration = 90 * DAY_MS
    max_attempts: Positive = 16
    redelivery_first: Duration = 1_000
    redelivery_cap: Duration = 300_000
    max_leased: Positive = 10_000
    # check-back
    check_after: Duration = 10_000
    check_interval: Duration = 2_000
    check_interval_cap: Duration = 30_000
    check_timeout: Duration = 10_000
    max_checks: Positive = 15
    on_exhausted: Literal["park", "rollback"] = "park"
    max_pending_age: Duration = 3 * DAY_MS
    checks_per_target: Positive = 32
    allowed_urls: list[str] = field(default_factory=lambda: list(LOOPBACK_URLS))
    databases: dict[str, str] = {}
    barrier_table: str = "tallystick_barrier"
    allow_unchecked: bool = False
    alert_url: str = ""
    # calls
    call_timeout: Duration = 10_000
    call_retry_first: Duration = 1_000
    call_retry_cap: Duration = 300_000
    call_max_attempts: Positive = 1_000
    call_alert_after: Positive = 3
    calls_per_host: Positive = 64
    calls_in_flight: Positive = 2_000
    call_breaker_failures: Positive = 5
    call_probe: Duration = 1_000
    call_probe_cap: Duration = 5_000
    # proof of who calls, both ways
    signing_keys_file: str = ""
    jwt_issuer: str = ""
    jwt_audience: str = ""
    jwt_jwks: str = ""
    jwt_ca: str = ""
    jwt_name_claim: ClaimName = "sub"
    jwt_grants: list[ClaimGrant] = []
    # running
    drain_timeout: Duration = 10_000
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    @property
    def shared(self) -> bool:
        """Whether the store is a server's, which several brokers use."""
        return "://" in self.store

    def limits(self) -> Limits:
        return Limits(
            message_bytes=self.max_message_bytes,
            request_bytes=self.max_request_bytes,
            transaction_messages=self.max_transaction_messages,
            topics=self.max_topics,
            groups=self.max_groups,
            queues_per_topic=self.max_queues_per_topic,
        )

    def store_settings(self) -> StoreSettings:
        return StoreSettings(
            checks=CheckDefaults(
                after_ms=self.check_after,
                max_checks=self.max_checks,
                backoff=Backoff(self.check_interval, self.check_interval_cap),
                on_exhausted=self.on_exhausted,
                max_age_ms=self.max_pending_age,
            ),
            limits=self.limits(),
            auto_create_topics=self.auto_create_topics,
            default_queues=self.default_queues,
            retention_ms=self.retention,
            dedup_retention_ms=self.dedup_retention,
            part_ttl_ms=self.part_ttl,
            audit_retention_ms=self.audit_retention,
            max_attempts=self.max_attempts,
            redelivery=Backoff(self.redelivery_first, self.redelivery_cap),
            max_leased=self.max_leased,
            calls=Backoff(self.call_retry_first, self.call_retry_cap),
            max_call_attempts=self.call_max_attempts,
            call_alert_after=self.call_alert_after,
        )


_TYPES: dict[str, Any] = Config.__annotations__


def _parsed(name: str, value: Any, origin: str) -> Any:
    """Text from a file, a variable or a flag as what the field wants."""
    wanted = str(_TYPES[name])
    if name in TABLES and isinstance(value, str) and value.strip():
        raise ConfigError(f"{name} ({origin}): a list of tables, [[{name}]], which only a file can hold", field=name)
    try:
        if is_duration(name):
            return milliseconds(value)
        if name == "store" and "://" in str(value):
            return store_url(str(value))
        if isinstance(value, str) and wanted.startswith("list"):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) and wanted.startswith("dict"):
            return dict(_pair(part) for part in value.split(",") if part.strip())
    except (ValueError, msgspec.DecodeError) as error:
        raise ConfigError(f"{name} ({origin}): {error}", field=name) from error
    return value


def is_duration(name: str) -> bool:
    """Whether a setting is a time, and may be given with a unit."""
    return str(_TYPES[name]) in _DURATIONS


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.strip().partition("=")
    if not (name and equals):
        raise ValueError("not of the form name=value, several separated by commas")  # not shown: may hold a password
    return name, value


def _check_name(name: str, origin: str) -> None:
    if name not in _TYPES:
        close = difflib.get_close_matches(name, _TYPES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"{name} ({origin}): there is no such setting{hint}", field=name)


def _from_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}", field="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {path}: {error}", field="config") from error


def load_config(
    path: Path | None = None,
    flags: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration, or a ConfigError that names the field, where it came from and what is wrong."""
    environ = os.environ if environ is None else environ
    variables = {
        name[len(PREFIX) :].lower(): value
        for name, value in environ.items()
        if name.startswith(PREFIX) and name[len(PREFIX) :].lower() in _TYPES
    }
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    sources = [(given, "flag"), (variables, "environment")]
    if path is not None:
        sources.append((_from_file(path), f"file {path}"))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for known, origin in sources:  # the strongest first
        for name, value in known.items():
            _check_name(name, origin)
            if name not in values:
                values[name], origins[name] = _parsed(name, value, origin), origin
    return _validated(values, origins)


def _refusal(name: str, value: Any, message: str) -> str:
    """What is wrong with a value: the choices if there are some, else the decoder's own words."""
    if name in TABLES:  # not shown: somebody may have written the token itself
        return f"is not accepted: {message}"
    kind = get_type_hints(Config).get(name)
    wanted = f"is none of {', '.join(get_args(kind))}" if get_origin(kind) is Literal else f"is not accepted: {message}"
    shown = ", ".join(value) if isinstance(value, dict) else repr(value)  # of databases the names: the rest is secret
    return f"{shown} {wanted}"


def _validated(values: dict[str, Any], origins: dict[str, str]) -> Config:
    try:
        config = msgspec.convert(values, Config, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").split("[")[0]
        origin, told = origins.get(name, "default"), place.rstrip("`") if name in TABLES else name
        # Without its cause for tables: the decoder's words may hold what was written.
        cause = None if name in TABLES else error
        raise ConfigError(f"{told} ({origin}): {_refusal(name, values.get(name), message)}", field=name) from cause
    _check_store(config, origins)
    _check_access(config)
    _check_tls(config)
    if config.max_message_bytes > config.max_request_bytes:
        raise ConfigError("max_message_bytes: larger than max_request_bytes", field="max_message_bytes")
    if config.default_queues > config.max_queues_per_topic:
        raise ConfigError("default_queues: larger than max_queues_per_topic", field="default_queues")
    if not config.check_timeout:
        raise ConfigError("check_timeout: without time for an answer every check would fail", field="check_timeout")
    if config.check_interval > config.check_interval_cap:
        raise ConfigError("check_interval: larger than check_interval_cap", field="check_interval")
    for first, cap in (("call_retry_first", "call_retry_cap"), ("call_probe", "call_probe_cap")):
        if not 0 < getattr(config, first) <= getattr(config, cap):
            raise ConfigError(f"{first}: must be more than 0 and not larger than {cap}", field=first)
    for name in ("call_timeout", "check_timeout"):
        if getattr(config, name) > MAX_TIMEOUT_MS:
            raise ConfigError(f"{name}: at most {MAX_TIMEOUT_MS // 60_000} minutes", field=name)
    if not config.call_timeout:
        raise ConfigError("call_timeout: without time for an answer every call would fail", field="call_timeout")
    if config.max_pending_age > config.dedup_retention and config.dedup_retention:
        raise ConfigError("dedup_retention: shorter than max_pending_age", field="dedup_retention")
    _check_jwt(config)
    return config


def _check_access(config: Config) -> None:
    for name in TABLES:
        if getattr(config, name) and config.auth == "off":
            raise ConfigError(f'{name}: of no use while auth is off; set auth = "tokens"', field=name)
    for taken in ([one.name for one in config.static_tokens], [one.id for one in config.static_tokens]):
        for value, count in Counter(taken).items():
            if count > 1:
                raise ConfigError(f"static_tokens: {value!r} is there more than once", field="static_tokens")
    for grant in config.address_grants:
        for text in grant.addresses:
            try:
                ip_network(text)
            except ValueError as error:
                raise ConfigError(f"address_grants ({grant.name}): {error}", field="address_grants") from error


def _check_tls(config: Config) -> None:
    """What is in the files is looked at by whoever uses them."""
    for name, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("tls_client_ca", "tls_cert")):
        if getattr(config, name) and not getattr(config, other):
            raise ConfigError(f"{name}: needs {other} as well", field=name)
    for name in ("tls_client_required", "certificates"):
        if getattr(config, name) and not config.tls_client_ca:
            raise ConfigError(f"{name}: needs tls_client_ca, which tells whose certificates count", field=name)


def _check_jwt(config: Config) -> None:
    """All that is needed to believe a JWT, or nothing of it."""
    given = [name for name in JWT_SETTINGS if getattr(config, name)]
    for name in JWT_SETTINGS if given or config.jwt_grants else ():
        if name not in given:
            raise ConfigError(f"{name}: needed for JWTs, beside {', '.join(given) or 'jwt_grants'}", field=name)
    if given and not config.jwt_grants:
        raise ConfigError("jwt_grants: without one, nobody with a JWT may do anything", field="jwt_grants")
    where = urlsplit(config.jwt_jwks)
    if config.jwt_ca and where.scheme != "https":
        raise ConfigError("jwt_ca: of no use unless jwt_jwks is an address with https://", field="jwt_ca")
    if "://" in config.jwt_jwks and not (
        where.scheme == "https" or (where.scheme == "http" and where.hostname in LOOPBACK_HOSTS)
    ):
        raise ConfigError(
            "jwt_jwks: the path of a file, or an address with https://; http:// only for this machine itself, because "
            "whoever could change the keys on their way could be anybody",
            field="jwt_jwks",
        )


def _check_store(config: Config, origins: Mapping[str, str]) -> None:
    if config.store not in LOCAL_STORES and not config.shared:
        addresses = ", ".join(f"{engine}://..." for engine in ENGINES)
        raise ConfigError(
            f"store ({origins['store']}): {config.store!r} is none of {', '.join(LOCAL_STORES)}, {addresses}",
            field="store",
        )
    if config.lease < LEAST_LEASE_MS:
        raise ConfigError(f"lease: at least {LEAST_LEASE_MS} ms, or a busy machine is taken for dead", field="lease")
    if not config.shared:
        for name in ("stores", "advertise", "advertise_grpc"):
            if getattr(config, name):
                raise ConfigError(f"{name}: only for a cluster, whose store is a server's address", field=name)
