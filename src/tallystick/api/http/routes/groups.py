"""Consumer groups and check-backs of producer groups."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tallystick.api.http.json_messages import MessageOut, readable
from tallystick.api.http.route import Asked
from tallystick.api.serving.asgi import HttpAnswer
from tallystick.core.message import Invisible, Milliseconds
from tallystick.core.names import NAME_PATTERN, Gid, GroupName, MemberName, TopicName
from tallystick.core.ops import (
    MOST_AT_ONCE,
    Ack,
    Answer,
    AnswerChecks,
    ClientOp,
    CommitOffsets,
    Nack,
    Offset,
    Reason,
    Receipts,
    Renew,
)
from tallystick.core.wire import (
    MSGPACK,
    CheckPoll,
    CheckPollResponse,
    GroupView,
    ReceiveRequest,
    ReceiveResponse,
    ResetRequest,
)


class AckIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts


class NackIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts
    delay_ms: Milliseconds | None = None
    dead: bool = False
    reason: Reason = ""


class RenewIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts
    invisible_ms: Invisible


class OffsetsIn(Struct, forbid_unknown_fields=True):
    topic: TopicName
    offsets: dict[int, Offset]
    expected: dict[int, int] | None = None


class AnswersIn(Struct, forbid_unknown_fields=True):
    """What the producer's side says of transactions it was asked about, and why where it could not tell."""

    answers: Annotated[dict[Gid, Answer], Meta(max_length=MOST_AT_ONCE)]
    reasons: dict[Gid, Reason] = {}
    group: GroupName | None = None
    member: MemberName | None = None


class OffsetsQuery(Struct):
    topic: Annotated[str, Meta(pattern=NAME_PATTERN, description="of this topic")]


class GroupList(Struct):
    groups: list[GroupView]


class StaleReceipts(Struct):
    """Receipts that held no lease any more; the status is 409 if there are any."""

    stale: list[str]


class DeliveryOut(Struct):
    message: MessageOut
    receipt: str
    attempt: int
    lease_until: int


class Deliveries(Struct):
    """Messages under lease, as JSON shows them. `store` names whose offsets these are."""

    deliveries: list[DeliveryOut]
    store: str


async def list_(asked: Asked) -> GroupList:
    return GroupList(await asked.door.groups())


async def show(asked: Asked) -> GroupList:
    return GroupList(await asked.door.groups(asked.group))


async def receive(asked: Asked, sent: ReceiveRequest) -> Deliveries | ReceiveResponse:
    found = await asked.wait(asked.door.receive(asked.group, sent))
    if asked.accepts(MSGPACK):
        return ReceiveResponse(found, asked.door.store_id)
    shown = [DeliveryOut(readable(one.message), one.receipt, one.attempt, one.lease_until) for one in found]
    return Deliveries(shown, asked.door.store_id)


async def _settle(asked: Asked, op: ClientOp) -> StaleReceipts | HttpAnswer:
    stale = StaleReceipts((await asked.door.do(op)).stale)
    return asked.respond(stale, 409) if stale.stale else stale


async def ack(asked: Asked, sent: AckIn) -> StaleReceipts | HttpAnswer:
    return await _settle(asked, Ack(asked.group, sent.receipts))


async def nack(asked: Asked, sent: NackIn) -> StaleReceipts | HttpAnswer:
    return await _settle(asked, Nack(asked.group, sent.receipts, sent.delay_ms, sent.dead, sent.reason))


async def renew(asked: Asked, sent: RenewIn) -> StaleReceipts | HttpAnswer:
    return await _settle(asked, Renew(asked.group, sent.receipts, sent.invisible_ms))


async def offsets(asked: Asked, query: OffsetsQuery) -> GroupView:
    return await asked.door.stored_offsets(asked.group, query.topic)


async def put_offsets(asked: Asked, sent: OffsetsIn) -> StaleReceipts | HttpAnswer:
    return await _settle(asked, CommitOffsets(asked.group, sent.topic, sent.offsets, sent.expected))


async def reset(asked: Asked, sent: ResetRequest) -> GroupView:
    return await asked.door.reset_group(asked.group, sent)


async def poll_checks(asked: Asked, sent: CheckPoll) -> CheckPollResponse:
    return CheckPollResponse(await asked.wait(asked.door.poll_checks(sent)))


async def answer_checks(asked: Asked, sent: AnswersIn) -> StaleReceipts | HttpAnswer:
    return await _settle(asked, AnswerChecks(sent.answers, sent.reasons, sent.group, sent.member))
