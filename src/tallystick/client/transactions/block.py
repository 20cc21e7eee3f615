"""A transaction block: what it collects, how it begins, and how it ends in each case.

Three things can be told to the caller, and nothing else: it worked, it did not happen, or nobody knows yet. Once the
local commit is durable the first one is certain, and no broker can change that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.operations.barrier import Decision, decide, mark_committed, outcome_of
from tallystick.barrier.operations.identity import Whereabouts, has_identity, whereabouts
from tallystick.client.base.calls import CallOptions, outgoing_call
from tallystick.client.base.databases import Door
from tallystick.client.base.message import outgoing
from tallystick.client.base.settings import CheckBack
from tallystick.client.connection.questions import wait_for_calls
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.modes import MODES, CheckBackMode, Mode
from tallystick.client.transactions.producer import Pinned
from tallystick.client.transactions.script import InDatabase, OnBroker, Script
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import AlreadyCommitted, InvalidRequest, OutcomeUnknown, TransactionFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid
from tallystick.core.ops import Check

if TYPE_CHECKING:
    from tallystick.client.runtime import ClientCore

log = logging.getLogger("tallystick.client")

ModeName = Literal["check-back", "outbox", "consumer-dedup"]
PrepareOrder = Literal["late", "early"]


class Block:
    """The state and the scripts of one `with` block."""

    def __init__(
        self,
        core: ClientCore,
        adapter: Adapter,
        *,
        mode: ModeName,
        prepare: PrepareOrder = "late",
        check: CheckBack | None = None,
        gid: str | None = None,
        wait: bool = True,
        call_options: CallOptions | None = None,
    ) -> None:
        self.core = core
        self.adapter = adapter
        self.messages: list[OutgoingMessage] = []
        self.calls: list[OutgoingCall] = []
        self.call_options = None if call_options is None else call_options.on_the_wire()
        self.pinned: Pinned | None = None
        self.wait = wait
        self.own_gid = gid is not None
        self.known_gid = None if gid is None else check_gid(gid)
        self._check = check or core.settings.check
        self._wire_check: Check | None = None
        self._mode_name = mode
        self._mode = _mode(mode)
        if self.own_gid and not self._mode.takes_own_gid:
            raise InvalidRequest(f"gid: in {mode} mode every attempt needs a gid of its own, made here", field="gid")
        self._early = _is_early(prepare, self._mode)
        self.marked_early = False
        self.local = LocalTransaction(adapter)
        self._here: Whereabouts | None = None
        self._found = ""  # the database that the connection was last seen to lead to
        self._entered = False
        self._sealed = False
        self._ended = False

    # What the user's code does in the block

    def add(self, topic: str, value: Any, **options: Any) -> None:
        self._must_be_open("send")
        self.messages.append(outgoing(topic, value, **options))

    def add_call(self, url: str, body: Any, **options: Any) -> None:
        self._must_be_open("call")
        if not self._mode.takes_calls:
            raise InvalidRequest(
                f"mode: no calls in {self._mode_name} mode; use mode='check-back' (the default) or 'outbox'",
                field="mode",
            )
        self.calls.append(outgoing_call(url, body, **options))

    def _must_be_open(self, what: str) -> None:
        if self._ended:
            raise InvalidRequest(f"the transaction has ended; {what} before tx.commit()")
        if self._sealed:
            raise InvalidRequest(f"the half messages are prepared already; {what} before tx.prepare()")

    @property
    def sends(self) -> bool:
        """Whether there is anything to tell a broker."""
        return bool(self.messages or self.calls)

    @property
    def gid(self) -> str:
        if self.pinned is not None:
            return self.pinned.gid
        if self.known_gid is None:
            # Whoever reads a gid may write it down, so from here on no other one will do.
            self.known_gid = self.core.new_gid()
        return self.known_gid

    # Scripts

    def begin(self) -> Script[None]:
        if self._entered:
            raise InvalidRequest("a transaction is entered once; call ts.transaction(conn) for each block")
        self._entered = True
        if self._early:
            return
        try:
            yield from self.local.begin()
            yield from self._refuse_decided()
        except BaseException:
            yield from self.give_up()
            raise

    def prepare_early(self) -> Script[None]:
        """Half messages first, then the local transaction with its mark: a check-back that comes now waits for it."""
        if not self._early or not isinstance(self._mode, CheckBackMode):
            raise InvalidRequest("tx.prepare() is for transaction(conn, prepare='early')", field="prepare")
        if self._sealed or self._ended:
            raise InvalidRequest("tx.prepare() was called already", field="prepare")
        self._sealed = True
        refused = None
        if self.sends:
            yield from self._describe_check()
            refused = yield from self._mode.prepare(self)
        if not self.local.begun:
            yield from self.local.begin()
        if self.sends:
            try:
                yield from self._mode.mark(self, refused)
            except AlreadyDecided as decided:
                yield from self._stop(decided)
            self.marked_early = True

    def _describe_check(self) -> Script[None]:
        """Learn which database this is, before the prepare: it can be asked only in a transaction."""
        fresh = not self.adapter.in_transaction
        yield from self.local.begin()
        yield from self._refuse_decided()
        yield from self.check_back()
        if fresh:  # nothing of the user's is in it yet, and it must not stay open while the broker is asked
            yield from self.local.give_up()
            self.local = LocalTransaction(self.adapter)

    def _refuse_decided(self) -> Script[None]:
        """What an earlier attempt under the user's own gid came to is told before anything is done a second time."""
        if self.own_gid:
            outcome = yield InDatabase(outcome_of(self.gid, table=self.core.settings.barrier_table))
            if outcome is not None:
                yield from self._stop(AlreadyDecided(self.gid, outcome))

    def commit(self) -> Script[None]:
        """End the block's work before the end of the block."""
        if self._ended:
            raise InvalidRequest("the transaction has ended already; tx.commit() is called once")
        yield from self.end()

    def leave(self, failure: BaseException | None) -> Script[None]:
        """The block is left. Whatever came of a `commit` before, there is nothing to add to it."""
        if not self._ended:
            yield from self.give_up() if failure is not None else self.end()

    def end(self) -> Script[None]:
        """The block came to its end without an exception."""
        self._ended = True
        if self._early and not self._sealed:
            yield from self.give_up()
            raise InvalidRequest("prepare='early' needs tx.prepare() before the changes", field="prepare")
        try:
            if self.sends and not self.marked_early:
                self._here = yield from self.local.require_here(self.core.settings.barrier_table)
                yield from self._mode.before_commit(self)
            else:
                yield from self.local.require()
                yield from self._mark_name()
        except AlreadyDecided as decided:
            yield from self._stop(decided)
        except BaseException:
            yield from self.give_up()
            raise
        yield from self._commit()
        if self.pinned is not None:
            yield from self._mode.after_commit(self, self.pinned)

    def _mark_name(self) -> Script[None]:
        """A block that came to send nothing is done once all the same, if the user gave it a name."""
        if self.own_gid and not self.sends:
            yield InDatabase(mark_committed(self.gid, table=self.core.settings.barrier_table))

    def _commit(self) -> Script[None]:
        try:
            yield from self.local.commit()
        except BaseException as failure:
            if self.adapter.commit_failure_is_certain(failure) and (yield from self._rolled_back()):
                yield from self._withdraw()
                raise
            if self.pinned is not None and isinstance(failure, Exception):
                raise OutcomeUnknown(
                    f"the local commit of {self.gid} failed without telling whether it took effect ({failure}); "
                    f"{self._mode.finished_by} will find the truth, do not run the block again before it has",
                    gid=self.gid,
                ) from failure
            raise

    def _stop(self, decided: AlreadyDecided) -> Script[NoReturn]:
        """The barrier has an outcome already: undo what this attempt did, and tell the broker that outcome."""
        self._ended = True
        yield from self._rolled_back()
        if decided.outcome == "committed":
            yield from self._mode.finish(self)
            raise AlreadyCommitted(decided.detail, field="gid") from decided
        if decided.outcome == "rolled_back":
            pinned = self.pinned or (yield OnBroker(lambda: self.core.runtime().producer.choose(self.gid)))
            yield from self._mode.withdraw(self, pinned)
        raise TransactionFailed(decided.detail, field="gid") from decided

    def give_up(self) -> Script[None]:
        """Undo: the local transaction first, so that the broker is never told what is not true yet."""
        self._ended = True
        # If this fails the connection is broken: the database rolls back by itself, nothing was committed.
        yield from self._rolled_back()
        yield from self._withdraw()

    def _rolled_back(self) -> Script[bool]:
        try:
            yield from self.local.give_up()
        except Exception as failure:
            log.warning("local rollback of %s failed: %s", self.known_gid or "a transaction", failure)
            return False
        return True

    def _withdraw(self) -> Script[None]:
        """Tell the broker of a rollback, if it is one.

        The block's own code may have committed an early mark; and under a gid of the user's own another attempt may
        have committed, or may be about to. Then the barrier has the word, and the broker is told what it says.
        """
        if self.pinned is None:
            return
        decision = (yield from self._decided()) if self.own_gid or self.marked_early else "rolled_back"
        if decision == "rolled_back":
            yield from self._mode.withdraw(self, self.pinned)
        elif decision == "committed":
            log.warning("transaction %s is committed, although this block failed: its messages go out", self.gid)
            yield from self._mode.finish(self)

    def _decided(self) -> Script[Decision]:
        """What the barrier says, `rolled_back` being written there if it says nothing; `running` if nobody knows."""
        try:
            operation = decide(self.gid, wait=0.0, table=self.core.settings.barrier_table)
            door = self.core.databases.door(self._found)
            # Over a connection of our own if there is one: the user's may have been broken by what failed.
            step = InDatabase(operation) if door is None else OnBroker(lambda: self.core.run(door, operation))
            decision: Decision = yield step
        except Exception as failure:
            log.warning("what became of %s is left to the check-back: %s", self.gid, failure)
            return "running"
        return decision

    async def wait_for_calls(self, seconds: float) -> None:
        """After the end: stay until each call was answered once."""
        if self.calls and self.pinned is not None:
            await wait_for_calls(self.pinned.broker, self.pinned.gid, seconds)

    # What the modes ask for

    def check_back(self) -> Script[Check]:
        """How the broker may ask; refused here if nobody could answer. Found out once, in the local transaction."""
        if self._wire_check is None:
            source = yield from self._source(needs_door=self._check.by_group)
            if not source:
                raise InvalidRequest(
                    "nobody could answer a check-back: no second connection finds the barrier of this one. Give the "
                    "client a way in, Client(..., database=open_connection), or the transaction another way to be "
                    "checked, check=CheckBack(url=...)",
                    field="check",
                )
            self._wire_check = self._check.on_the_wire(source, self.core.settings.check_after)
        return self._wire_check

    def outbox_source(self) -> Script[str]:
        """The database whose outbox this process re-drives; refused here if it could not."""
        source = yield from self._source(needs_door=True)
        if not source:
            raise InvalidRequest(
                "nobody could send what a crash leaves in this outbox: no second connection finds the tables of this "
                "one. Give the client a way in, Client(..., database=open_connection)",
                field="mode",
            )
        return source

    def _source(self, *, needs_door: bool) -> Script[str]:
        """The name of the database that the connection leads to at this moment; "" if there is no other way into it."""
        core, adapter = self.core, self.adapter
        here = self._here or (yield InDatabase(whereabouts(table=core.settings.barrier_table)))
        source: str = here.source(adapter.address)
        if needs_door and not core.databases.knows(source):
            door = Door.into(adapter, here)
            source = yield OnBroker(lambda: core.learn(adapter.address, here, door))
            identity = source.rpartition("/")[2]
            if identity and not here.identity and not (yield self._has(identity)):
                source = ""
        self._found = source
        return source

    def _has(self, identity: str) -> InDatabase:
        """Whether the barrier that a second connection has found is the one that this block writes to."""
        return InDatabase(has_identity(identity, table=self.core.settings.barrier_table))

    def log_withdrawal(self, error: BaseException | None) -> None:
        if error is not None:
            log.warning("consumers of %s were not told of its rollback: %s", self.gid, error)


def _mode(name: str) -> Mode:
    if name not in MODES:
        raise InvalidRequest(f"mode: {name!r} is none of {', '.join(MODES)}", field="mode")
    return MODES[name]()


def _is_early(prepare: str, mode: Mode) -> bool:
    allowed: Sequence[str] = ("late", "early") if isinstance(mode, CheckBackMode) else ("late",)
    if prepare not in allowed:
        raise InvalidRequest(f"prepare: {prepare!r} is none of {', '.join(allowed)} in this mode", field="prepare")
    return prepare == "early"
