"""The local transaction of a block or a handler: begun here, and committed only if it is still the same one."""

from __future__ import annotations

import secrets
import weakref
from typing import Any

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import TransactionLost, TransactionOpen
from tallystick.barrier.operations.identity import Whereabouts
from tallystick.barrier.operations.tether import require_tied, require_tied_here, tie
from tallystick.client.script import InDatabase, Local, Script

_open: dict[int, weakref.ref[LocalTransaction]] = {}
"""By the driver's connection, while a transaction of ours is open on it. (Not weak: sqlite3's cannot be.)"""


class LocalTransaction:
    """One transaction on the user's connection, used once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._raw: Any = None
        self._token = ""

    def begin(self) -> Script[None]:
        """Begin, or join what the user has begun, and tie it."""
        yield Local.BEGIN
        raw = self._adapter.raw
        yield from _refuse_second(raw)
        self._token = secrets.token_hex(8)
        yield InDatabase(tie(self._token))
        self._raw = raw
        _open[id(raw)] = weakref.ref(self)

    @property
    def begun(self) -> bool:
        return bool(self._token)

    def require(self) -> Script[None]:
        """`TransactionLost` unless this is still the transaction that was begun. Nothing of the user's may follow."""
        yield InDatabase(require_tied(self._token))

    def require_here(self, table: str) -> Script[Whereabouts]:
        """The same, and where it finds the barrier table."""
        here: Whereabouts = yield InDatabase(require_tied_here(self._token, table=table))
        return here

    def end(self) -> Script[None]:
        """Make sure, and commit."""
        yield from self.require()
        yield from self.commit()

    def commit(self) -> Script[None]:
        self._forget()
        yield Local.COMMIT

    def leave(self, failure: BaseException) -> Script[None]:
        """What a block does when its code, or its end, has failed."""
        yield from self.give_up()

    def give_up(self) -> Script[None]:
        """Roll back; nothing to do if it was never begun."""
        if self._token:
            self._forget()
            yield Local.ROLLBACK

    def still_open(self) -> Script[bool]:
        """Asked by another one on the same connection."""
        try:
            yield from self.require()
        except TransactionLost as lost:
            return lost.rolled_back  # aborted, but there
        yield InDatabase(tie(self._token))
        return True

    def _forget(self) -> None:
        found = _open.get(id(self._raw))
        if found is not None and found() is self:
            del _open[id(self._raw)]


def _refuse_second(raw: Any) -> Script[None]:
    """Two on one connection have one transaction between them: the first to commit would commit the other's half."""
    found = _open.get(id(raw))
    other = found() if found is not None else None
    if other is not None and other._raw is raw and (yield from other.still_open()):
        raise TransactionOpen(
            "the connection is inside another Tallystick block, or is that of a handler; send with the tx of that "
            "block (a handler is given one: def handler(message, conn, tx)), or use another connection"
        )
