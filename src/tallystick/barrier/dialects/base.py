"""What differs between database engines, and nothing else.

The statements themselves are the same for all (`tallystick.barrier.queries`); an engine fills in these pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, ClassVar, Self

from tallystick.barrier.faults import FaultKind
from tallystick.barrier.statement import Statement, Step

_TIE = Statement("savepoint tallystick_block", returns_nothing=True)
_UNTIE = Statement("release savepoint tallystick_block", returns_nothing=True)


class Dialect(ABC):
    """One engine's SQL and the meaning of its errors."""

    name: ClassVar[str]
    # The current time, and the time `:age` ago, by the database's clock.
    now: ClassVar[str]
    ago: ClassVar[str]
    # The same for the barrier table, which keeps time as dtm's clients do.
    barrier_now: ClassVar[str]
    barrier_ago: ClassVar[str]
    # Ends of a select: lock the rows; lock those that nobody else has; read past an old snapshot.
    lock: ClassVar[str] = ""
    lock_free: ClassVar[str] = ""
    latest: ClassVar[str] = ""
    # True where a single running writer keeps every other writer out, whatever rows they want.
    single_writer: ClassVar[bool] = False
    # True where every `create table` is a transaction by itself.
    create_commits: ClassVar[bool] = False
    # True where a list of texts can be bound as one value; and how many gids are decided with one statement.
    arrays: ClassVar[bool] = False
    at_once: ClassVar[int] = 500
    # True where an insert that waits for a row also keeps others from inserting beside it.
    insert_locks_gap: ClassVar[bool] = False

    # Expressions: the schema in which a table `{table}` is found, and what makes a connection find it there.
    schema_of: ClassVar[str] = "''"
    path: ClassVar[str] = "''"
    # Questions, each asked if the one before it has brought a row. The last one's first value is the place of a table
    # `{table}` (`{name}` in `{schema}`): the same on every connection to it, different at every other server or table.
    # None of them may fail: PostgreSQL would abort the transaction.
    place: ClassVar[Sequence[str]] = ()
    # True where a temporary table can hide the barrier without `schema_of` telling it.
    hides_unseen: ClassVar[bool] = False
    # What `tie` left, where that can be read in passing; empty where only `untie` tells.
    tether: ClassVar[str] = ""
    # True where an insert can tell what it has found (`returning`).
    insert_tells: ClassVar[bool] = False
    # What makes the transactions of our own operations find it there; empty where that is the connection's own way.
    led_to: str = ""
    # True where blocks may lie in one another, and `tie` is a savepoint: then each has one of its own.
    ties_each: bool = False

    def leading_to(self, path: str) -> Self:
        """The same dialect for a connection whose own operations are to look where `path` leads."""
        other = copy(self)
        other.led_to = path
        return other

    def tying_each(self) -> Self:
        """The same dialect for a connection on which blocks may lie in one another, if that makes a difference: to
        release the savepoint of one would release those of everything inside it."""
        other = copy(self)
        other.ties_each = not self.tether
        return other

    def lead(self) -> Sequence[Step]:
        """Steps at the beginning of a transaction of our own."""
        return ()

    def tie(self, token: str) -> Statement:
        """The first statement of a local transaction: what it leaves is gone when that transaction is."""
        if self.ties_each:
            return Statement(f"savepoint tallystick_block_{token}", returns_nothing=True)
        # One name for all: sqlite3 would keep a text of each block's own in the place of one that is used again.
        return _TIE

    def untie(self, token: str) -> Statement:
        """Asked before the commit; fails, or returns something else than the token, if what `tie` left is gone."""
        if self.ties_each:
            return Statement(f"release savepoint tallystick_block_{token}", returns_nothing=True)
        return _UNTIE

    def forbid_commit(self) -> Statement | None:
        """Makes every commit of the transaction fail until `allow_commit`; None where the engine has no such thing."""
        return None

    def allow_commit(self) -> Statement:
        """Takes it back. Fails if the transaction in which it was forbidden is gone."""
        raise NotImplementedError

    @abstractmethod
    def age(self, seconds: float) -> object:
        """The value for `:age`."""

    @abstractmethod
    def unless_taken(self, columns: str) -> str:
        """The end of an insert that leaves an existing row alone; empty where a duplicate is an error instead."""

    @abstractmethod
    def or_replace(self, key: str, columns: Sequence[str]) -> str:
        """The end of an insert that overwrites the columns of an existing row."""

    @abstractmethod
    def delete_some(self, table: str, condition: str) -> str:
        """A delete of at most `:limit` rows."""

    # A check-back may wait for a running transaction, but never for longer than it was told to.

    @abstractmethod
    def begin_reading(self, wait: float) -> Sequence[Step]:
        """Begin a transaction that reads only what is committed; ended by a rollback."""

    @abstractmethod
    def begin_writing(self, wait: float) -> Sequence[Step]:
        """Begin a transaction in which each statement sees what is committed by then."""

    @property
    def read_wait(self) -> Statement | None:
        """Reads the session's settings that `begin_*` changes; None where they end with the transaction."""
        return None

    def restore_wait(self, settings: tuple[Any, ...]) -> Statement:
        """Puts back what `read_wait` read."""
        raise NotImplementedError

    def lock_creating(self) -> Iterable[Step]:
        """In an open transaction: keep other processes from creating the tables until it ends."""
        return ()

    def begin_creating(self, wait: float) -> Sequence[Step]:
        """Begin a transaction that creates tables, one process at a time."""
        return self.begin_writing(wait)

    @abstractmethod
    def meaning(self, error: BaseException) -> FaultKind | None:
        """What a driver error means to an operation; None if nothing in particular."""

    @abstractmethod
    def commit_refused(self, error: BaseException) -> bool:
        """Whether a failed COMMIT surely left nothing committed. False whenever that is not certain."""
