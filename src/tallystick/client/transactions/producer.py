"""The broker's side of a transaction: where it goes, and what happens when an answer is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Struct

from tallystick.client.base.settings import Settings
from tallystick.client.base.stats import Stats
from tallystick.client.connection.brokers import BrokerPeer, Brokers
from tallystick.client.connection.waiting import Answered
from tallystick.core.errors import BrokerUnavailable, NotFound, TallystickError
from tallystick.core.ids import new_gid
from tallystick.core.ops import ClientOp, Commit, Rollback

log = logging.getLogger("tallystick.client")

LEAST_ATTEMPT_SECONDS = 1.0


class Pinned(Struct, frozen=True):
    """A gid and the one broker that may be told anything about it."""

    broker: BrokerPeer
    gid: str


class Producer:
    """Prepares, commits and rolls back on the right broker."""

    def __init__(self, brokers: Brokers, settings: Settings, stats: Stats) -> None:
        self._brokers = brokers
        self._settings = settings
        self._stats = stats

    async def choose(self, gid: str | None) -> Pinned:
        """A place for messages that are not sent yet. The broker may be away: only its health is looked at."""
        if gid is not None:
            return Pinned(await self._brokers.of_gid(gid), gid)
        broker = self._brokers.for_new()[0]
        await _learn_store(broker, LEAST_ATTEMPT_SECONDS)
        return Pinned(broker, new_gid(broker.store or ""))

    async def begin(self, first_op: Callable[[str], ClientOp], gid: str | None) -> Pinned:
        """Have a broker take the first operation of a new transaction.

        With a gid that somebody knows, only its own broker is asked. Otherwise another broker may be tried, under
        another gid: nothing local is committed yet, so the gid left behind can only end as rolled back.
        """
        if gid is not None:
            broker = await self._brokers.of_gid(gid)
            await broker.ops.run(first_op(gid), self._settings.timeout)
            return Pinned(broker, gid)
        candidates = self._brokers.for_new()
        if len(candidates) == 1:
            return await self._begin_alone(first_op, candidates[0])
        return await self._begin_at_any(first_op, candidates)

    async def _begin_alone(self, first_op: Callable[[str], ClientOp], broker: BrokerPeer) -> Pinned:
        await _learn_store(broker, self._settings.timeout)
        pinned = Pinned(broker, new_gid(broker.store or ""))
        try:
            await broker.ops.run(first_op(pinned.gid), self._settings.timeout)
        except BaseException as error:
            self._forget(pinned, error)
            raise
        return pinned

    async def _begin_at_any(self, first_op: Callable[[str], ClientOp], candidates: list[BrokerPeer]) -> Pinned:
        attempt = max(LEAST_ATTEMPT_SECONDS, self._settings.timeout / len(candidates))
        failures: list[TallystickError] = []
        for broker in candidates:
            pinned = None
            try:
                pinned = Pinned(broker, new_gid(await broker.known_store(attempt)))
                await broker.ops.run(first_op(pinned.gid), attempt, retry=False)
                return pinned
            except BaseException as error:
                if pinned is not None:
                    self._forget(pinned, error)
                if not (isinstance(error, TallystickError) and error.retryable):
                    raise
                log.warning("a new transaction cannot start at %s: %s", broker.address, error)
                failures.append(error)
        raise _none_takes(failures)

    def _forget(self, pinned: Pinned, error: BaseException) -> None:
        """What may have been prepared is rolled back rather than left for a check-back."""
        if not isinstance(error, TallystickError) or error.retryable:
            self.rollback_soon(pinned)

    async def commit(self, pinned: Pinned, *, wait: bool) -> None:
        """Tell the broker of a local commit that is durable. Never raises: from here on the outcome is certain."""
        await self.deliver(pinned, Commit(pinned.gid), wait=wait, done=self._commit_done(pinned))

    async def finish(self, gid: str) -> None:
        """Tell the broker of a commit that an earlier attempt may not have told it. Never raises."""
        try:
            broker = await self._brokers.of_gid(gid)
            await broker.ops.run(Commit(gid), self._settings.commit_wait)
        except NotFound as unknown:
            log.debug("nothing to finish: %s", unknown)  # told long ago, and forgotten since
        except TallystickError as error:
            log.warning("the commit of %s is left to the check-back: %s", gid, error)

    def rollback_soon(self, pinned: Pinned) -> None:
        """Tell the broker that nothing was committed locally; if it does not hear this, it will ask."""
        self.submit(pinned, Rollback(pinned.gid), lambda error: _log_rollback(pinned, error))

    async def deliver(
        self, pinned: Pinned, op: ClientOp, *, wait: bool, done: Callable[[BaseException | None], None]
    ) -> None:
        """Send, retry in the background, and stay for the answer no longer than `commit_wait` seconds."""
        future = self.submit(pinned, op, done)
        if wait and future is not None:
            await asyncio.wait((future,), timeout=self._settings.commit_wait)

    def submit(self, pinned: Pinned, op: ClientOp, done: Callable[[BaseException | None], None]) -> Answered | None:
        try:
            future = pinned.broker.ops.submit(op, self._settings.timeout)
        except BrokerUnavailable as closed:
            done(closed)
            return None
        future.add_done_callback(lambda answered: done(_failure_of(answered)))
        return future

    def _commit_done(self, pinned: Pinned) -> Callable[[BaseException | None], None]:
        def done(error: BaseException | None) -> None:
            if error is None:
                return
            self._stats.commits_left_to_check += 1
            if isinstance(error, TallystickError) and error.retryable:
                log.warning("commit of %s is left to the check-back: %s", pinned.gid, error)
            else:
                log.error("the broker refused the commit of %s, which is committed locally: %s", pinned.gid, error)

        return done


def _none_takes(failures: list[TallystickError]) -> TallystickError:
    """What all brokers said, as the error that it is if they all said the same."""
    kinds = {type(failure) for failure in failures}
    kind = kinds.pop() if len(kinds) == 1 else BrokerUnavailable
    return kind(f"no broker takes new transactions: {'; '.join(map(str, failures))}")


async def _learn_store(broker: BrokerPeer, timeout: float) -> None:
    """Have a new gid name its store; it does without if the broker is away, and the request itself will tell."""
    if broker.store is None and broker.healthy:
        try:
            await broker.info(timeout)
        except TallystickError as error:
            log.debug("no name of the store yet: %s", error)


def _failure_of(answered: Answered) -> BaseException | None:
    if answered.cancelled():
        return asyncio.CancelledError()
    return answered.exception()


def _log_rollback(pinned: Pinned, error: BaseException | None) -> None:
    if error is not None:
        log.warning("rollback of %s is left to the check-back: %s", pinned.gid, error)
