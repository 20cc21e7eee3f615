"""The branch barrier: an effect in the service's own database that happens once, however often it is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, NoReturn, Self, TypeVar

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.adapters.recognition import adapt, adapt_sync
from tallystick.barrier.errors import AlreadyDecided, TransactionOpen
from tallystick.barrier.names import BARRIER_TABLE, checked_table, checked_text
from tallystick.barrier.operations.barrier import Decision, decide, mark_committed
from tallystick.barrier.operations.branch_barrier import branch_once
from tallystick.barrier.operations.identity import whereabouts
from tallystick.barrier.statement import Operation
from tallystick.client.base.databases import Door
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.script import InDatabase, Local, Script, UserCode, play_async, play_sync
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import check_gid
from tallystick.dtm.errors import Duplicated, Failure, Ongoing

T = TypeVar("T")

MESSAGE = "msg"
_FIELDS = ("trans_type", "gid", "branch_id", "op")


class Barrier:
    """What is asked for, as the coordinator names it, and the rules that make it happen once.

    Each effect of one request needs a barrier row of its own, so they are numbered: the first is `01`. The local
    transaction of a message (`op` is `msg`) is always `01`: it is the row that a check-back looks for, and a second
    attempt after a rollback must be found there too.
    """

    def __init__(self, trans_type: str, gid: str, branch_id: str, op: str, *, table: str = BARRIER_TABLE) -> None:
        self.trans_type = checked_text(trans_type, "trans_type", 45)
        self.gid = check_gid(gid)
        self.branch_id = checked_text(branch_id, "branch_id")
        self.op = checked_text(op, "op", 45)
        self.table = checked_table(table)
        self.door: Door | None = None  # into the database of the message's effect
        self.may_be_committed = False  # whether anybody has been asked to commit the effect, or was left to do so
        self.needed_source: str | None = None  # the one database whose barrier a check-back would read
        self._effects = 0
        if op == MESSAGE and branch_id != "00":
            raise InvalidRequest(f"branch_id: {branch_id!r}, but a message's own branch is '00'", field="branch_id")

    @classmethod
    def from_query(cls, query: Mapping[str, Any], *, table: str = BARRIER_TABLE) -> Self:
        """From the query of a request, as any framework has it (or the params of JSON-RPC)."""
        return cls(*(_one(query, name) for name in _FIELDS), table=table)

    @classmethod
    def from_metadata(cls, metadata: Iterable[tuple[str, str | bytes]], *, table: str = BARRIER_TABLE) -> Self:
        """From the metadata of a gRPC call: `context.invocation_metadata()`."""
        found = {name.removeprefix("dtm-"): value for name, value in metadata if name.startswith("dtm-")}
        return cls.from_query(found, table=table)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.trans_type!r}, {self.gid!r}, {self.branch_id!r}, {self.op!r})"

    # Scripts

    def _carry_out(self, adapter: Adapter, effect: Callable[[], Any]) -> Script[Any]:
        local = LocalTransaction(adapter)
        try:
            yield from local.begin()
            first = yield from self._mark(adapter)
            value = (yield UserCode(effect)) if first else None
            # A statement of the effect may have ended the transaction, and the mark with it.
            yield from local.require()
            self.may_be_committed = True
            yield from local.commit()
        except BaseException as error:
            try:
                yield from local.give_up()
            except Exception as second:
                error.add_note(f"the local rollback failed too: {second!r}")
            raise
        return value

    def _begin_and_mark(self, adapter: Adapter) -> Script[bool]:
        # Inside psycopg's conn.transaction() it is open already, and ended by its owner.
        with suppress(TransactionOpen):
            yield Local.BEGIN
        self.may_be_committed = True
        return (yield from self._mark(adapter))

    def _mark(self, adapter: Adapter) -> Script[bool]:
        if self.op == MESSAGE:
            yield from self._find_barrier(adapter)
        try:
            first = yield InDatabase(self._row())
        except AlreadyDecided as decided:
            raise Duplicated(str(decided)) from decided
        return first is not False

    def _row(self) -> Operation[Any]:
        if self.op == MESSAGE:
            return mark_committed(self.gid, table=self.table)
        self._effects += 1
        number = f"{self._effects:02d}"
        return branch_once(
            self.gid, self.branch_id, self.op, trans_type=self.trans_type, barrier_id=number, table=self.table
        )

    def _find_barrier(self, adapter: Adapter) -> Script[None]:
        """Keep the way to the row that is about to be written; refuse a database that a check-back would not ask."""
        here = yield InDatabase(whereabouts(table=self.table))
        source = here.source(adapter.address)
        if self.needed_source is not None and source != self.needed_source:
            raise InvalidRequest(
                f"the check-back of {self.gid} would look into {self.needed_source}, not into {source}; use a "
                "connection to the database that the client was given, or name a query_prepared",
                field="connection",
            )
        self.door = Door.into(adapter, here)

    def _outcome(self) -> Script[Decision]:
        decision: Decision = yield InDatabase(decide(self.gid, table=self.table))
        return decision

    def _tell(self, decision: Decision) -> None:
        if decision == "rolled_back":
            raise Failure(f"transaction {self.gid} is rolled back")
        if decision == "running":
            raise Ongoing(f"the local transaction of {self.gid} is still running")


class BranchBarrier(Barrier):
    """For a synchronous connection: sqlite3, psycopg, PyMySQL or SQLAlchemy."""

    def call(self, connection: Any, effect: Callable[[Any], T]) -> T | None:
        """Carry out `effect(connection)` in a local transaction of its own, once; None if it was there already.

        `Duplicated` if it is the local transaction of a message, and that has an outcome.
        """
        adapter = adapt_sync(connection)
        value: T | None = play_sync(self._carry_out(adapter, lambda: effect(connection)), adapter, _no_broker)
        return value

    @contextmanager
    def once(self, connection: Any) -> Iterator[bool]:
        """The same in a transaction that somebody else ends: `with bb.once(session) as first: if first: ...`

        The row is part of the transaction that is open (or is begun here), and counts if that is committed.
        """
        adapter = adapt_sync(connection)
        yield play_sync(self._begin_and_mark(adapter), adapter, _no_broker)

    def query_prepared(self, connection: Any) -> None:
        """Answer a check-back: `Failure` if the message is rolled back, `Ongoing` if its local transaction still runs.

        Needs a connection with no transaction open. From now on a transaction that had not begun cannot commit.
        """
        self._tell(play_sync(self._outcome(), adapt_sync(connection), _no_broker))


class AsyncBranchBarrier(Barrier):
    """The same on an event loop; a synchronous connection will do, and blocks meanwhile."""

    async def call(self, connection: Any, effect: Callable[[Any], Awaitable[T] | T]) -> T | None:
        """As `BranchBarrier.call`; the effect may be asynchronous."""
        adapter = adapt(connection)
        value: T | None = await play_async(self._carry_out(adapter, lambda: effect(connection)), adapter)
        return value

    @asynccontextmanager
    async def once(self, connection: Any) -> AsyncIterator[bool]:
        """As `BranchBarrier.once`, with `async with`."""
        adapter = adapt(connection)
        yield await play_async(self._begin_and_mark(adapter), adapter)

    async def query_prepared(self, connection: Any) -> None:
        """As `BranchBarrier.query_prepared`."""
        self._tell(await play_async(self._outcome(), adapt(connection)))


def _one(query: Mapping[str, Any], name: str) -> str:
    value = query.get(name)
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]  # parse_qs and its kind
    if isinstance(value, bytes):
        value = value.decode()
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{name}: a branch is asked for with one {name} in its query", field=name)
    return value


def _no_broker() -> NoReturn:
    raise AssertionError("a barrier needs no broker")
