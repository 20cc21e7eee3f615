"""A handler and how its messages are to be delivered to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct

from tallystick.barrier.adapters.base import Adapter
from tallystick.client.base.settings import OpenConnection
from tallystick.client.connection.questions import Start
from tallystick.client.transactions.block import Block
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_name

Handler = Callable[..., Any]
_WITH_TRANSACTION = 3
By = Literal["inbox", "offset"]


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
    concurrency: int = 4
    prefetch: int = 32
    ordered: bool = False
    tags: Sequence[str] | None = None
    max_attempts: int | None = None
    invisible: float = 30.0
    start: Start = "earliest"
    on_trimmed: Literal["stop", "skip"] = "stop"
    with_connection: bool = False
    digest: bool = False
    new_block: Callable[[Adapter], Block] | None = None
    """For a handler of (message, conn, tx): the block of one message."""

    @property
    def name(self) -> str:
        return f"{self.group} on {self.topic}"


def checked_subscription(
    *, asynchronous: bool, new_block: Callable[[Adapter], Block] | None = None, **given: Any
) -> Subscription:
    """A subscription whose parts fit together, or an error that says which do not."""
    places = _places(given["handler"])
    subscription = Subscription(
        **given, with_connection=places > 1, new_block=new_block if places == _WITH_TRANSACTION else None
    )
    check_name(subscription.topic, "topic")
    check_name(subscription.group, "group")
    _check_numbers(subscription)
    _check_delivery(subscription)
    if not asynchronous and inspect.iscoroutinefunction(subscription.handler):
        raise InvalidRequest("an async handler needs AsyncClient", field="handler")
    return subscription


def _places(handler: Handler) -> int:
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
    if not 0 <= subscription.prefetch <= 700:
        raise InvalidRequest("prefetch: from 0 to 700", field="prefetch")
    if subscription.max_attempts is not None and subscription.max_attempts < 1:
        raise InvalidRequest("max_attempts: at least 1", field="max_attempts")
    if subscription.invisible < 1:
        raise InvalidRequest("invisible: at least one second", field="invisible")


def _check_delivery(subscription: Subscription) -> None:
    if subscription.by not in ("inbox", "offset"):
        raise InvalidRequest(f"by: {subscription.by!r} is none of inbox, offset", field="by")
    if subscription.with_connection and subscription.exactly_once is None:
        raise InvalidRequest("a handler that takes a connection needs exactly_once=open_connection", field="handler")
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
