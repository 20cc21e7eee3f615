"""The three ways to make a local transaction and its messages one.

Each way is three short scripts: what happens before the local commit, what after it, and how to withdraw. The block
around them (`block.py`) is the same for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tallystick.barrier.operations.barrier import mark_committed
from tallystick.barrier.operations.outbox import outbox_put
from tallystick.client.transactions.outbox import encode_row
from tallystick.client.transactions.prepared import Sign, outcome, outcome_gid, prepared
from tallystick.client.transactions.producer import Pinned
from tallystick.client.transactions.script import InDatabase, Local, OnBroker, Script
from tallystick.core.errors import AlreadyResolved, Conflict, TransactionFailed
from tallystick.core.ops import Prepare, Send

if TYPE_CHECKING:
    from tallystick.client.transactions.block import Block


class Mode(Protocol):
    finished_by: str  # who finishes what this process cannot
    takes_own_gid: bool  # whether the user may name the transaction
    takes_calls: bool

    def before_commit(self, block: Block) -> Script[None]: ...
    def after_commit(self, block: Block, pinned: Pinned) -> Script[None]: ...
    def withdraw(self, block: Block, pinned: Pinned) -> Script[None]: ...
    def finish(self, block: Block) -> Script[None]: ...  # what an earlier attempt under the gid has committed


class CheckBackMode:
    """The half messages wait in the broker; the barrier row is the truth, and the broker asks for it if need be."""

    finished_by = "the check-back"
    takes_own_gid = True
    takes_calls = True

    def before_commit(self, block: Block) -> Script[None]:
        refused = yield from self.prepare(block)
        yield from self.mark(block, refused)

    def prepare(self, block: Block) -> Script[Conflict | None]:
        """Make the half messages durable at a broker. A conflict under a gid of the user's own is handed back."""
        group = block.core.settings.needs_group("a transaction in check-back mode")
        check = yield from block.check_back()
        if check.via == "group" and not block.core.answering:
            yield OnBroker(block.core.start_answering)

        def first_op(gid: str) -> Prepare:
            member = block.core.runtime().member
            return Prepare(gid, group, block.messages, check, member, block.calls, block.call_options)

        try:
            block.pinned = yield OnBroker(lambda: block.core.runtime().producer.begin(first_op, block.known_gid))
        except Conflict as conflict:
            if not block.own_gid:
                raise
            return conflict
        return None

    def mark(self, block: Block, refused: Conflict | None) -> Script[None]:
        """Say `committed` in the local transaction. What an earlier attempt has come to is told sooner than that the
        broker has no room for another one."""
        yield InDatabase(mark_committed(block.gid, table=block.core.settings.barrier_table))
        if isinstance(refused, AlreadyResolved):
            raise TransactionFailed(refused.detail, field="gid") from refused
        if refused is not None:
            raise refused

    def after_commit(self, block: Block, pinned: Pinned) -> Script[None]:
        yield OnBroker(lambda: block.core.runtime().producer.commit(pinned, wait=block.wait))

    def withdraw(self, block: Block, pinned: Pinned) -> Script[None]:
        async def roll_back() -> None:
            block.core.runtime().producer.rollback_soon(pinned)

        yield OnBroker(roll_back)

    def finish(self, block: Block) -> Script[None]:
        yield OnBroker(lambda: block.core.runtime().producer.finish(block.gid))


class OutboxMode:
    """The messages wait in the producer's own database; no broker is needed until they are committed there."""

    finished_by = "the outbox re-driver"
    takes_own_gid = True
    takes_calls = True

    def __init__(self) -> None:
        self._source = ""

    def before_commit(self, block: Block) -> Script[None]:
        self._source = source = yield from block.outbox_source()
        block.pinned = pinned = yield OnBroker(lambda: block.core.choose_for_outbox(source, block.known_gid))
        op = pinned.broker.check(self._send(block, pinned))
        if block.own_gid:
            # The outbox forgets a gid once its messages are sent, and the broker would then drop those of a second
            # use without a word. The barrier does not forget.
            yield InDatabase(mark_committed(pinned.gid, table=block.core.settings.barrier_table))
        yield InDatabase(outbox_put(pinned.gid, pinned.broker.address, encode_row(op)))

    def after_commit(self, block: Block, pinned: Pinned) -> Script[None]:
        op = self._send(block, pinned)
        yield OnBroker(lambda: block.core.send_outbox_row(self._source, pinned, op, wait=block.wait))

    def withdraw(self, block: Block, pinned: Pinned) -> Script[None]:
        """Nothing to do: the row went with the local transaction."""
        yield from ()

    def finish(self, block: Block) -> Script[None]:
        """See to it that somebody sends what the earlier attempt may have left in the outbox."""
        yield Local.BEGIN
        source = yield from block.outbox_source()
        yield Local.ROLLBACK
        yield OnBroker(lambda: block.core.drive_outbox(source))

    def _send(self, block: Block, pinned: Pinned) -> Send:
        return Send(block.messages, pinned.gid, block.calls, block.call_options)


class ConsumerDedupMode:
    """The prepared message goes to the consumer before the local commit, and its outcome after it."""

    finished_by = "the outbox re-driver"
    # A second attempt under the gid of a first, rolled back one would meet that one's outcome at the consumer.
    takes_own_gid = False
    # A call has no consumer that could keep it until its outcome comes.
    takes_calls = False

    def __init__(self) -> None:
        self._source = ""

    def before_commit(self, block: Block) -> Script[None]:
        self._source = source = yield from block.outbox_source()
        block.pinned = pinned = yield OnBroker(lambda: block.core.choose_for_outbox(source, block.known_gid))
        half = Send(prepared(block.messages, pinned.gid), pinned.gid)
        yield OnBroker(lambda: pinned.broker.ops.run(half, block.core.settings.timeout))
        commit = self._outcome(block, pinned, "commit")
        yield InDatabase(outbox_put(str(commit.gid), pinned.broker.address, encode_row(commit)))

    def after_commit(self, block: Block, pinned: Pinned) -> Script[None]:
        op = self._outcome(block, pinned, "commit")
        told = Pinned(pinned.broker, str(op.gid))
        yield OnBroker(lambda: block.core.send_outbox_row(self._source, told, op, wait=block.wait))

    def withdraw(self, block: Block, pinned: Pinned) -> Script[None]:
        op = self._outcome(block, pinned, "rollback")

        async def tell_consumer() -> None:
            block.core.runtime().producer.submit(pinned, op, block.log_withdrawal)

        yield OnBroker(tell_consumer)

    def finish(self, block: Block) -> Script[None]:
        """There are no earlier attempts: each has a gid of its own."""
        yield from ()

    def _outcome(self, block: Block, pinned: Pinned, sign: Sign) -> Send:
        messages = outcome(block.messages, pinned.gid, sign)
        return Send(messages, outcome_gid(pinned.gid, sign))


MODES: dict[str, type[Mode]] = {
    "check-back": CheckBackMode,
    "outbox": OutboxMode,
    "consumer-dedup": ConsumerDedupMode,
}
