"""Configuration: defaults, then a TOML file, then TALLYSTICK_* variables, then flags. Validated as a whole at start."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta, Struct, field

from tallystick.core.backoff import Backoff
from tallystick.core.durations import DAY_MS, milliseconds
from tallystick.core.errors import ConfigError
from tallystick.core.limits import MIB, Limits
from tallystick.core.message import MAX_TIMEOUT_MS
from tallystick.core.transaction import CheckDefaults
from tallystick.store.protocol import StoreSettings

PREFIX = "TALLYSTICK_"
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Duration = NotNegative  # in milliseconds, once parsed
LEAST_LEASE_MS = 500
LOCAL_STORES = ("rocksdb", "memory")
SHARED_STORES = ("postgresql", "mysql", "redis")
LOOPBACK_URLS = [f"{scheme}://{host}:*" for scheme in ("http", "grpc") for host in ("127.0.0.1", "localhost", "[::1]")]


class Config(Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Every setting of a broker. Names ending in nothing else are counts; durations and sizes say so in `--help`."""

    # where
    data_dir: str = "tallystick-data"
    store: str = "rocksdb"
    host: str = "127.0.0.1"
    port: Port = 7440
    grpc: bool = True
    grpc_port: Port = 7441
    # a cluster
    stores: Annotated[int, Meta(ge=0, le=1_024)] = 0
    advertise: str = ""
    advertise_grpc: str = ""
    lease: Duration = 3_000
    allow_weak_durability: bool = False
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
    try:
        if wanted == "Duration":
            return milliseconds(value)
        if isinstance(value, str) and wanted.startswith("list"):
            return [part.strip() for part in value.split(",") if part.strip()]
        if isinstance(value, str) and wanted.startswith("dict"):
            return dict(_pair(part) for part in value.split(",") if part.strip())
    except ValueError as error:
        raise ConfigError(f"{name} ({origin}): {error}", field=name) from error
    return value


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
        origin = origins.get(name, "default")
        raise ConfigError(f"{name} ({origin}): {_refusal(name, values.get(name), message)}", field=name) from error
    _check_store(config, origins)
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
    return config


def _check_store(config: Config, origins: Mapping[str, str]) -> None:
    if config.store not in LOCAL_STORES and urlsplit(config.store).scheme not in SHARED_STORES:
        shown = (
            urlsplit(config.store).scheme + "://..." if config.shared else repr(config.store)
        )  # it may have a password
        addresses = ", ".join(f"{scheme}://..." for scheme in SHARED_STORES)
        raise ConfigError(
            f"store ({origins.get('store', 'default')}): {shown} is none of {', '.join(LOCAL_STORES)}, {addresses}",
            field="store",
        )
    if config.lease < LEAST_LEASE_MS:
        raise ConfigError(f"lease: at least {LEAST_LEASE_MS} ms, or a busy machine is taken for dead", field="lease")
    if not config.shared:
        for name in ("stores", "advertise", "advertise_grpc"):
            if getattr(config, name):
                raise ConfigError(f"{name}: only for a cluster, whose store is a server's address", field=name)
