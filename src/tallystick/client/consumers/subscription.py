"""Handlers, and how messages are to be delivered to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from msgspec import Struct

from tallystick.client.base.settings import OpenConnection, Settings
from tallystick.client.base.times import milliseconds
from tallystick.client.connection.questions import Start
from tallystick.client.transactions.modes import ModeName
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import MAX_INVISIBLE_MS
from tallystick.core.names import check_name

H = TypeVar("H", bound="Handler")

Handler = Callable[..., Any]
_WITH_TRANSACTION = 3
By = Literal["inbox", "offset"]

DEFAULT_PREFETCH = 32
MOST_IN_A_BATCH = 500
MOST_IN_HANDLERS = 5_000


class Subscription(Struct, frozen=True, kw_only=True):
    """One `@ts.subscribe(...)`.

    `by="inbox"` takes messages under lease, in parallel, and writes an inbox row with each effect.
    `by="offset"` reads each queue in order and moves the group's offset, kept in the consumer's own database, with
    each effect. Both need `exactly_once`, the function that opens a connection to that database; without it, a message
    may have its effect more than once.
    """

    topic: str
    group: str
    handler: Handler
    exactly_once: OpenConnection | None = None
    by: By = "inbox"
    batch: int = 1
    concurrency: int = 4
    prefetch: int | None = None
    ordered: bool = False
    tags: Sequence[str] | None = None
    max_attempts: int | None = None
    invisible: float = 30.0
    start: Start = "earliest"
    on_trimmed: Literal["stop", "skip"] = "stop"
    with_connection: bool = False
    digest: bool = False
    sends: bool = False
    """Whether the handler is one of (message, conn, tx), which runs in a block of `mode`."""
    mode: ModeName = "check-back"

    @property
    def name(self) -> str:
        return f"{self.group} on {self.topic}"

    @property
    def in_hand(self) -> int:
        """How many messages are held under lease at most: those in handlers, and those before and after them."""
        # One batch that waits, and one that the broker has not settled yet.
        waiting = max(DEFAULT_PREFETCH, 2 * self.batch) if self.prefetch is None else self.prefetch
        return self.concurrency * self.batch + waiting


def checked_subscription(*, asynchronous: bool, **given: Any) -> Subscription:
    """A subscription whose parts fit together, or an error that says which do not."""
    places = handler_places(given["handler"])
    subscription = Subscription(**given, with_connection=places > 1, sends=places == _WITH_TRANSACTION)
    check_name(subscription.topic, "topic")
    check_name(subscription.group, "group")
    _check_numbers(subscription)
    _check_delivery(subscription)
    if not asynchronous and inspect.iscoroutinefunction(subscription.handler):
        raise InvalidRequest("an async handler needs AsyncClient", field="handler")
    return subscription


def handler_places(handler: Handler) -> int:
    """How many arguments a handler wants: `(message)`, `(message, conn)` or `(message, conn, tx)`."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(inspect.signature(handler).parameters.values())
    places = [one for one in parameters if one.kind in kinds]
    required = [one for one in places if one.default is inspect.Parameter.empty]
    if not places or len(required) > _WITH_TRANSACTION:
        raise InvalidRequest("a handler takes (message), (message, conn) or (message, conn, tx)", field="handler")
    return max(1, len(required))


def _check_numbers(subscription: Subscription) -> None:
    if not 1 <= subscription.concurrency <= 256:
        raise InvalidRequest("concurrency: from 1 to 256", field="concurrency")
    if not 1 <= subscription.batch <= MOST_IN_A_BATCH:
        raise InvalidRequest(f"batch: from 1 to {MOST_IN_A_BATCH}", field="batch")
    if subscription.batch > 1 and subscription.concurrency * subscription.batch > MOST_IN_HANDLERS:
        raise InvalidRequest(f"batch: times concurrency at most {MOST_IN_HANDLERS} messages", field="batch")
    if subscription.prefetch is not None and not 0 <= subscription.prefetch <= 700:
        raise InvalidRequest("prefetch: from 0 to 700", field="prefetch")
    if subscription.max_attempts is not None and subscription.max_attempts < 1:
        raise InvalidRequest("max_attempts: at least 1", field="max_attempts")
    if not 1_000 <= milliseconds(subscription.invisible, "invisible") <= MAX_INVISIBLE_MS:
        raise InvalidRequest("invisible: from one second to 12 hours", field="invisible")


def _check_delivery(subscription: Subscription) -> None:
    if subscription.by not in ("inbox", "offset"):
        raise InvalidRequest(f"by: {subscription.by!r} is none of inbox, offset", field="by")
    opens = subscription.exactly_once
    if opens is not None and (not callable(opens) or hasattr(opens, "commit")):  # sqlite3's connections are callable
        raise InvalidRequest(
            f"exactly_once: a function that opens a connection, not {type(opens).__name__}: each "
            "thread that handles messages has one of its own",
            field="exactly_once",
        )
    if subscription.with_connection and subscription.exactly_once is None:
        raise InvalidRequest("a handler that takes a connection needs exactly_once=open_connection", field="handler")
    if subscription.batch > 1 and subscription.exactly_once is None:
        raise InvalidRequest("batch: it is one transaction of your database: give exactly_once", field="batch")
    if subscription.digest and subscription.exactly_once is None:
        raise InvalidRequest("digest: it is kept in your database: give exactly_once", field="digest")
    if subscription.by == "offset":
        if subscription.exactly_once is None:
            raise InvalidRequest("by='offset' keeps the offset in your database: give exactly_once", field="by")
        if subscription.max_attempts is not None:
            raise InvalidRequest(
                "max_attempts: a queue read in order cannot leave a message behind; handle it in the handler",
                field="max_attempts",
            )


class Subscriptions:
    """`@ts.subscribe(...)`, the same for both clients: collects handlers until the client is started."""

    _settings: Settings
    _subscriptions: list[Subscription]
    _asynchronous: ClassVar[bool]

    def subscribe(
        self,
        topic: str,
        *,
        group: str | None = None,
        exactly_once: OpenConnection | None = None,
        by: By = "inbox",
        batch: int = 1,
        concurrency: int = 4,
        prefetch: int | None = None,
        ordered: bool = False,
        tags: Sequence[str] | None = None,
        max_attempts: int | None = None,
        invisible: float = 30.0,
        start: Start = "earliest",
        on_trimmed: Literal["stop", "skip"] = "stop",
        digest: bool = False,
        mode: ModeName = "check-back",
    ) -> Callable[[H], H]:
        """Have a function called for each message of a topic: `(message)`, or `(message, conn)` with `exactly_once`.

        A handler of `(message, conn, tx)` sends, with `tx.send` and `tx.call`, what is to happen if and only if its
        effect does; `mode` is that of its block, as for `transaction`.

        `exactly_once` opens a connection to the handler's database; the handler runs in a transaction there, which is
        committed with an inbox row (`by="inbox"`: leases, in parallel) or with the queue's offset (`by="offset"`: in
        order). The handler must not commit by itself. An exception rolls back, and the message comes again; with
        `max_attempts` it goes to the group's dead-letter topic after so many. `group` is the client's own if not given.

        With `batch` that transaction holds the effects of up to so many messages, one call of the handler each, and is
        committed once. If one fails all are undone and handled one by one, so the handler may be called again for a
        message that has not failed: only effects in its own database are there once.
        `concurrency` handlers (or batches) run at a time; `prefetch` messages wait, by default 32 or two batches.
        With `digest` a SHA-256 of each value is kept beside the effect, for `tallystick spark reconcile --digests`.
        """

        def register(handler: H) -> H:
            subscription = checked_subscription(
                asynchronous=self._asynchronous,
                topic=topic,
                group=group or self._settings.needs_group("subscribe"),
                handler=handler,
                exactly_once=exactly_once,
                by=by,
                batch=batch,
                concurrency=concurrency,
                prefetch=prefetch,
                ordered=ordered,
                tags=tags,
                max_attempts=max_attempts,
                invisible=invisible,
                start=start,
                on_trimmed=on_trimmed,
                digest=digest,
                mode=mode,
            )
            if subscription.sends and mode == "check-back":
                self._settings.needs_group("a handler that sends")
            self._subscriptions.append(subscription)
            return handler

        return register
