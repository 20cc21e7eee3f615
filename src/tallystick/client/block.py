"""A transaction block: what it collects, how it begins, and how it ends in each case.

Three things can be told to the caller, and nothing else: it worked, it did not happen, or nobody knows yet. Once the
local commit is durable the first one is certain, and no broker can change that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from tallystick.barrier.adapters.base import Adapter
from tallystick.barrier.errors import AlreadyDecided
from tallystick.client.calls import CallOptions, outgoing_call
from tallystick.client.calls_wait import wait_for_calls
from tallystick.client.message import outgoing
from tallystick.client.modes import MODES, CheckBackMode, Mode
from tallystick.client.producer import Pinned
from tallystick.client.script import Local, Script
from tallystick.client.settings import CheckBack
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import InvalidRequest, OutcomeUnknown, TransactionFailed
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid
from tallystick.core.ops import Check

if TYPE_CHECKING:
    from tallystick.client.core import ClientCore

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
        prepare: PrepareOrder,
        check: CheckBack | None,
        gid: str | None,
        wait: bool,
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
        self._open = False
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
        if not self._early:
            yield Local.BEGIN
            self._open = True

    def prepare_early(self) -> Script[None]:
        """Half messages first, then the local transaction with its mark: a check-back that comes now waits for it."""
        if not self._early or not isinstance(self._mode, CheckBackMode):
            raise InvalidRequest("tx.prepare() is for transaction(conn, prepare='early')", field="prepare")
        if self._sealed or self._ended:
            raise InvalidRequest("tx.prepare() was called already", field="prepare")
        self._sealed = True
        if self.sends:
            yield from self._describe_check()
            yield from self._mode.prepare(self)
        yield Local.BEGIN
        self._open = True
        if self.sends:
            try:
                yield from self._mode.mark_early(self)
            except AlreadyDecided as decided:
                raise TransactionFailed(str(decided)) from decided

    def _describe_check(self) -> Script[None]:
        """Learn which database this is, before the prepare. SQLAlchemy knows only while a transaction is open."""
        fresh = not self.adapter.in_transaction
        yield Local.BEGIN
        self._open = True
        self.check_back()
        if fresh:  # nothing of the user's is in it yet, and it must not stay open while the broker is asked
            yield Local.ROLLBACK
            self._open = False

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
            if self.sends:
                yield from self._mode.before_commit(self)
        except BaseException as failure:
            yield from self.give_up()
            if isinstance(failure, AlreadyDecided):
                raise TransactionFailed(str(failure)) from failure
            raise
        yield from self._commit()
        if self.pinned is not None:
            yield from self._mode.after_commit(self, self.pinned)

    def _commit(self) -> Script[None]:
        try:
            yield Local.COMMIT
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

    def give_up(self) -> Script[None]:
        """Undo: the local transaction first, so that the broker is never told what is not true yet."""
        if self.marked_early and self._ended_inside():
            log.warning(
                "the local transaction of %s was ended inside its block; the check-back finds out how", self.gid
            )
            return
        if self._open:
            # If this fails the connection is broken: the database rolls back by itself, nothing was committed.
            yield from self._rolled_back()
        yield from self._withdraw()

    def _ended_inside(self) -> bool:
        """Whether the block's own code may have committed the mark: then a rollback could be a lie."""
        try:
            return not self.adapter.in_transaction
        except Exception as failure:
            log.debug("the state of the local transaction cannot be read: %s", failure)
            return True

    def _rolled_back(self) -> Script[bool]:
        try:
            yield Local.ROLLBACK
        except Exception as failure:
            log.warning("local rollback of %s failed: %s", self.known_gid or "a transaction", failure)
            return False
        return True

    def _withdraw(self) -> Script[None]:
        if self.pinned is not None:
            yield from self._mode.withdraw(self, self.pinned)

    async def wait_for_calls(self, seconds: float) -> None:
        """After the end: stay until each call was answered once."""
        if self.calls and self.pinned is not None:
            await wait_for_calls(self.pinned.broker, self.pinned.gid, seconds)

    # What the modes ask for

    def check_back(self) -> Check:
        """How the broker may ask; refused here if nobody could answer. Found out once, in the local transaction."""
        if self._wire_check is None:
            self._wire_check = self._new_wire_check()
        return self._wire_check

    def _new_wire_check(self) -> Check:
        if self._check.by_group and self.core.databases.learn(self.adapter) is None:
            raise InvalidRequest(
                "nobody could answer a check-back: this database cannot be opened a second time. Give the client a "
                "way in, Client(..., database=open_connection), or the transaction another way to be checked, "
                "check=CheckBack(url=...)",
                field="check",
            )
        return self._check.on_the_wire(self.adapter.source, self.core.settings.check_after)

    def outbox_source(self) -> str:
        """The database whose outbox this process re-drives; refused here if it could not."""
        source = self.core.databases.learn(self.adapter)
        if source is None:
            raise InvalidRequest(
                "nobody could send what a crash leaves in this outbox: the database cannot be opened a second time. "
                "Give the client a way in, Client(..., database=open_connection)",
                field="mode",
            )
        return source

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
