"""What a client is told once, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypedDict, runtime_checkable

from msgspec import Struct

from tallystick.barrier.names import BARRIER_TABLE, checked_table
from tallystick.barrier.operations.barrier import Decision
from tallystick.client.base.times import milliseconds_or_none
from tallystick.core.addresses import broker_address
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name
from tallystick.core.ops import Check, OnExhausted
from tallystick.credentials.credentials import NO_CREDENTIALS, Credentials, FilePath
from tallystick.credentials.tokens import SecretToken

DEFAULT_URL = "http://127.0.0.1:7440"
LONGEST_MEMBER = 256

OpenConnection = Callable[[], Any]
"""Opens a connection to the service's own database: what `sqlite3.connect(path)` or a pool's `get` returns.
For asynchronous drivers it may return an awaitable."""


@runtime_checkable
class Decider(Protocol):
    """Knows outcomes whose truth is in no SQL database: `RedisDecider`, `MongoDecider`, or one of the service's own.

    `decide` is called on a thread, or on the event loop if it is a coroutine function. It decides for good: after
    `rolled_back`, the transaction must never take effect.
    """

    def decide(self, gid: str, /) -> Decision | Awaitable[Decision]: ...


class CheckBack(Struct, frozen=True, kw_only=True):
    """How the broker asks for the outcome of a transaction.

    Without `url` and `database` it asks the members of the producer group, and the client answers by itself.
    `after` is the time in seconds before the first question. `url` is where a handler of
    `tallystick.client.handlers` is mounted, asked with `headers` and given `timeout` seconds; `database` the name of
    one in the broker's own configuration.
    """

    after: float | None = None
    url: str | None = None
    database: str | None = None
    max_checks: int | None = None
    on_exhausted: OnExhausted | None = None
    headers: dict[str, str] | None = None
    timeout: float | None = None

    @property
    def by_group(self) -> bool:
        return self.url is None and self.database is None

    def on_the_wire(self, source: str, after: float | None) -> Check:
        """As the broker wants it; `after` counts where this says nothing."""
        if self.url is not None and self.database is not None:
            raise InvalidRequest("check: give url or database, not both", field="check")
        seconds = self.after if self.after is not None else after
        common: dict[str, Any] = {
            "source": source,
            "after_ms": milliseconds_or_none(seconds, "check_after"),
            "max_checks": self.max_checks,
            "on_exhausted": self.on_exhausted,
        }
        if self.url is not None:
            timeout_ms = milliseconds_or_none(self.timeout, "timeout")
            return Check(via="url", target=self.url, headers=self.headers, timeout_ms=timeout_ms, **common)
        if self.database is not None:
            return Check(via="database", target=self.database, **common)
        return Check(**common)


class ClientOptions(TypedDict, total=False):
    """What the extensions of frameworks hand on to the clients that they make; a test holds it to their signature."""

    member: str | None
    timeout: float
    wait: bool
    commit_wait: float
    check: CheckBack | None
    check_after: float | None
    deciders: Mapping[str, Decider] | None
    barrier_table: str
    max_in_flight: int
    token: str | SecretToken | None
    token_file: FilePath | None
    ca: FilePath | None
    cert: FilePath | None
    key: FilePath | None


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that `Client` and `AsyncClient` are told."""

    addresses: tuple[str, ...]
    group: str | None = None
    member: str | None = None
    timeout: float = 10.0
    wait: bool = False
    commit_wait: float = 2.0
    check: CheckBack = CheckBack()
    check_after: float | None = None
    barrier_table: str = BARRIER_TABLE
    max_in_flight: int = 6
    credentials: Credentials = NO_CREDENTIALS

    def needs_group(self, what: str) -> str:
        if self.group is None:
            raise InvalidRequest(
                f"{what} needs a group: give the client one, as in Client(url, group='bank-a')", field="group"
            )
        return self.group


def parse_address(address: str, field: str = "urls") -> str:
    """A broker's address in its one spelling: scheme, host and port, no slash at the end."""
    if not isinstance(address, str):
        raise InvalidRequest(f"{field}: an address is needed (got {address!r:.80}). Give {DEFAULT_URL}.", field=field)
    try:
        return broker_address(address).text
    except ValueError as reason:
        raise InvalidRequest(str(reason), field=field) from reason


def addresses_of(urls: str | Iterable[str]) -> tuple[str, ...]:
    """A list of addresses, or one string with commas between them; each once, in the given order."""
    given = urls.split(",") if isinstance(urls, str) else list(urls) if isinstance(urls, Iterable) else [urls]
    if not all(isinstance(url, str) for url in given):
        raise InvalidRequest(f"urls: {urls!r} is no address, nor a list of them; give {DEFAULT_URL}", field="urls")
    found = dict.fromkeys(parse_address(url) for url in given if url.strip())
    if not found:
        raise InvalidRequest(f"no broker address; give one such as {DEFAULT_URL}", field="urls")
    return tuple(found)


def checked_settings(urls: str | Iterable[str], **given: Any) -> Settings:
    settings = Settings(addresses=addresses_of(urls), **given)
    if settings.group is not None:
        check_name(settings.group, "group")
    if not isinstance(settings.barrier_table, str):
        raise InvalidRequest(
            f"barrier_table: the name of a table is needed (got {settings.barrier_table!r:.40}).", field="barrier_table"
        )
    checked_table(settings.barrier_table)
    member = settings.member
    if member is not None and not (isinstance(member, str) and 1 <= len(member) <= LONGEST_MEMBER):
        raise InvalidRequest(
            f"member: it must be a text of 1 to {LONGEST_MEMBER} characters (got {member!r:.40}).", field="member"
        )
    for field in ("timeout", "commit_wait"):
        seconds = getattr(settings, field)
        if not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
            raise InvalidRequest(f"{field}: {seconds!r} is not a time in seconds, such as 10.0", field=field)
    if not isinstance(settings.max_in_flight, int) or settings.max_in_flight < 1:
        raise InvalidRequest(
            f"max_in_flight: it must be a whole number of at least 1 (got {settings.max_in_flight!r:.40}).",
            field="max_in_flight",
        )
    return settings
