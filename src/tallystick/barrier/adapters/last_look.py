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
    listening = _listen_last(connection, moment)
    try:
        yield
    finally:
        del _looks[connection]
        if listening:
            event.remove(connection, moment, _look)


def _look(connection: Connection, *_: Any) -> None:
    look = _looks.get(connection)
    if look is not None:
        look(connection)


def _listen_last(connection: Connection, moment: str) -> bool:
    """True if the connection itself has a listener now; that of an engine stays.

    SQLAlchemy calls the listeners of a connection first, then those of its engine, each in the order of registration.
    """
    engine = getattr(connection.engine, "_proxied", connection.engine)  # what execution_options() made has its hooks
    if not _is_last(engine, moment, empty=True):
        if event.contains(engine, moment, _look):
            event.remove(engine, moment, _look)
        event.listen(engine, moment, _look)
    if _is_last(connection, moment, empty=False):
        return False
    event.listen(connection, moment, _look)
    return True


def _is_last(target: Connection | Engine, moment: str, *, empty: bool) -> bool:
    hooks = list(getattr(target.dispatch, moment))
    return hooks[-1] is _look if hooks else empty
