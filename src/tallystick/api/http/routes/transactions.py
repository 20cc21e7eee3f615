"""Transactions, one request each: for curl, for operators, for languages without a library."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from tallystick.api.http import arrow_in
from tallystick.api.http.bodies import media_type, read_body, respond
from tallystick.api.http.people import MessagesIn, OutcomeIn, PartIn, TransactionIn, outgoing, outgoing_calls
from tallystick.api.http.routes.context import body_of, broker_of, gid_of, number
from tallystick.broker.broker import Broker
from tallystick.core.calls import OutgoingCall
from tallystick.core.errors import InvalidRequest, NotFound, TallystickError, error_from_code
from tallystick.core.ids import new_gid
from tallystick.core.message import OutgoingMessage
from tallystick.core.names import check_gid, check_name
from tallystick.core.ops import ClientOp, Commit, DropParts, OpResult, Prepare, PreparePart, Rollback, Send
from tallystick.core.wire import ARROW, TransactionPage, TransactionState, TransactionView
from tallystick.store.protocol import Hurry, OperatorResolve, Resume

LONGEST_MS = 366 * 24 * 3600 * 1000


async def _carry_out(broker: Broker, op: ClientOp, weight: int = 1_024) -> OpResult:
    try:
        (result,) = await broker.batch([op], weight)
    except TallystickError as error:
        # The caller has sent no list of operations, so the place is told without it.
        place = (error.field or "").removeprefix("ops[0].") or None
        raise type(error)(error.detail.removeprefix("ops[0]."), field=place) from error
    if result is not None and result.error:
        raise error_from_code(result.error, result.detail, result.field)
    return result or OpResult()


async def _view(broker: Broker, gid: str) -> TransactionView:
    view = await broker.look(lambda store: store.transaction(gid))
    if view is None:
        raise NotFound(f"transaction {gid} is not known here", field="gid")
    return view


def _weight(messages: list[OutgoingMessage], calls: list[OutgoingCall]) -> int:
    return sum(len(message.value) for message in messages) + sum(len(call.body) for call in calls)


async def prepare(request: Request) -> Response:
    sent, broker = await body_of(request, TransactionIn), broker_of(request)
    gid = sent.gid or new_gid(broker.store.id)
    messages, calls = outgoing(sent.messages), outgoing_calls(sent.calls)
    op = Prepare(gid, sent.group, messages, sent.check, sent.member, calls, sent.call_options, sent.remark)
    await _carry_out(broker, op, _weight(messages, calls))
    return respond(request, await _view(broker, gid), 201)


async def show(request: Request) -> Response:
    return respond(request, await _view(broker_of(request), gid_of(request)))


async def list_(request: Request) -> Response:
    state = request.query_params.get("state")
    group = request.query_params.get("group")
    if state is not None and state not in get_args(TransactionState):
        raise InvalidRequest(f"state: {state[:40]!r} is none of {', '.join(get_args(TransactionState))}", field="state")
    if group is not None:
        check_name(group, "group")
    limit = number(request, "limit", 100, 1, 1_000)
    after = request.query_params.get("after")
    found, more = await broker_of(request).look(lambda store: store.scan(state, group, after, limit))
    return respond(request, TransactionPage(found, more))


async def commit(request: Request) -> Response:
    gid, sent, broker = gid_of(request), await body_of(request, OutcomeIn), broker_of(request)
    if sent.by == "operator":
        await broker.one(OperatorResolve(gid, "committed"))
    else:
        await _carry_out(broker, Commit(gid, sent.parts, sent.delay_ms))
    return respond(request, await _view(broker, gid))


async def rollback(request: Request) -> Response:
    gid, sent, broker = gid_of(request), await body_of(request, OutcomeIn), broker_of(request)
    if sent.by == "operator":
        await broker.one(OperatorResolve(gid, "rolled_back"))
    else:
        await _carry_out(broker, Rollback(gid, [ref.part for ref in sent.parts]))
    return respond(request, await _view(broker, gid))


async def resume(request: Request) -> Response:
    return await _tell(request, Resume(gid_of(request)))


async def hurry(request: Request) -> Response:
    return await _tell(request, Hurry(gid_of(request)))


async def _tell(request: Request, op: Resume | Hurry) -> Response:
    broker = broker_of(request)
    await broker.one(op)
    return respond(request, await _view(broker, op.gid))


async def put_part(request: Request) -> Response:
    part = check_gid(request.path_params["part"], "part")
    if media_type(request.headers.get("content-type", "")) == ARROW:
        op, weight = await _arrow_part(request, part)
    else:
        sent = await body_of(request, PartIn)
        op, weight = PreparePart(part, outgoing(sent.messages), sent.index, sent.ttl_ms), 1_024
    result = await _carry_out(broker_of(request), op, weight)
    return respond(request, {"part": part, "messages": len(op.messages), "duplicate": result.duplicate}, 201)


async def _arrow_part(request: Request, part: str) -> tuple[PreparePart, int]:
    limits = broker_of(request).limits
    body = await read_body(request, limits.request_bytes)
    # Off the event loop: turning megabytes into messages would hold every other request up.
    messages = await asyncio.to_thread(arrow_in.messages_of_stream, body, limits.part_messages)
    ttl_ms = number(request, "ttl_ms", 0, 0, LONGEST_MS) if "ttl_ms" in request.query_params else None
    return PreparePart(part, messages, number(request, "index", 0, 0, 1_000_000), ttl_ms), len(body)


async def drop_part(request: Request) -> Response:
    await broker_of(request).one(DropParts([check_gid(request.path_params["part"], "part")]))
    return Response(status_code=204)


async def send(request: Request) -> Response:
    sent = await body_of(request, MessagesIn)
    messages, calls = outgoing(sent.messages), outgoing_calls(sent.calls)
    op = Send(messages, sent.gid, calls, sent.call_options, sent.remark)
    result = await _carry_out(broker_of(request), op, _weight(messages, calls))
    answer: dict[str, Any] = {
        "duplicate": result.duplicate,
        "positions": [{"topic": at.topic, "queue": at.queue, "offset": at.offset} for at in result.positions],
    }
    return respond(request, answer, 201)
