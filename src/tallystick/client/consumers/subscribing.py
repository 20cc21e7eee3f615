"""`@ts.subscribe(...)`: how a handler is handed in, and what a type checker knows of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeVar, overload

from tallystick.client.base.arguments import check_handler
from tallystick.client.base.message import Message
from tallystick.client.base.misuse import OneProcess
from tallystick.client.base.results import check_runs
from tallystick.client.base.settings import OpenConnection, Settings
from tallystick.client.connection.questions import Start
from tallystick.client.consumers.subscription import (
    By,
    Handler,
    Subscription,
    check_open_options,
    check_topic,
    checked_subscription,
)
from tallystick.client.transactions.modes import ModeName
from tallystick.client.transactions.transaction import TransactionBase

H = TypeVar("H", bound=Handler)
D = TypeVar("D")
C = TypeVar("C")
R = TypeVar("R")


class TakesHandler(Protocol[D]):
    """What `subscribe(..., type=Order)` returns: takes a handler of `Message[Order]`, and gives it back."""

    @overload
    def __call__(self, handler: Callable[[Message[D]], R], /) -> Callable[[Message[D]], R]: ...
    @overload
    def __call__(self, handler: Callable[[Message[D], C], R], /) -> Callable[[Message[D], C], R]: ...
    @overload
    def __call__(
        self, handler: Callable[[Message[D], C, TransactionBase], R], /
    ) -> Callable[[Message[D], C, TransactionBase], R]: ...


class Subscribing:
    """`subscribe`, the same for all that can be given handlers."""

    def _take(self, handler: Handler, topic: str, options: dict[str, Any]) -> None:
        raise NotImplementedError

    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: type[D],
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
    ) -> TakesHandler[D]: ...
    @overload
    def subscribe(
        self,
        topic: str,
        *,
        type: Any = None,
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
    ) -> Callable[[H], H]: ...
    def subscribe(
        self,
        topic: str,
        *,
        type: Any = None,
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
    ) -> Any:
        """Have a function called for each message of a topic: `(message)`, or `(message, conn)` with `exactly_once`.

        A handler of `(message, conn, tx)` sends, with `tx.send` and `tx.call`, what is to happen if and only if its
        effect does; `mode` is that of its block, as for `transaction`.

        `exactly_once` opens a connection to the handler's database; the handler runs in a transaction there, which is
        committed with an inbox row (`by="inbox"`: leases, in parallel) or with the queue's offset (`by="offset"`: in
        order). The handler must not commit by itself. An exception rolls back, and the message comes again; with
        `max_attempts` it goes to the group's dead-letter topic after so many. `group` is the client's own if not given.

        With `type` the handler is one of a `Message[Order]`, whose `data` is the value as that type. A value that is
        not of the type goes to the dead-letter topic at once, and no handler sees it; with `by="offset"` its queue
        stops, as for a handler that fails.

        With `batch` that transaction holds the effects of up to so many messages, one call of the handler each, and is
        committed once. If one fails all are undone and handled one by one, so the handler may be called again for a
        message that has not failed: only effects in its own database are there once. Handlers that send are batched on
        PostgreSQL alone, where none of them can commit for the others.
        `concurrency` handlers (or batches) run at a time; `prefetch` messages wait, by default 32 or two batches.
        With `digest` a SHA-256 of each value is kept beside the effect, for `tallystick spark reconcile --digests`.
        """

        options = {
            "group": group,
            "exactly_once": exactly_once,
            "by": by,
            "batch": batch,
            "concurrency": concurrency,
            "prefetch": prefetch,
            "ordered": ordered,
            "tags": tags,
            "max_attempts": max_attempts,
            "invisible": invisible,
            "start": start,
            "on_trimmed": on_trimmed,
            "digest": digest,
            "mode": mode,
            "type": type,
        }

        check_topic(topic)
        check_open_options(options)

        def register(handler: H) -> H:
            check_handler(handler)
            check_runs(handler, "handler", awaited=True)  # a framework's extension knows its client only later
            self._take(handler, topic, options)
            return handler

        return register


class Subscriptions(Subscribing):
    """Of a client: collects handlers until it is started."""

    _settings: Settings
    _subscriptions: list[Subscription]
    _asynchronous: ClassVar[bool]

    def _take(self, handler: Handler, topic: str, options: dict[str, Any]) -> None:
        group = options["group"] or self._settings.needs_group("subscribe")
        given = {**options, "group": group, "topic": topic, "handler": handler}
        subscription = checked_subscription(asynchronous=self._asynchronous, **given)
        if subscription.sends and subscription.mode == "check-back":
            self._settings.needs_group("a handler that sends")
        self._subscriptions.append(subscription)


class LaterSubscriptions(Subscribing, OneProcess):
    """Of an application whose client is not made yet: collects handlers until there is one to give them to."""

    def __init__(self) -> None:
        self._taken: list[tuple[Handler, str, dict[str, Any]]] = []

    def _take(self, handler: Handler, topic: str, options: dict[str, Any]) -> None:
        self._taken.append((handler, topic, options))

    def _hand_over(
        self, client: Subscriptions, wrapped: Callable[[Handler], Handler] | None = None, first: int = 0
    ) -> int:
        """Give a client all of them from the `first` on; how many there are. `wrapped` is put around the handlers and
        what opens their connections."""
        for handler, topic, options in self._taken[first:]:
            if wrapped is None:
                client._take(handler, topic, options)
            else:
                opens = options["exactly_once"]
                client._take(wrapped(handler), topic, {**options, "exactly_once": opens and wrapped(opens)})
        return len(self._taken)
