"""A transaction block: what it collects, how it begins, and how it ends in each case.

Three things can be told to the caller, and nothing else: it worked, it did not happen, or nobody knows yet. Once the
local commit is durable the first one is certain, and no broker can change that.

What a block does before and after its local commit depends on its mode: see `modes.py`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NoReturn

from tallystick.barrier.adapters.base import Adapter, Managed, why_alone
from tallystick.barrier.errors import AlreadyDecided, UnsupportedConnection
from tallystick.barrier.operations.barrier import Decision, committed_outcome, decide, outcome_of
from tallystick.barrier.operations.identity import Whereabouts, named_here, whereabouts
from tallystick.client.base.arguments import check_flag, checked_check
from tallystick.client.base.calls import CallOptions, outgoing_call, policy_of, remark_of
from tallystick.client.base.counts import COUNT_EVERY, DEFAULT_LIMITS, check_count
from tallystick.client.base.databases import Door, within
from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.message import outgoing
from tallystick.client.base.settings import CheckBack, Settings
from tallystick.client.connection.questions import wait_for_calls
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.producer import Pinned, Producer, failed, in_words
from tallystick.client.transactions.script import InDatabase, OnLoop, Script, WhenCommitted, nothing
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import (
    AlreadyCommitted,
    InvalidRequest,
    OutcomeUnknown,
    TallystickError,
    TransactionFailed,
)
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid
from tallystick.core.ops import Outcome

log = logging.getLogger("tallystick.client")

DECISION_SECONDS = 1.0
"""After a failed block: how long a second connection is waited for, before the outcome is left to the check-back."""
FILE_SECONDS = 1.0
"""How long the first block on a file waits until a second connection has found it, too. It has no pool to wait for."""

PrepareOrder = Literal["late", "early"]


class Block(ABC):
    """The state and the scripts of one `with` block. `producer` finds the one of the connection that is in use."""

    mode: ClassVar[str]
    finished_by: ClassVar[str]  # who finishes what this process cannot
    takes_own_gid: ClassVar[bool] = True  # whether the user may name the transaction
    takes_calls: ClassVar[bool] = True
    orders: ClassVar[tuple[PrepareOrder, ...]] = ("late",)

    def __init__(
        self,
        settings: Settings,
        producer: Callable[[], Producer],
        adapter: Adapter,
        *,
        prepare: PrepareOrder = "late",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool | None = None,
        call_options: CallOptions | None = None,
    ) -> None:
        self.settings = settings
        self.deadline = Deadline(settings.timeout)  # of all work with brokers until the local commit
        self.producer = producer
        self.adapter = adapter
        self._managed = adapter if isinstance(adapter, Managed) else None
        self.messages: list[OutgoingMessage] = []
        self.calls: list[OutgoingCall] = []
        self.call_options = policy_of(call_options)
        self._remark = remark_of(call_options)
        self.pinned: Pinned | None = None
        if wait is not None:
            check_flag(wait, "wait", "The limit of the wait is the client's commit_wait.")
        self.wait = settings.wait if wait is None else wait
        self.own_gid = gid is not None
        self.known_gid = None if gid is None else check_gid(gid)
        self.check = checked_check(check) or settings.check
        self.marked_early = False
        self.local = LocalTransaction(adapter)
        self.here: Whereabouts | None = None
        self._found = ""  # the database that the connection was last seen to lead to
        self._gave_identity = False  # whether this block has given the barrier its name, in the transaction
        self._entered = False
        self._sealed = False
        self._room = COUNT_EVERY
        self.ended = False
        self._cause = ""  # of its failure, in words; the first one, which the program is shown
        self._committed = False  # where a framework tells: whether it was
        self._early = prepare == "early"
        if self.own_gid and not self.takes_own_gid:
            raise InvalidRequest(
                f"gid: in {self.mode} mode every attempt needs a gid of its own, made here", field="gid"
            )
        if prepare not in self.orders:
            raise InvalidRequest(
                f"prepare: {prepare!r} is none of {', '.join(self.orders)} in this mode", field="prepare"
            )

    # What a mode is

    @abstractmethod
    def before_commit(self) -> Script[None]:
        """Make sure that the transaction is still the one that was begun, and that the messages will go out if, and
        only if, it is committed; set `here` and, once a broker may have heard of it, `pinned`."""

    @abstractmethod
    def after_commit(self, pinned: Pinned) -> Script[None]: ...

    @abstractmethod
    def withdraw(self, pinned: Pinned) -> Script[None]:
        """The local transaction was rolled back."""

    @abstractmethod
    def stands(self) -> Script[bool]:
        """Whether what `before_commit` has put into the transaction is there, after a commit of somebody else."""

    @abstractmethod
    def finish(self) -> Script[None]:
        """See to what an earlier attempt under the gid has committed."""

    # What the user's code does in the block

    def add(self, topic: str, value: Any, **options: Any) -> None:
        self._must_be_open("send")
        if len(self.messages) >= self._room:
            self._make_room("messages", len(self.messages))
        self.messages.append(outgoing(topic, value, **options))

    def add_call(self, url: str, body: Any, **options: Any) -> None:
        self._must_be_open("call")
        if not self.takes_calls:
            raise InvalidRequest(
                f"mode: no calls in {self.mode} mode; use mode='check-back' (the default) or 'outbox'",
                field="mode",
            )
        if len(self.calls) >= self._room:
            self._make_room("calls", len(self.calls))
        self.calls.append(outgoing_call(url, body, **options))

    def _make_room(self, what: str, count: int) -> None:
        """Room for more; TooLarge if no broker takes so many. An unknown limit is learned beside the block."""
        connection = self.producer().connection
        most = connection.brokers.most_in_a_transaction()
        if most is None:
            connection.learn_limits_soon()
        check_count(what, count + 1, most)
        self._room = count + COUNT_EVERY

    def _check_counts(self) -> Script[None]:
        """TooLarge before anything is encoded or kept."""
        count = max(len(self.messages), len(self.calls))
        if count <= COUNT_EVERY:
            return
        brokers = self.producer().connection.brokers
        if brokers.most_in_a_transaction() is None and count > DEFAULT_LIMITS.transaction_messages:
            yield OnLoop(brokers.learn_limits)
        most = brokers.most_in_a_transaction()
        check_count("messages", len(self.messages), most)
        check_count("calls", len(self.calls), most)

    def must_have_begun(self, what: str) -> None:
        if not self._entered:
            raise InvalidRequest(
                f"transaction: the block was not entered (got tx.{what}()). Write `with ts.transaction(conn) as tx:` "
                f"(`async with` in coroutines), and call tx.{what}() in it."
            )

    def _must_be_open(self, what: str) -> None:
        self.must_have_begun(what)
        if self.ended:
            raise InvalidRequest(f"the transaction has ended; {what} before tx.commit()")
        if self._sealed:
            raise InvalidRequest(f"the half messages are prepared already; {what} before tx.prepare()")

    @property
    def key(self) -> str | None:
        """That of the first message, which on a cluster names the store of the whole transaction."""
        return self.messages[0].key if self.messages else None

    @property
    def gid(self) -> str:
        if self.pinned is not None:
            return self.pinned.gid
        if self.known_gid is None:
            # Whoever reads a gid may write it down, so from here on no other one will do.
            self.known_gid = self.producer().connection.brokers.new_gid(self.key)
        return self.known_gid

    async def wait_for_calls(self, seconds: float) -> None:
        """After the end: stay until each call was answered once."""
        if self.calls and self.pinned is not None:
            await wait_for_calls(self.pinned.broker, self.pinned.gid, seconds)

    # Its life

    def begin(self) -> Script[None]:
        if self._entered:
            raise InvalidRequest("a transaction is entered once; call ts.transaction(conn) for each block")
        self._entered = True
        if self._early:
            return
        try:
            yield from self.local.begin()
            if self.own_gid:
                yield from self._refuse_decided()
        except BaseException as failure:
            yield from self.give_up(failure)
            raise

    def prepare_early(self) -> Script[None]:
        raise InvalidRequest("tx.prepare() is for transaction(conn, prepare='early')", field="prepare")

    def commit(self) -> Script[None]:
        """End the block's work before the end of the block."""
        if self.ended:
            raise InvalidRequest("the transaction has ended already; tx.commit() is called once")
        if self._is_joined():
            raise InvalidRequest(
                "the block is part of a transaction that was begun around it (atomic(), ATOMIC_REQUESTS, a TestCase), "
                "and is committed with that; tx.commit() cannot do it. Leave the block, or use it outside of that"
            )
        return self.end()

    def leave(self, failure: BaseException | None) -> Script[None]:
        """The block is left. Whatever came of a `commit` before, there is nothing to add to it."""
        if self.ended:
            return nothing()
        return self.end() if failure is None else self.give_up(failure)

    def end(self) -> Script[None]:
        """The block came to its end without an exception."""
        self.ended = True
        if self._early and not self._sealed:
            yield from self.give_up()
            raise InvalidRequest(
                "prepare='early' needs tx.prepare() before the changes; they are undone, unless the connection is in "
                "autocommit mode, where each of them was committed by itself",
                field="prepare",
            )
        sends = bool(self.messages or self.calls)
        try:
            self.local.refuse_unfit()  # before the broker is asked for anything
            yield from self._check_counts()
            if sends and not self.marked_early:
                self.deadline.start()
                yield from self.before_commit()
            elif self.own_gid and not sends:  # it is done once all the same, as the user gave it a name
                yield InDatabase(self.local.mark(self.gid, self.settings.barrier_table))
            else:
                yield from self.local.require()
            if self._managed is not None:
                joined = self._is_joined()
                yield WhenCommitted(lambda: self._told_of_commit(joined))
        except AlreadyDecided as decided:
            yield from self._stop(decided)
        except BaseException as failure:
            yield from self.give_up(failure)
            raise
        try:
            yield from self.local.commit()
        except BaseException as failure:
            self._cause = in_words(failure)
            if self._committed:  # what failed is a hook of the user's, afterwards
                raise
            yield from self._not_committed(failure)
        if self._managed is None:
            yield from self._send_off()

    def _send_off(self) -> Script[None]:
        """The local commit is durable: tell the broker."""
        if self.pinned is None:
            return
        try:
            yield from self.after_commit(self.pinned)
        except TallystickError as failure:  # the client was closed meanwhile
            log.warning("%s is committed; its messages are left to %s: %s", self.gid, self.finished_by, failure)

    # As a part of a transaction that a framework manages

    def _is_joined(self) -> bool:
        """Whether the commit is somebody else's, later."""
        return self._managed is not None and self._managed.joined

    def _told_of_commit(self, joined: bool) -> Script[None]:
        """The framework says that the transaction is committed."""
        self._committed = True
        if joined and self.pinned is not None and not (yield from self._still_stands()):
            return
        yield from self._send_off()

    def _still_stands(self) -> Script[bool]:
        """Others had the transaction in their hands since. An error that they have ignored may have undone it before
        its commit (PostgreSQL makes a rollback of that, without a word): the broker is told what the database says."""
        try:
            there: bool = yield from self.stands()
        except Exception as failure:
            log.warning("whether %s is committed is left to %s: %s", self.gid, self.finished_by, failure)
            return False
        if not there:
            log.warning("%s was undone by what came after its block, before the commit around it", self.gid)
        return there

    # Where it does not work

    def _not_committed(self, failure: BaseException) -> Script[NoReturn]:
        """The local commit failed: surely, or without telling whether it took effect."""
        if self.adapter.commit_failure_is_certain(failure) and (yield from self._rolled_back()):
            yield from self._withdraw()
            raise failure
        if self.pinned is not None and isinstance(failure, Exception):
            raise OutcomeUnknown(
                f"the local commit of {self.gid} failed without telling whether it took effect ({failure}); "
                f"{self.finished_by} will find the truth, do not run the block again before it has",
                gid=self.gid,
            ) from failure
        raise failure

    def _refuse_decided(self) -> Script[None]:
        """What an earlier attempt under the user's own gid came to is told before anything is done a second time."""
        outcome = yield InDatabase(outcome_of(self.gid, table=self.settings.barrier_table))
        if outcome is not None:
            yield from self._stop(AlreadyDecided(self.gid, outcome))

    def _stop(self, decided: AlreadyDecided) -> Script[NoReturn]:
        """The barrier has an outcome already: undo what this attempt did, and tell the broker that outcome."""
        self.ended = True
        joined = self._is_joined()
        undone = yield from self._rolled_back()
        if decided.outcome == "committed":
            yield from self._require_committed(joined, undone)
            yield from self.finish()
            raise AlreadyCommitted(decided.detail, field="gid") from decided
        if decided.outcome == "rolled_back":
            yield from self.withdraw(
                self.pinned or (yield from self.producer().pin(decided.gid, Deadline(self.settings.timeout)))
            )
        raise TransactionFailed(decided.detail, field="gid") from decided

    def _require_committed(self, joined: bool, undone: bool) -> Script[None]:
        """The `committed` that this transaction has seen may be the mark of another of its own blocks: it is believed
        only if it is there without the transaction, too."""
        try:
            outcome = yield from self._outcome_outside(joined or not undone)
        except Exception as failure:
            raise OutcomeUnknown(
                f"gid: {self.gid} has a mark already, which may be that of another block of this very transaction. "
                f"Whether it is committed could not be determined ({failure}). Nothing of this block remains. Run it "
                "again after the transaction around it has ended.",
                gid=self.gid,
            ) from failure
        if outcome != "committed":
            raise InvalidRequest(
                f"gid: {self.gid} is used by another block of this very transaction, which is not committed; each "
                "block needs a gid of its own",
                field="gid",
            )

    def _outcome_outside(self, still_open: bool) -> Script[Outcome | None]:
        """What the barrier says to those who are not in the transaction. While that is open still (it is that of a
        framework), nothing but a second connection can tell: it is waited for, for at most `timeout`."""
        table = self.settings.barrier_table
        operation = committed_outcome(self.gid, table=table)
        if not still_open:
            return (yield InDatabase(operation))  # type: ignore[no-any-return]
        door = Door.into(self.adapter, (yield InDatabase(whereabouts(table=table))))
        if door is None:
            raise UnsupportedConnection(why_alone(self.adapter))
        connection, limit = self.producer().connection, self.settings.timeout
        return (yield OnLoop(lambda: within(limit, connection.run(door, operation))))  # type: ignore[no-any-return]

    def give_up(self, failure: BaseException | None = None) -> Script[None]:
        """Undo: the local transaction first, so that the broker is never told what is not true yet."""
        self.ended = True
        self._cause = self._cause or in_words(failure)
        # If this fails the connection is broken: the database rolls back by itself, nothing was committed.
        yield from self._rolled_back()
        yield from self._withdraw()

    def _rolled_back(self) -> Script[bool]:
        try:
            if self._early and not self._sealed:  # what was changed before tx.prepare(), by mistake
                yield from self.local.undo_unbegun()
            yield from self.local.give_up()
        except Exception as failure:
            log.warning("%s its local rollback failed: %s", self._failed(), failure)
            return False
        return True

    def _failed(self) -> str:
        gid = self.pinned.gid if self.pinned is not None else self.known_gid
        return failed(gid, self._cause)

    def _withdraw(self) -> Script[None]:
        """Tell the broker of a rollback, if it is one.

        The block's own code may have committed an early mark; and under a gid of the user's own another attempt may
        have committed, or may be about to. Then the barrier has the word, and the broker is told what it says.
        """
        if self.pinned is None or self.local.inherited:
            return
        decision = (yield from self._decided()) if self.own_gid or self.marked_early else "rolled_back"
        if decision == "rolled_back":
            yield from self.withdraw(self.pinned)
        elif decision == "committed":
            log.warning("transaction %s is committed, although this block failed: its messages go out", self.gid)
            yield from self.finish()

    def _decided(self) -> Script[Decision]:
        """What the barrier says, `rolled_back` being written there if it says nothing; `running` if nobody knows."""
        try:
            table = self.settings.barrier_table
            connection = self.producer().connection
            door = connection.databases.door(self._found)
            operation = decide(self.gid, wait=0.0, table=table, source="" if door is None else self._found)
            # Over a connection of our own if there is one: the user's may have been broken by what failed.
            step = (
                InDatabase(operation)
                if door is None
                else OnLoop(lambda: within(DECISION_SECONDS, connection.run(door, operation)))
            )
            decision: Decision = yield step
        except Exception as failure:
            log.warning("%s its outcome is left to the check-back: %s", self._failed(), failure)
            return "running"
        return decision

    # Which database it is in

    def find_source(self, *, needs_door: bool) -> Script[str]:
        """The name of the database that the connection leads to at this moment; "" if there is no other way into it."""
        adapter, table = self.adapter, self.settings.barrier_table
        connection = self.producer().connection
        here = self.here or (yield InDatabase(whereabouts(table=table)))
        if not here.identity:
            here = yield InDatabase(named_here(here, table=table))
            self._gave_identity = not here.placed
        source: str = here.source(adapter.address)
        if needs_door and not connection.databases.knows(source):
            # The transaction is open: nothing here waits for a second connection.
            door = Door.into(adapter, here)
            patience = FILE_SECONDS if adapter.dialect.single_writer and here.kept else 0.0
            found = OnLoop(lambda: connection.learn(adapter.address, here, door, patience))
            source = "" if here.temporary else (yield found)
        self._found = source
        return source
