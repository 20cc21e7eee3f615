"""A last look at the driver's connection, after everything that SQLAlchemy runs before it asks the database to commit.

A session's flush and the hooks of the service's own (`before_commit`, `commit`) can fail, and they can end or break the
transaction without a word: a statement whose error they swallow makes of PostgreSQL's COMMIT a rollback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, TwoPhaseTransaction, event

_looks: WeakKeyDictionary[Connection, Callable[[Connection], None]] = WeakKeyDictionary()


@contextmanager
def just_before_commit(connection: Connection, look: Callable[[Connection], None]) -> Iterator[None]:
    """Have `look` called, during a commit of the connection, just before the database is asked."""
    # With two phases the first one is the last moment at which the transaction is there to be looked at.
    two_phases = isinstance(connection.get_transaction(), TwoPhaseTransaction)
    moment = "prepare_twophase" if two_phases else "commit"
    _looks[connection] = look
    _listen_last(connection, moment)
    try:
        yield
    finally:
        del _looks[connection]


def _look(connection: Connection, *_: Any) -> None:
    look = _looks.get(connection)
    if look is not None:
        look(connection)


def _listen_last(connection: Connection, moment: str) -> None:
    """Have `_look` called once, and last. It stays: to listen costs as much as a statement.

    SQLAlchemy calls the listeners of a connection first, then those of its engine, each in the order of registration.
    An engine without any is left without: with one, every statement of the service would look for more.
    """
    engine = getattr(connection.engine, "_proxied", connection.engine)  # what execution_options() made has its hooks
    if _hooks(engine, moment)[-1:] not in ([], [_look]):
        _stop_listening(engine, moment)
        event.listen(engine, moment, _look)
    hooks = _hooks(connection, moment)
    if hooks[-1:] == [_look] and hooks.count(_look) == 1:
        return
    _stop_listening(connection, moment)
    if _look not in _hooks(connection, moment):
        event.listen(connection, moment, _look)


def _hooks(target: Connection | Engine, moment: str) -> list[Any]:
    """With those of its engine at the end, if it is a connection."""
    return list(getattr(target.dispatch, moment))


def _stop_listening(target: Connection | Engine, moment: str) -> None:
    if event.contains(target, moment, _look):
        event.remove(target, moment, _look)
