"""The broker's side of a transaction: where it goes, and what it is told. Scripts, as the block that they belong to."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from msgspec import Struct

from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.refusals import Refusals
from tallystick.client.connection.exchange import never_sent, passes_elsewhere
from tallystick.client.connection.loop_connection import LoopConnection
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.transactions.outbox import Outbox
from tallystick.client.transactions.script import Answer, Ask, OnLoop, Put, Script, Tell
from tallystick.core.errors import BrokerUnavailable, NotFound, TallystickError
from tallystick.core.ids import new_gid
from tallystick.core.ops import ClientOp, Commit, Rollback, Send

log = logging.getLogger("tallystick.client")

LEAST_ATTEMPT_SECONDS = 1.0


class Pinned(Struct, frozen=True):
    """A gid and the one broker that may be told anything about it."""

    broker: BrokerPeer
    gid: str


FirstOp = Callable[[str], Script[ClientOp]]
"""Makes all ready for a gid that no broker has heard of yet, and then the operation by which it hears of it."""


class Producer:
    """Prepares, commits and rolls back on the right broker. Belongs to one connection, and so to one event loop."""

    def __init__(self, connection: LoopConnection, outbox: Outbox, answer_checks: Callable[[], None]) -> None:
        self.connection = connection
        self.outbox = outbox
        self.answering = False  # whether this process answers check-backs of its group
        self._answer_checks = answer_checks
        self._timeout = connection.settings.timeout
        self._refused_commits = Refusals("the commit of what is committed locally (left to the check-back)")
        self._refused_rollbacks = Refusals("the rollback of transactions (left to the check-back)")

    async def start_answering(self) -> None:
        self.answer_checks()

    def answer_checks(self) -> None:
        self._answer_checks()
        self.answering = True

    # Where it goes

    def pin(self, gid: str, deadline: Deadline) -> Script[Pinned]:
        """The place of a gid that the caller or an earlier attempt knows."""
        brokers = self.connection.brokers
        broker = brokers.only or (yield OnLoop(lambda: brokers.of_gid(gid, deadline.left())))
        return Pinned(broker, gid)

    def choose(self, gid: str | None, key: str | None, deadline: Deadline) -> Script[Pinned]:
        """A place for messages that are not sent yet. The broker may be away: the choice uses what is known."""
        if gid is not None:
            return (yield from self.pin(gid, deadline))
        brokers = self.connection.brokers
        if not brokers.looked:
            yield OnLoop(brokers.look_briefly)
        broker = brokers.for_new(key)[0]
        if not brokers.answered:
            return Pinned(broker, new_gid(broker.store or ""))
        return (yield from self._new_at(broker, min(LEAST_ATTEMPT_SECONDS, deadline.left())))

    def _new_at(self, broker: BrokerPeer, patience: float) -> Script[Pinned]:
        """A new gid. It names its store, or does without if the broker is away: the request itself will tell."""
        if not broker.introduced and broker.healthy:
            try:
                yield OnLoop(lambda: broker.info(patience))
            except TallystickError as error:
                log.debug("no name of the store yet: %s", error)
        return Pinned(broker, new_gid(broker.store or ""))

    def begin(self, first_op: FirstOp, gid: str | None, key: str | None, deadline: Deadline) -> Script[Pinned]:
        """Have a broker take the first operation of a new transaction. `key` is that of its first message.

        `deadline` is that of the whole block: all brokers together get what is left of it.

        With a gid that somebody knows, only its own broker is asked. Otherwise another broker may be tried, under
        another gid: nothing local is committed yet, so the gid left behind can only end as rolled back.
        """
        brokers = self.connection.brokers
        if not brokers.looked:
            yield OnLoop(lambda: brokers.look(deadline.left()))
        if gid is not None:
            pinned = yield from self.pin(gid, deadline)
        elif (sole := brokers.sole(key)) is not None:
            pinned = yield from self._new_at(sole, deadline.left())
        else:
            return (yield from self._begin_at_any(first_op, brokers.for_new(), deadline))
        with deadline.stopped():
            op = yield from first_op(pinned.gid)
        try:
            yield Ask(pinned.broker, op, deadline.left())
        except BaseException as error:
            if gid is None:
                yield from self._forget(pinned, error)
            raise
        return pinned

    def begin_meanwhile(
        self,
        op: Callable[[str], ClientOp],
        meanwhile: Callable[[str], Script[None]],
        key: str | None,
        deadline: Deadline,
    ) -> Script[Pinned]:
        """The same, at the only place and under a new gid, while something else is done for it."""
        pinned = yield from self._new_at(self.connection.brokers.for_new(key)[0], deadline.left())
        underway = yield Put(pinned.broker, op(pinned.gid), deadline.left())
        done = False
        try:
            underway.begin()
            try:
                yield from meanwhile(pinned.gid)
                done = True
            except Exception:
                with contextlib.suppress(TallystickError):  # whatever it says: it is rolled back
                    yield Answer(underway)
                raise
            yield Answer(underway)
        except BaseException as error:
            underway.leave()
            if done:
                yield from self._forget(pinned, error)
            else:
                yield self.rollback(pinned, in_words(error))
            raise
        return pinned

    def _begin_at_any(self, first_op: FirstOp, candidates: list[BrokerPeer], deadline: Deadline) -> Script[Pinned]:
        share = max(LEAST_ATTEMPT_SECONDS, deadline.left() / len(candidates))
        # A store of a cluster without an owner has one before long: where none has any, the last one is waited for.
        waited_for = None if self.connection.brokers.cluster is None else candidates[-1]
        failures: list[TallystickError] = []
        for broker in candidates:
            pinned = None
            stays = broker is waited_for
            left = deadline.left()
            attempt = Deadline(left if stays else min(share, left))
            try:
                new = yield from self._new_in_store(broker, attempt.left())
                with deadline.stopped(), attempt.stopped():
                    op = yield from first_op(new.gid)
                pinned = new
                yield Ask(broker, op, attempt.left(), retry=stays)
                return pinned
            except BaseException as error:
                if pinned is not None:
                    yield from self._forget(pinned, error)
                if not (isinstance(error, TallystickError) and passes_elsewhere(error)):
                    raise
                log.warning("a new transaction cannot start at %s: %s", broker.address, error)
                failures.append(error)
        raise _none_takes(failures)

    def _new_in_store(self, broker: BrokerPeer, patience: float) -> Script[Pinned]:
        """A new gid, which must name its store: with several brokers it is how its own is found again."""
        store = broker.store or (yield OnLoop(lambda: broker.known_store(patience)))
        return Pinned(broker, new_gid(store))

    def _forget(self, pinned: Pinned, error: BaseException) -> Script[None]:
        """What may have been prepared is rolled back rather than left for a check-back."""
        if not never_sent(error) and (not isinstance(error, TallystickError) or passes_elsewhere(error)):
            yield self.rollback(pinned, in_words(error))

    # What it is told

    def commit(self, pinned: Pinned, *, wait: bool) -> Tell:
        """Tell the broker of a local commit that is durable. From here on the outcome is certain."""

        def done(error: BaseException | None) -> None:
            refused = self._refused_commits.heard(error)
            if error is None:
                return
            self.connection.stats.count("commits_left_to_check")
            if refused:
                return
            if isinstance(error, TallystickError) and error.retryable:
                log.warning("commit of %s is left to the check-back: %s", pinned.gid, error)
            else:
                log.error("the broker refused the commit of %s, which is committed locally: %s", pinned.gid, error)

        return self._told(pinned, Commit(pinned.gid), done, wait)

    def finish(self, gid: str) -> Script[None]:
        """Tell the broker of a commit that an earlier attempt may not have told it. Never raises."""
        try:
            deadline = Deadline(self.connection.settings.commit_wait)
            pinned = yield from self.pin(gid, deadline)
            yield Ask(pinned.broker, Commit(gid), deadline.left())
        except NotFound as unknown:
            log.debug("nothing to finish: %s", unknown)  # told long ago, and forgotten since
        except TallystickError as error:
            log.warning("the commit of %s is left to the check-back: %s", gid, error)

    def rollback(self, pinned: Pinned, cause: str = "") -> Tell:
        """Tell the broker that nothing was committed locally; if it does not hear this, it will ask. `cause` is why
        the block failed: the log may have this before the program shows that."""

        def done(error: BaseException | None) -> None:
            if not self._refused_rollbacks.heard(error) and error is not None:
                log.warning("%s its rollback is left to the check-back (%s)", failed(pinned.gid, cause), error)

        return self._told(pinned, Rollback(pinned.gid), done)

    def withdraw(self, pinned: Pinned, op: Send) -> Tell:
        """Tell consumers that what they were sent before the local commit is not to be."""

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.warning("consumers of %s were not told of its rollback: %s", pinned.gid, error)

        return self._told(pinned, op, done)

    def send_row(self, source: str, pinned: Pinned, op: Send, *, wait: bool) -> Tell:
        """Send a committed row of the outbox. Whatever goes wrong, the row is there and will be re-driven."""
        return self._told(pinned, op, self.outbox.row_sent(source, str(op.gid)), wait)

    def _told(
        self, pinned: Pinned, op: ClientOp, done: Callable[[BaseException | None], None], wait: bool = False
    ) -> Tell:
        stay = self.connection.settings.commit_wait if wait else 0.0
        return Tell(pinned.broker, op, self._timeout, done, stay)


def in_words(cause: BaseException | None) -> str:
    """Why a block failed. Words are kept and not the exception: its frames would live as long, and the connections in
    them."""
    if cause is None:
        return ""
    said = str(cause)
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__


def failed(gid: str | None, cause: str) -> str:
    """The beginning of what the log says of a block that failed: its own error comes first."""
    name = f"transaction {gid}" if gid else "a transaction"
    return f"{name} failed with {cause};" if cause else f"{name} was rolled back;"


def _none_takes(failures: list[TallystickError]) -> TallystickError:
    """What all brokers said, as the error that it is if they all said the same."""
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else BrokerUnavailable
    return kind(f"no broker takes new transactions: {'; '.join(map(str, failures))}")
