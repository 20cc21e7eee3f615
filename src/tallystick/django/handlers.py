"""Handlers as Django's apps register them, in a module `tallystick_handlers` of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.utils.module_loading import autodiscover_modules

from tallystick.client.base.message import Message
from tallystick.client.client import Client
from tallystick.client.consumers.subscription import handler_places
from tallystick.client.transactions.transaction import TransactionBase

MODULE = "tallystick_handlers"
_MESSAGE, _MESSAGE_TX = 1, 2

Handler = Callable[..., Any]


def discover() -> None:
    """Import that module of every installed app that has one."""
    autodiscover_modules(MODULE)


@dataclass(frozen=True, slots=True)
class Registered:
    """One `@ts.subscribe(...)`."""

    topic: str
    handler: Handler
    using: str | None
    options: dict[str, Any]

    def subscribe(self, client: Client) -> None:
        using = self.using
        # The connection of the thread that handles: the one that the ORM uses there.
        opens = None if using is None else lambda: connections[using]
        client.subscribe(self.topic, exactly_once=opens, **self.options)(self._as_client_calls_it())

    def _as_client_calls_it(self) -> Handler:
        handler = self.handler
        places = handler_places(handler)

        # What they return is checked by the client: a coroutine or a generator that was never run is a failure.
        def with_message(message: Message) -> Any:
            with _old_connections_closed():
                return handler(message)

        def with_transaction(message: Message, connection: Any, tx: TransactionBase) -> Any:
            with _old_connections_closed():
                return handler(message, *((tx,) if places == _MESSAGE_TX else (connection, tx)))

        return with_message if places == _MESSAGE else with_transaction


@contextmanager
def _old_connections_closed() -> Iterator[None]:
    """What Django does before and after a request; but not to the connection whose transaction the handler is in."""
    _close_old_connections()
    try:
        yield
    finally:
        _close_old_connections()


def _close_old_connections() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
