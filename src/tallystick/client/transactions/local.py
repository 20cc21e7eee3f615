"""The local transaction of a block or a handler: begun here, and committed only if it is still the same one.

Where a framework manages transactions (`Managed`), it may be a part of one that somebody else commits, and parts may
lie in one another. Where the tether is a savepoint each part has its own. Where it is a setting there is one: a part
takes it over from the one around it, and hands it back at its end.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import threading
import weakref
from contextlib import suppress
from typing import Any

from msgspec import Struct

from tallystick.barrier.adapters.base import Adapter, Managed
from tallystick.barrier.errors import BarrierError, TransactionLost, TransactionOpen, UnsupportedConnection
from tallystick.barrier.operations.barrier import mark_committed_here
from tallystick.barrier.operations.identity import Whereabouts
from tallystick.barrier.operations.outbox import outbox_put_here
from tallystick.barrier.operations.tether import begin_tied, lost, require_tied, tie
from tallystick.barrier.statement import Operation
from tallystick.client.transactions.script import InDatabase, Local, Script


class _Begun(Struct, frozen=True):
    """What is known of a transaction that was begun, also after the block that began it was dropped without an end."""

    owner: weakref.ref[LocalTransaction]
    token: str
    thread: threading.Thread
    task: asyncio.Task[Any] | None
    """On an async connection: the task."""


_open: dict[int, _Begun] = {}
"""By the driver's connection, until the transaction is ended. (Not weak: sqlite3's cannot be.) A stale entry does no
harm: the database is asked whether the transaction of that token is the one that is open."""

_TOKENS = secrets.token_hex(4)
_number = itertools.count()


class LocalTransaction:
    """One transaction on the user's connection, used once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._raw: Any = None
        self._token = ""
        self._process = 0
        self._around: _Begun | None = None

    def begin(self) -> Script[None]:
        """Begin, or join what the user has begun, and tie it."""
        token = f"{_TOKENS}{next(_number):x}"
        task = asyncio.current_task() if self._adapter.is_async else None
        mine = _Begun(weakref.ref(self), token, threading.current_thread(), task)
        if not self._adapter.raw_at_once:
            yield Local.ATTACH
        self._raw = self._adapter.raw
        # Claimed first, in one step: of two threads that begin at the same moment, one has not touched the connection.
        other = _open.setdefault(id(self._raw), mine)
        if other is not mine:
            self._around = yield from self._inside(other)
            _open[id(self._raw)] = mine
        self._token, self._process = token, os.getpid()
        try:
            yield InDatabase(begin_tied(token))
        except BaseException as failure:
            self._forget()
            yield from self._try_to_hand_back()
            if isinstance(failure, BarrierError):  # the connection was refused: it is not ours to roll back
                self._token = ""
            raise

    def _inside(self, other: _Begun) -> Script[_Begun | None]:
        """What this is to be a part of, its tether taken over; refused if this could not be a part."""
        adapter = self._adapter
        if not (isinstance(adapter, Managed) and adapter.joined):
            yield from _refuse_second(other)
            return None
        if _is_at_work_elsewhere(other):
            raise _second()
        if adapter.dialect.ties_each:
            return other  # if it has lost its transaction, it finds that out at its own end
        try:
            yield InDatabase(require_tied(other.token))
        except TransactionLost:
            return None  # it has lost its transaction, or was left without its end: it is not around this one
        return other

    def _hand_back(self) -> Script[None]:
        around, self._around = self._around, None
        if around is not None:
            _open[id(self._raw)] = around
            if not self._adapter.dialect.ties_each:
                yield InDatabase(tie(around.token))

    def _try_to_hand_back(self) -> Script[None]:
        """After a failure. What is around finds itself lost at its end, if it does not get the tether back."""
        with suppress(Exception):
            yield from self._hand_back()

    @property
    def begun(self) -> bool:
        return bool(self._token)

    @property
    def inherited(self) -> bool:
        """Whether it was begun by the process that this one was forked from, which ends it."""
        return self._process not in (0, os.getpid())

    def require(self) -> Script[None]:
        """`TransactionLost` unless this is still the transaction that was begun. Nothing of the user's may follow."""
        self.refuse_unfit()
        yield InDatabase(require_tied(self._token))

    def mark(self, gid: str, table: str) -> Operation[Whereabouts]:
        """Does the same, and puts the mark of the gid there; where it finds the barrier table."""
        self.refuse_unfit()
        return mark_committed_here(gid, self._token, table=table)

    def put(self, gid: str, broker: str, payload: bytes, table: str) -> Operation[Whereabouts]:
        """Does the same, and puts a row of the outbox there."""
        self.refuse_unfit()
        return outbox_put_here(gid, broker, payload, self._token, barrier=table)

    def refuse_unfit(self) -> None:
        """What can be told of the transaction without asking the database."""
        if self._process != os.getpid():
            raise UnsupportedConnection(
                "the process was forked inside the block: the block, its transaction and its connection are the "
                "parent's, which ends them. Fork before the block, or leave the child with os._exit()"
            )
        found = _open.get(id(self._raw))
        if found is None or found.token != self._token:  # another block has begun since, in another transaction
            raise lost()
        if isinstance(self._adapter, Managed):
            self._adapter.refuse_marked()

    def end(self) -> Script[None]:
        """Make sure, and commit."""
        yield from self.require()
        yield from self.commit()

    def commit(self) -> Script[None]:
        self._forget()
        yield Local.COMMIT
        yield from self._hand_back()

    def leave(self, failure: BaseException) -> Script[None]:
        """What a block does when its code, or its end, has failed."""
        yield from self.give_up()

    def give_up(self) -> Script[None]:
        """Roll back; nothing to do if it was never begun."""
        if self._token and self._process == os.getpid():
            self._forget()
            try:
                yield Local.ROLLBACK
            finally:
                yield from self._try_to_hand_back()

    def undo_unbegun(self) -> Script[None]:
        """Roll back what the user's code has begun on the connection, if no other block is at work there."""
        if self._adapter.in_transaction:
            if not self._adapter.raw_at_once:
                yield Local.ATTACH
            other = _open.get(id(self._adapter.raw))
            if other is None or not (yield from _has_open(other)):
                yield Local.ROLLBACK

    def _forget(self) -> None:
        found = _open.get(id(self._raw))
        if found is not None and found.owner() is self:
            del _open[id(self._raw)]


def _refuse_second(other: _Begun) -> Script[None]:
    """Two on one connection have one transaction between them: the first to commit would commit the other's half."""
    if _is_at_work_elsewhere(other):
        raise _second()
    yield Local.BEGIN
    if (yield from _is_open(other.token)):
        raise _second()


def _has_open(other: _Begun) -> Script[bool]:
    """Whether the transaction that is open is another block's. What is written down may be of a connection that was
    closed, and has had the same number."""
    return _is_at_work_elsewhere(other) or (yield from _is_open(other.token))


def _second() -> TransactionOpen:
    return TransactionOpen(
        "the connection is inside another Tallystick block, or is that of a handler; send with the tx of that "
        "block (a handler is given one: def handler(message, conn, tx)), or use another connection. (If that block "
        "was left without its end, roll the connection back)"
    )


def _is_at_work_elsewhere(other: _Begun) -> bool:
    """Whether its block is another thread's or task's. Then nothing is asked: not every driver's connection can be
    shared."""
    if other.thread is not threading.current_thread():
        at_work = other.thread.is_alive()
    else:
        at_work = other.task is not None and not other.task.done() and other.task is not asyncio.current_task()
    return at_work and other.owner() is not None


def _is_open(token: str) -> Script[bool]:
    """Whether the transaction of that token is the one that is open; it stays tied."""
    try:
        yield InDatabase(require_tied(token))
    except TransactionLost as lost:
        return lost.rolled_back  # aborted, but there
    yield InDatabase(tie(token))
    return True
