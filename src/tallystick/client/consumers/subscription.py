"""Handlers, and how messages are to be delivered to them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from tallystick.barrier.adapters.recognition import check_opener, opens_async
from tallystick.client.base.arguments import check_choice, check_flag, check_handler, checked_count, checked_tags
from tallystick.client.base.message import Message
from tallystick.client.base.results import check_runs, runs_on_loop
from tallystick.client.base.settings import OpenConnection
from tallystick.client.base.times import milliseconds
from tallystick.client.base.values import UndecodableValue, decoder_of
from tallystick.client.connection.questions import Start
from tallystick.client.transactions.modes import ModeName
from tallystick.core.errors import InvalidRequest
from tallystick.core.message import MAX_INVISIBLE_MS
from tallystick.core.names import check_name

Handler = Callable[..., Any]
_WITH_TRANSACTION = 3
By = Literal["inbox", "offset"]

_CHOICES = {
    "by": ("inbox", "offset"),
    "start": ("earliest", "latest"),
    "on_trimmed": ("stop", "skip"),
    "mode": ("check-back", "outbox", "consumer-dedup"),
}

DEFAULT_PREFETCH = 32
MOST_IN_A_BATCH = 500
MOST_IN_HANDLERS = 5_000
MOST_PREFETCHED = 700


class Poisonous(UndecodableValue):
    """A message that no handler of the subscription can be called with; it would not get better by waiting."""

    code = "poisonous"


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
    asynchronous: bool = False
    """Whether it is one of an asynchronous client, which awaits what handlers return."""
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
    type: Any = None
    """What the value of each message is decoded to, for its handler; None: nothing is decoded."""

    def read(self, message: Message) -> None:
        """Give a message its `data`. Anew for each call of the handler, which may change it."""
        if self.type is not None:
            try:
                message._data = message.decode(self.type)
            except UndecodableValue as failure:
                raise Poisonous(failure.detail) from failure

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
    check_handler(given["handler"])
    check_runs(given["handler"], "handler", awaited=asynchronous)
    places = handler_places(given["handler"])
    subscription = Subscription(
        **given, asynchronous=asynchronous, with_connection=places > 1, sends=places == _WITH_TRANSACTION
    )
    check_name(subscription.topic, "topic")
    check_name(subscription.group, "group")
    if subscription.type is not None:
        decoder_of(subscription.type)  # one that cannot be decoded is told of now, and not at the first message
    _check_numbers(subscription)
    _check_delivery(subscription)
    _check_manner(subscription)
    return subscription


def _check_manner(subscription: Subscription) -> None:
    """Refuse an async connection where the handler runs on a thread."""
    awaits = subscription.asynchronous and runs_on_loop(subscription.handler)
    opens = subscription.exactly_once
    if opens is not None and not awaits and opens_async(opens):
        raise InvalidRequest(
            "exactly_once: it opens an async connection, and the handler is a plain function. Make the handler an "
            "`async def` of an AsyncClient, or open a synchronous connection.",
            field="exactly_once",
        )


def check_topic(topic: Any) -> None:
    """InvalidRequest unless it is the name of a topic. Without parentheses, `@ts.subscribe` is given the handler; it
    would return a function, and the handler would never be registered."""
    if callable(topic):
        raise InvalidRequest(
            f"topic: @ts.subscribe needs the name of a topic (got the function {getattr(topic, '__name__', topic)}). "
            'Write @ts.subscribe("orders") above the function.',
            field="topic",
        )
    check_name(topic, "topic")


def check_open_options(options: Mapping[str, Any]) -> None:
    """Refuse at once what is wrong by itself, before there is a handler or a client."""
    if options["exactly_once"] is not None:
        check_opener(options["exactly_once"], "exactly_once")
    checked_tags(options["tags"])


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
    checked_count(subscription.concurrency, "concurrency", 1, 256)
    checked_count(subscription.batch, "batch", 1, MOST_IN_A_BATCH)
    if subscription.batch > 1 and subscription.concurrency * subscription.batch > MOST_IN_HANDLERS:
        raise InvalidRequest(f"batch: times concurrency at most {MOST_IN_HANDLERS} messages", field="batch")
    if subscription.prefetch is not None:
        checked_count(subscription.prefetch, "prefetch", 0, MOST_PREFETCHED)
    if subscription.max_attempts is not None:
        checked_count(subscription.max_attempts, "max_attempts", 1)
    if not 1_000 <= milliseconds(subscription.invisible, "invisible") <= MAX_INVISIBLE_MS:
        raise InvalidRequest("invisible: from one second to 12 hours", field="invisible")


def _check_delivery(subscription: Subscription) -> None:
    check_flag(subscription.ordered, "ordered", "With True, the messages of a queue come in order.")
    check_flag(subscription.digest, "digest", "With True, a digest of each value is kept in your database.")
    for field, choices in _CHOICES.items():
        check_choice(getattr(subscription, field), field, choices)
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
