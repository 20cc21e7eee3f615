"""Transactions: many operations in one request, as the client library sends them, or one request each, for curl, for
operators, for languages without a library."""

from __future__ import annotations

import asyncio
from typing import Annotated

from msgspec import Meta, Struct

from tallystick.api.http import arrow_in, arrow_parts
from tallystick.api.http.json_messages import MessagesIn, OutcomeIn, PartIn, TransactionIn, outgoing, outgoing_calls
from tallystick.api.http.route import Asked
from tallystick.columnar.body import checksum
from tallystick.core.errors import InvalidRequest
from tallystick.core.names import NAME_PATTERN, check_gid
from tallystick.core.ops import Commit, DropParts, Prepare, PrepareColumns, PreparePart, Rollback, Send
from tallystick.core.wire import (
    ARROW,
    BatchRequest,
    BatchResponse,
    TransactionPage,
    TransactionState,
    TransactionView,
)

LONGEST_MS = 366 * 24 * 3600 * 1000


class TransactionsQuery(Struct):
    state: Annotated[TransactionState, Meta(description="prepared, parked, committed or rolled_back")] | None = None
    group: Annotated[str, Meta(pattern=NAME_PATTERN, description="of this producer group")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="page size")] = 100
    after: Annotated[str, Meta(description="`next` of the page before")] | None = None


class PartQuery(Struct):
    index: Annotated[int, Meta(ge=0, le=1_000_000, description="Arrow: as in the JSON body")] = 0
    ttl_ms: Annotated[int, Meta(ge=0, le=LONGEST_MS, description="Arrow: as in the JSON body")] | None = None


class PartOut(Struct):
    """`duplicate` if this index of the part had been prepared before."""

    part: str
    messages: int
    duplicate: bool


class PositionOut(Struct):
    topic: str
    queue: int
    offset: int


class SentOut(Struct):
    """Where the messages are; `duplicate` if the gid had been sent before."""

    duplicate: bool
    positions: list[PositionOut]


async def batch(asked: Asked, sent: BatchRequest) -> BatchResponse:
    return BatchResponse(await asked.door.batch(sent.ops, asked.size))


async def prepare(asked: Asked, sent: TransactionIn) -> TransactionView:
    messages, calls = outgoing(sent.messages), outgoing_calls(sent.calls)
    gid = sent.gid or asked.door.new_gid(messages)
    op = Prepare(gid, sent.group, messages, sent.check, sent.member, calls, sent.call_options, sent.remark)
    return await asked.door.do_and_show(op, asked.size)


async def show(asked: Asked) -> TransactionView:
    return await asked.door.transaction(asked.gid)


async def list_(asked: Asked, query: TransactionsQuery) -> TransactionPage:
    return await asked.door.transactions(query.state, query.group, query.after, query.limit)


async def commit(asked: Asked, sent: OutcomeIn) -> TransactionView:
    if sent.by == "operator":
        return await asked.door.resolve(_without_parts(asked.gid, sent), "committed")
    return await asked.door.do_and_show(Commit(asked.gid, sent.parts, sent.delay_ms), asked.size)


async def rollback(asked: Asked, sent: OutcomeIn) -> TransactionView:
    if sent.by == "operator":
        return await asked.door.resolve(_without_parts(asked.gid, sent), "rolled_back")
    return await asked.door.do_and_show(Rollback(asked.gid, [ref.part for ref in sent.parts]), asked.size)


def _without_parts(gid: str, sent: OutcomeIn) -> str:
    if sent.parts or sent.delay_ms:
        raise InvalidRequest("parts, delay_ms: an operator's word is about what was prepared, and has none", field="by")
    return gid


async def resume(asked: Asked) -> TransactionView:
    return await asked.door.resume(asked.gid)


async def hurry(asked: Asked) -> TransactionView:
    return await asked.door.hurry(asked.gid)


async def put_part(asked: Asked, query: PartQuery) -> PartOut:
    part = check_gid(asked.path("part"), "part")
    if asked.sends(ARROW):
        columns = await _arrow_part(asked, part, query)
        result = await asked.door.do(columns, asked.size)
        return PartOut(part, columns.count, result.duplicate)
    sent = await asked.body(PartIn)
    op = PreparePart(part, outgoing(sent.messages), sent.index, sent.ttl_ms)
    result = await asked.door.do(op, asked.size)
    return PartOut(part, len(op.messages), result.duplicate)


async def _arrow_part(asked: Asked, part: str, query: PartQuery) -> PrepareColumns:
    content, door = await asked.raw_body(), asked.door

    def made() -> PrepareColumns:
        rows = arrow_in.rows_of_stream(content, door.limits)
        queues = door.queues_of(arrow_parts.topics_of(rows))
        return arrow_parts.part_of(rows, part, query.index, query.ttl_ms, checksum(content), queues)

    # Off the event loop: dividing megabytes would hold every other request up.
    return await asyncio.to_thread(made)


async def drop_part(asked: Asked) -> None:
    await asked.door.do(DropParts([check_gid(asked.path("part"), "part")]))


async def send(asked: Asked, sent: MessagesIn) -> SentOut:
    messages, calls = outgoing(sent.messages), outgoing_calls(sent.calls)
    op = Send(messages, sent.gid, calls, sent.call_options, sent.remark)
    result = await asked.door.do(op, asked.size)
    return SentOut(result.duplicate, [PositionOut(at.topic, at.queue, at.offset) for at in result.positions])
