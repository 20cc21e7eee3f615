"""The three ways to make a local transaction and its messages one.

Each way is four short scripts: what happens before the local commit, what after it, how to withdraw, and how to finish
what an earlier attempt has committed. The life around them (`block.py`) is the same for all.
"""

from __future__ import annotations

from typing import Any, Literal

from tallystick.barrier.adapters.base import why_alone
from tallystick.barrier.errors import AlreadyDecided
from tallystick.barrier.operations.barrier import mark_committed, outcome_of, rename_mark
from tallystick.barrier.operations.outbox import outbox_has, outbox_put
from tallystick.client.connection.exchange import never_sent
from tallystick.client.transactions.block import Block
from tallystick.client.transactions.local import LocalTransaction
from tallystick.client.transactions.outbox import encode_row
from tallystick.client.transactions.prepared import Sign, outcome, outcome_gid, prepared
from tallystick.client.transactions.producer import FirstOp, Pinned
from tallystick.client.transactions.script import Ask, InDatabase, Local, OnLoop, Script, nothing
from tallystick.core.errors import (
    AlreadyResolved,
    BrokerUnreachable,
    Conflict,
    InvalidRequest,
    TallystickError,
    TransactionFailed,
)
from tallystick.core.ops import Check, ClientOp, Prepare, Send

ModeName = Literal["check-back", "outbox", "consumer-dedup"]


class CheckBackBlock(Block):
    """The half messages wait in the broker; the barrier row is the truth, and the broker asks for it if need be."""

    mode = "check-back"
    finished_by = "the check-back"
    orders = ("late", "early")
    _asked: Check | None = None
    _marked: str | None = None

    def before_commit(self) -> Script[None]:
        address = self.adapter.address
        expected = self._expected_source(address)
        if expected and (yield from self._prepare_meanwhile(address, expected)):
            return
        refused = yield from self._prepare(self._mark_and_prepare)
        if refused is not None:
            raise _not_again(refused)
        self.producer().connection.databases.found(address, self._found)

    def _expected_source(self, address: str) -> str | None:
        """Which database this should be, if it is sure enough for the broker to be told before it is looked at. With a
        gid of the user's own the mark comes first in any case: it may have to wait for another attempt."""
        producer = self.producer()
        if self.known_gid is not None or not producer.answering:
            return None
        if producer.connection.brokers.sole(self.key) is None:
            return None
        databases = producer.connection.databases
        source = databases.expected(address)
        return source if source and databases.knows(source) else None

    def _prepare_meanwhile(self, address: str, source: str) -> Script[bool]:
        """The half messages are on their way while the mark is made: one wait for both. False, with the half messages
        taken back, if this is not the database that was expected."""
        check = self.check.on_the_wire(source, self.settings.check_after)
        producer = self.producer()
        pinned = yield from producer.begin_meanwhile(
            lambda gid: self._half(gid, check), self._mark, self.key, self.deadline
        )
        found = yield from self.find_source(needs_door=False)
        producer.connection.databases.found(address, found)
        if found != source:
            yield producer.rollback(pinned)
            return False
        self._asked, self.pinned = check, pinned
        return True

    def _mark(self, gid: str) -> Script[None]:
        self.here = yield InDatabase(self.local.mark(gid, self.settings.barrier_table))
        self._marked = gid

    def _mark_and_prepare(self, gid: str) -> Script[ClientOp]:
        """The mark first: one statement makes sure of the transaction, finds out which database it is in, and waits for
        whoever else uses the gid. The broker is asked while the mark can still be undone."""
        if self._marked is None:
            yield from self._mark(gid)
        else:  # another broker, under another gid: the mark of the first must not outlive it
            yield InDatabase(rename_mark(self._marked, gid, table=self.settings.barrier_table))
            self._marked = gid
        return (yield from self._first_op(gid))

    def prepare_early(self) -> Script[None]:
        """Half messages first, then the local transaction with its mark: a check-back that comes now waits for it."""
        if not self._early:
            yield from super().prepare_early()
        if self._sealed or self.ended:
            raise InvalidRequest("tx.prepare() was called already", field="prepare")
        self._sealed = True
        refused = None
        sends = self.messages or self.calls
        yield from self._check_counts()
        if sends:
            yield from self._describe_check()
            refused = yield from self._prepare(self._first_op)
        if not self.local.begun:
            yield from self.local.begin()
        if sends:
            try:
                yield from self._mark_early(refused)
            except AlreadyDecided as decided:
                yield from self._stop(decided)
            self.marked_early = True

    def _describe_check(self) -> Script[None]:
        """Learn which database this is, before the prepare: it can be asked only in a transaction."""
        fresh = not self.adapter.in_transaction
        yield from self.local.begin()
        if self.own_gid:
            yield from self._refuse_decided()
        yield from self._check_back()
        if fresh:  # nothing of the user's is in it yet, and it must not stay open while the broker is asked
            yield from (self.local.end() if self._gave_identity else self.local.give_up())
            self.local = LocalTransaction(self.adapter)

    def _prepare(self, first_op: FirstOp) -> Script[Conflict | None]:
        """Make the half messages durable at a broker. A conflict under a gid of the user's own is handed back."""
        self.settings.needs_group("a transaction in check-back mode")
        try:
            self.pinned = yield from self.producer().begin(first_op, self.known_gid, self.key, self.deadline)
        except Conflict as conflict:
            if not self.own_gid:
                raise
            return conflict
        return None

    def _first_op(self, gid: str) -> Script[ClientOp]:
        check = yield from self._check_back()
        producer = self.producer()
        if check.via == "group" and not producer.answering:
            yield OnLoop(producer.start_answering)
        return self._half(gid, check)

    def _half(self, gid: str, check: Check) -> Prepare:
        connection = self.producer().connection
        connection.prepares = True
        group = str(self.settings.group)
        calls, options = self.calls, self.call_options
        return Prepare(gid, group, self.messages, check, connection.member, calls, options, self._remark)

    def _check_back(self) -> Script[Check]:
        """How the broker may ask; refused here if nobody could answer. Found out once, in the local transaction."""
        if self._asked is None:
            source = yield from self.find_source(needs_door=self.check.by_group)
            if not source:
                raise InvalidRequest(
                    f"nobody could answer a check-back: {why_alone(self.adapter)}. Give the client a way in, "
                    "Client(..., database=open_connection), or the transaction another way to be checked, "
                    "check=CheckBack(url=...)",
                    field="check",
                )
            self._asked = self.check.on_the_wire(source, self.settings.check_after)
        return self._asked

    def _mark_early(self, refused: Conflict | None) -> Script[None]:
        """Say `committed` in the local transaction. What an earlier attempt has come to is told sooner than that the
        broker has no room for another one."""
        yield InDatabase(mark_committed(self.gid, table=self.settings.barrier_table))
        if refused is not None:
            raise _not_again(refused)

    def after_commit(self, pinned: Pinned) -> Script[None]:
        yield self.producer().commit(pinned, wait=self.wait)

    def withdraw(self, pinned: Pinned) -> Script[None]:
        yield self.producer().rollback(pinned, self._cause)

    def stands(self) -> Script[bool]:
        outcome = yield InDatabase(outcome_of(self.gid, table=self.settings.barrier_table))
        return bool(outcome == "committed")

    def finish(self) -> Script[None]:
        return self.producer().finish(self.gid)


class OutboxBlock(Block):
    """The messages wait in the producer's own database; no broker is needed until they are committed there."""

    mode = "outbox"
    finished_by = "the outbox re-driver"
    _source = ""
    _row = ""

    def before_commit(self) -> Script[None]:
        pinned = yield from self.producer().choose(self.known_gid, self.key, self.deadline)
        yield from self._put(pinned, self._send(pinned))
        self.pinned = pinned

    def _put(self, pinned: Pinned, op: Send) -> Script[None]:
        """Keep what is to be sent after the commit. Its re-driver runs before that: a commit may be cut off."""
        gid, address, payload = (
            str(op.gid),
            pinned.broker.address,
            encode_row(pinned.broker.check(op), pinned.broker.limits),
        )
        table = self.settings.barrier_table
        self._row = gid
        if self.own_gid:
            # The outbox forgets a gid once its messages are sent, and the broker would then drop those of a second
            # use without a word. The barrier does not forget.
            self.here = yield InDatabase(self.local.mark(gid, table))
            yield InDatabase(outbox_put(gid, address, payload))
        else:
            self.here = yield InDatabase(self.local.put(gid, address, payload, table))
        self._source = source = yield from self._outbox_source()
        outbox = self.producer().outbox
        if not outbox.drives(source):
            yield OnLoop(lambda: outbox.drive_source(source))

    def _outbox_source(self) -> Script[str]:
        """The database whose outbox this process re-drives; refused here if it could not."""
        source = yield from self.find_source(needs_door=True)
        if not source:
            raise InvalidRequest(
                f"nobody could send what a crash leaves in this outbox: {why_alone(self.adapter)}. Give the client a "
                "way in, Client(..., database=open_connection)",
                field="mode",
            )
        return source

    def after_commit(self, pinned: Pinned) -> Script[None]:
        yield self.producer().send_row(self._source, pinned, self._send(pinned), wait=self.wait)

    def stands(self) -> Script[bool]:
        return (yield InDatabase(outbox_has(self._row)))  # type: ignore[no-any-return]

    def withdraw(self, pinned: Pinned) -> Script[None]:
        """Nothing to do: the row went with the local transaction."""
        return nothing()

    def finish(self) -> Script[None]:
        """See to it that somebody sends what the earlier attempt may have left in the outbox."""
        yield Local.BEGIN
        source = yield from self._outbox_source()
        yield Local.ROLLBACK
        producer = self.producer()
        yield OnLoop(lambda: producer.outbox.drive_source(source))

    def _send(self, pinned: Pinned) -> Send:
        return Send(self.messages, pinned.gid, self.calls, self.call_options)


class ConsumerDedupBlock(OutboxBlock):
    """The prepared message goes to the consumer before the local commit, and its outcome, by the outbox, after it."""

    mode = "consumer-dedup"
    # A second attempt under the gid of a first, rolled back one would meet that one's outcome at the consumer.
    takes_own_gid = False
    # A call has no consumer that could keep it until its outcome comes.
    takes_calls = False

    def before_commit(self) -> Script[None]:
        pinned = yield from self.producer().choose(self.known_gid, self.key, self.deadline)
        half = Send(prepared(self.messages, pinned.gid), pinned.gid)
        with self.deadline.stopped():
            yield from self._put(pinned, self._outcome(pinned, "commit"))
        self.pinned = pinned
        try:
            yield Ask(pinned.broker, half, self.deadline.left())
        except BrokerUnreachable as error:
            if never_sent(error):
                self.pinned = None  # there is nothing to withdraw
            raise

    def after_commit(self, pinned: Pinned) -> Script[None]:
        yield self.producer().send_row(self._source, pinned, self._outcome(pinned, "commit"), wait=self.wait)

    def withdraw(self, pinned: Pinned) -> Script[None]:
        yield self.producer().withdraw(pinned, self._outcome(pinned, "rollback"))

    def finish(self) -> Script[None]:
        """There are no earlier attempts: each has a gid of its own."""
        return nothing()

    def _outcome(self, pinned: Pinned, sign: Sign) -> Send:
        return Send(outcome(self.messages, pinned.gid, sign), outcome_gid(pinned.gid, sign))


def _not_again(refused: Conflict) -> TallystickError:
    """What a conflict at the broker means to the user of a gid, when the barrier knows of no other attempt."""
    if not isinstance(refused, AlreadyResolved):
        return refused
    failed = TransactionFailed(refused.detail, field="gid")
    failed.__cause__ = refused
    return failed


_BLOCKS: dict[str, type[Block]] = {block.mode: block for block in (CheckBackBlock, OutboxBlock, ConsumerDedupBlock)}


def new_block(mode: str, *args: Any, **options: Any) -> Block:
    """A block of a mode; the rest is what `Block` takes."""
    if not isinstance(mode, str) or mode not in _BLOCKS:
        raise InvalidRequest(f"mode: {mode!r:.80} is none of {', '.join(_BLOCKS)}", field="mode")
    return _BLOCKS[mode](*args, **options)
