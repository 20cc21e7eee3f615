"""Consumer groups and check-backs of producer groups."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from tallystick.api.http.bodies import respond, wants_msgpack
from tallystick.api.http.people import readable
from tallystick.api.http.routes.context import body_of, broker_of, group_of, while_connected
from tallystick.core.errors import InvalidRequest, error_from_code
from tallystick.core.message import Milliseconds
from tallystick.core.names import TopicName, check_name
from tallystick.core.ops import (
    Ack,
    AnswerChecks,
    ClientOp,
    CommitOffsets,
    Nack,
    Offset,
    Reason,
    Receipts,
    Renew,
)
from tallystick.core.wire import CheckPoll, CheckPollResponse, ReceiveRequest, ReceiveResponse, ResetRequest
from tallystick.store.protocol import ResetGroup


class AckIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts


class NackIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts
    delay_ms: Milliseconds | None = None
    dead: bool = False
    reason: Reason = ""


class RenewIn(Struct, forbid_unknown_fields=True):
    receipts: Receipts
    invisible_ms: Milliseconds


class OffsetsIn(Struct, forbid_unknown_fields=True):
    topic: TopicName
    offsets: dict[int, Offset]
    expected: dict[int, int] | None = None


async def list_(request: Request) -> Response:
    return respond(request, {"groups": await broker_of(request).look(lambda store: store.groups())})


async def show(request: Request) -> Response:
    group = group_of(request)
    return respond(request, {"groups": await broker_of(request).look(lambda store: store.groups(group))})


async def receive(request: Request) -> Response:
    group, wanted = group_of(request), await body_of(request, ReceiveRequest)
    deliveries = await while_connected(request, broker_of(request).receive(group, wanted))
    if wants_msgpack(request):
        return respond(request, ReceiveResponse(deliveries, broker_of(request).store.id))
    shown = [
        {
            "message": readable(one.message),
            "receipt": one.receipt,
            "attempt": one.attempt,
            "lease_until": one.lease_until,
        }
        for one in deliveries
    ]
    return respond(request, {"deliveries": shown, "store": broker_of(request).store.id})


async def _settle(request: Request, op: ClientOp) -> Response:
    (result,) = await broker_of(request).batch([op], 1_024)
    if result is not None and result.error and not result.stale:
        raise error_from_code(result.error, result.detail, result.field)
    stale = result.stale if result else []
    return respond(request, {"stale": stale}, 409 if stale else 200)


async def ack(request: Request) -> Response:
    sent = await body_of(request, AckIn)
    return await _settle(request, Ack(group_of(request), sent.receipts))


async def nack(request: Request) -> Response:
    sent = await body_of(request, NackIn)
    return await _settle(request, Nack(group_of(request), sent.receipts, sent.delay_ms, sent.dead, sent.reason))


async def renew(request: Request) -> Response:
    sent = await body_of(request, RenewIn)
    return await _settle(request, Renew(group_of(request), sent.receipts, sent.invisible_ms))


async def offsets(request: Request) -> Response:
    group, topic = group_of(request), request.query_params.get("topic")
    if topic is None:
        raise InvalidRequest("topic: say which topic, ?topic=name", field="topic")
    check_name(topic, "topic")
    return respond(request, await broker_of(request).look(lambda store: store.stored_offsets(group, topic)))


async def put_offsets(request: Request) -> Response:
    sent = await body_of(request, OffsetsIn)
    return await _settle(request, CommitOffsets(group_of(request), sent.topic, sent.offsets, sent.expected))


async def reset(request: Request) -> Response:
    sent = await body_of(request, ResetRequest)
    op = ResetGroup(group_of(request), sent.topic, sent.to, sent.offsets, sent.timestamp)
    return respond(request, await broker_of(request).reset_group(op))


async def poll_checks(request: Request) -> Response:
    poll = await body_of(request, CheckPoll)
    checks = await while_connected(request, broker_of(request).poll_checks(poll))
    return respond(request, CheckPollResponse(checks))


async def answer_checks(request: Request) -> Response:
    return await _settle(request, await body_of(request, AnswerChecks))
