"""What the rules need of a database connection, sync or async."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol

from tallystick.barrier.dialects.base import Dialect
from tallystick.barrier.statement import Result, Statement

CONNECT_SECONDS = 30
"""How long opening a connection of our own may take, unless the service's connection has another limit."""


class SyncAdapter(Protocol):
    """A sync connection, made the same for every driver. It holds no state of its own between transactions."""

    is_async: Literal[False]
    raw_at_once: bool  # whether `raw` is known before `attach` or `begin` has run
    dialect: Dialect

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    @property
    def address(self) -> str:
        """A stable name of how the database is reached, without secrets. For SQLAlchemy: known once `begin` has run."""

    @property
    def raw(self) -> Any:
        """The driver's own connection, whatever is wrapped around it. Not before `attach` or `begin`, unless
        `raw_at_once`."""

    def attach(self) -> None:
        """Have the driver's connection at hand, and send it nothing."""

    def begin(self, first: Statement | None = None) -> None:
        """Start a local transaction if none is open, also on a connection in autocommit mode.

        `first` is a statement without values, run as the first one: in one round trip where the driver can. A
        `BarrierError` means that the connection was refused, and left as it was.
        """

    def commit(self) -> None:
        """Commit. Raises `TransactionLost` instead if the transaction is gone or aborted, or if it is open still."""

    def rollback(self) -> None:
        """Roll back; without a transaction this does nothing."""

    def execute(self, statement: Statement) -> Result:
        """Run one statement in the transaction that is open."""

    def commit_failure_is_certain(self, error: BaseException) -> bool:
        """After `commit` raised: True only if the database surely did not commit.

        Then call `rollback`; should that raise too, the result counts as unknown. False leaves it to the
        check-back, which finds the truth.
        """

    def opener(self) -> Callable[[], Any] | None:
        """What opens a new connection to the same database, never one of the service's own pool (a forked child
        would share its sockets with the parent); None where there can be only this one."""

    def close(self) -> None:
        """Close the connection."""


class AsyncAdapter(Protocol):
    """The same for an async connection."""

    is_async: Literal[True]
    raw_at_once: bool
    dialect: Dialect

    @property
    def in_transaction(self) -> bool: ...

    @property
    def address(self) -> str: ...

    @property
    def raw(self) -> Any: ...

    async def attach(self) -> None: ...

    async def begin(self, first: Statement | None = None) -> None: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def execute(self, statement: Statement) -> Result: ...

    def commit_failure_is_certain(self, error: BaseException) -> bool: ...

    def opener(self) -> Callable[[], Awaitable[Any]] | None: ...

    async def close(self) -> None: ...


class Managed(ABC):
    """What a sync adapter is beside that if a framework begins and ends its transactions (Django's `atomic`).

    `begin` may find one open: then it *joins* it with a savepoint, `rollback` goes back to that savepoint, `commit`
    only releases it, and the commit itself is somebody else's, later.
    """

    @property
    @abstractmethod
    def joined(self) -> bool:
        """Whether `begin` has joined a transaction that somebody else commits; before it, whether it would."""

    @abstractmethod
    def refuse_marked(self) -> None:
        """Raises `TransactionLost` if the framework has marked the transaction for a rollback: its commit would undo
        everything without a word."""

    @abstractmethod
    def when_committed(self, hook: Callable[[], None]) -> None:
        """Between `begin` and `commit`: have `hook` called once what was begun is committed, by whomever; never, if it
        is undone. After a commit of our own it is the first hook of all, and it has been called when `commit` ends."""


Adapter = SyncAdapter | AsyncAdapter


def why_alone(adapter: Adapter) -> str:
    """Why `opener` has none, or one that leads elsewhere."""
    why: str = getattr(adapter, "why_alone", "no second connection finds the tables of this one")
    return why
