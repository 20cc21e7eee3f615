"""Messages without a transaction, at three levels of care.

Level 0 is queued and never waited for. Level 1 is confirmed and retried, so it may arrive twice. Level 2 carries a gid
by which the broker drops what it has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from tallystick.client.base.counts import COUNT_EVERY, DEFAULT_LIMITS, check_count
from tallystick.client.base.deadlines import Deadline
from tallystick.client.base.stats import Stats
from tallystick.client.connection.brokers import Brokers
from tallystick.client.connection.exchange import passes_elsewhere
from tallystick.client.connection.peer import BrokerPeer
from tallystick.client.connection.waiting import Answered
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import (
    BrokerUnavailable,
    BrokerUnreachable,
    InvalidRequest,
    StorageFailed,
    TallystickError,
)
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid
from tallystick.core.ops import OpResult, Position, Send

log = logging.getLogger("tallystick.client")
refusals = logging.getLogger("tallystick.client.refusals")

Level = Literal[0, 1, 2]


class Sent(Struct, frozen=True):
    """Where messages ended up. `duplicate`: the broker had this gid before, nothing was added."""

    gid: str | None
    positions: list[Position]
    duplicate: bool = False


async def send(brokers: Brokers, messages: list[OutgoingMessage], level: int, gid: str | None, stats: Stats) -> Sent:
    """Send messages together, with the care that was asked for."""
    if level not in (0, 1, 2):
        raise InvalidRequest(f"level: {level!r} is none of 0, 1, 2", field="level")
    if gid is not None and level != 2:
        raise InvalidRequest("gid: only level 2 drops duplicates by gid", field="gid")
    await check_counts(brokers, messages)
    if level == 2:
        return await _send_once(brokers, Send(messages), gid)
    if level == 1:
        return await _send_confirmed(brokers, messages)
    await brokers.look()
    _send_unconfirmed(brokers, messages, stats)
    return Sent(None, [])


async def send_calls(brokers: Brokers, what: Send) -> Sent:
    """Calls are always sent with the care of level 2: the broker knows each by its gid."""
    if not what.calls:
        raise InvalidRequest("calls: give at least one", field="calls")
    await check_counts(brokers, [], what.calls)
    return await _send_once(brokers, what, what.gid)


async def check_counts(brokers: Brokers, messages: list[OutgoingMessage], calls: Sequence[OutgoingCall] = ()) -> None:
    """TooLarge before anything is encoded. More than the default are compared with what a broker says first."""
    count = max(len(messages), len(calls))
    if count <= COUNT_EVERY:
        return
    if count > DEFAULT_LIMITS.transaction_messages:
        await brokers.learn_limits()
    most = brokers.most_in_a_transaction()
    check_count("messages", len(messages), most)
    check_count("calls", len(calls), most)


def _send_unconfirmed(brokers: Brokers, messages: list[OutgoingMessage], stats: Stats) -> None:
    """Level 0. Never raises on the broker's account; losses are counted and logged."""
    broker = brokers.for_new(_key(messages))[0]
    if broker.unconfirmed.full:
        stats.unconfirmed_dropped += len(messages)
        return

    def done(answered: Answered) -> None:
        error = None if answered.cancelled() else answered.exception()
        if error is None and not answered.cancelled():
            return
        stats.unconfirmed_failed += len(messages)
        refused = isinstance(error, TallystickError) and not error.retryable
        if refused:
            stats.unconfirmed_refused = str(error)
        (refusals if refused else log).warning(
            "%d level 0 messages were not taken by %s: %s", len(messages), broker.address, error or "the client closed"
        )

    broker.unconfirmed.submit(Send(messages), brokers.timeout, retry=False).add_done_callback(done)


async def _send_confirmed(brokers: Brokers, messages: list[OutgoingMessage]) -> Sent:
    """Level 1: whichever broker answers. A lost answer is tried again elsewhere and may have worked here."""
    deadline = Deadline(brokers.timeout)
    await brokers.look(deadline.left())
    candidates = brokers.for_new(_key(messages))
    share = deadline.left() / len(candidates)
    for broker in candidates[:-1]:
        try:
            return _sent(broker, None, await broker.ops.run(broker.check(Send(messages)), share, retry=False))
        except TallystickError as error:
            if not passes_elsewhere(error):
                raise
            log.info("level 1 message not taken by %s, trying another: %s", broker.address, error)
    last = candidates[-1]
    return _sent(last, None, await last.ops.run(last.check(Send(messages)), deadline.left()))


async def _send_once(brokers: Brokers, what: Send, gid: str | None) -> Sent:
    """Level 2. Only a broker that surely has nothing may be left for another one."""
    deadline = Deadline(brokers.timeout)
    if gid is not None:
        broker = await brokers.of_gid(check_gid(gid), deadline.left())
        return await _send_with_gid(broker, what, gid, deadline.left())
    await brokers.look(deadline.left())
    candidates = brokers.for_new(_key(what.messages))
    share = deadline.left() / len(candidates)
    for broker in candidates[:-1]:
        gid = new_gid(broker.store or "")
        try:
            return _sent(broker, gid, await broker.ops.run(broker.check(_named(what, gid)), share, retry=False))
        except TallystickError as error:
            if _in_doubt(error):
                return await _send_with_gid(broker, what, gid, deadline.left())
            if not passes_elsewhere(error):
                raise
            log.info("not taken by %s, trying another: %s", broker.address, error)
    last = candidates[-1]
    return await _send_with_gid(last, what, new_gid(last.store or ""), deadline.left())


async def _send_with_gid(broker: BrokerPeer, what: Send, gid: str, timeout: float) -> Sent:
    return _sent(broker, gid, await broker.ops.run(broker.check(_named(what, gid)), timeout))


def _key(messages: list[OutgoingMessage]) -> str | None:
    """What names the store on a cluster: messages that are sent together stay together."""
    return messages[0].key if messages else None


def _named(what: Send, gid: str) -> Send:
    return Send(what.messages, gid, what.calls, what.call_options, what.remark)


def _in_doubt(error: TallystickError) -> bool:
    unsure = isinstance(error, BrokerUnavailable | StorageFailed)
    return unsure and not isinstance(error, BrokerUnreachable)


def _sent(broker: BrokerPeer, gid: str | None, result: OpResult | None) -> Sent:
    if result is None:
        return Sent(gid, [])
    return Sent(gid, [broker.position(at) for at in result.positions], result.duplicate)
