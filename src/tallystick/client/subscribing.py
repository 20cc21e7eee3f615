"""`@ts.subscribe(...)`, the same for both clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, TypeVar

from tallystick.barrier.adapters.base import Adapter
from tallystick.client.base.settings import OpenConnection
from tallystick.client.connection.questions import Start
from tallystick.client.consumers.subscription import By, Handler, Subscription, checked_subscription
from tallystick.client.runtime import ClientCore
from tallystick.client.transactions.block import Block, ModeName

H = TypeVar("H", bound=Handler)


class Subscribing:
    """Collects handlers until the client is started."""

    _core: ClientCore
    _subscriptions: list[Subscription]
    _asynchronous: ClassVar[bool]

    def subscribe(
        self,
        topic: str,
        *,
        group: str | None = None,
        exactly_once: OpenConnection | None = None,
        by: By = "inbox",
        concurrency: int = 4,
        prefetch: int = 32,
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
        With `digest` a SHA-256 of each value is kept beside the effect, for `tallystick spark reconcile --digests`.
        """

        def new_block(adapter: Adapter) -> Block:
            return Block(self._core, adapter, mode=mode)

        def register(handler: H) -> H:
            subscription = checked_subscription(
                asynchronous=self._asynchronous,
                new_block=new_block,
                topic=topic,
                group=group or self._core.settings.needs_group("subscribe"),
                handler=handler,
                exactly_once=exactly_once,
                by=by,
                concurrency=concurrency,
                prefetch=prefetch,
                ordered=ordered,
                tags=tags,
                max_attempts=max_attempts,
                invisible=invisible,
                start=start,
                on_trimmed=on_trimmed,
                digest=digest,
            )
            if subscription.new_block is not None and mode == "check-back":
                self._core.settings.needs_group("a handler that sends")
            self._subscriptions.append(subscription)
            return handler

        return register
