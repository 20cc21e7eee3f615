"""Questions to one broker: topics, groups, transactions, and messages by offset or under lease."""

from __future__ import annotations

import asyncio
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct

from tallystick.client.base.calls import CallsNotFinished
from tallystick.client.base.encoding import encode
from tallystick.client.base.message import Message, from_chunks, from_delivery
from tallystick.client.base.times import milliseconds
from tallystick.client.connection.peer import BrokerPeer
from tallystick.core.calls import CallsView, first_pass_over
from tallystick.core.errors import BrokerUnavailable, NotFound, TallystickError
from tallystick.core.message import Chunk
from tallystick.core.names import check_gid, check_name
from tallystick.core.wire import (
    CheckPoll,
    CheckPollResponse,
    CheckRequest,
    FetchResponse,
    GroupView,
    ReceiveRequest,
    ReceiveResponse,
    ResetRequest,
    TopicSpec,
    TopicView,
    TransactionView,
)

T = TypeVar("T")

MARGIN_SECONDS = 5.0
"""How much longer than its wait a long poll may take before it counts as lost."""

ONE_WAIT_SECONDS = 60.0
"""The longest that a broker keeps one request waiting."""
CALLS_MARGIN_SECONDS = 2.0
"""How much longer than that a request may take before its answer counts as lost."""
PAUSE_SECONDS = 0.1

Start = Literal["earliest", "latest"]

_chunk = msgspec.msgpack.Decoder(Chunk).decode


class Fetched(Struct, frozen=True):
    """Messages of a queue, in order. Go on reading at `next`; `end` is one past the last message there is. Offsets are
    those of `store`: another one begins its own."""

    messages: list[Message]
    next: int
    end: int
    store: str


class _Topics(Struct):
    topics: list[TopicView]


class _Groups(Struct):
    groups: list[GroupView]


async def _ask(broker: BrokerPeer, kind: type[T], method: str, path: str, **options: Any) -> T:
    content = await broker.request(method, path, **options)
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.MsgspecError as failure:
        raise BrokerUnavailable(
            f"{broker.address} does not answer like a Tallystick broker ({failure}). Check the address."
        ) from failure


async def topics(broker: BrokerPeer, timeout: float) -> list[TopicView]:
    return (await _ask(broker, _Topics, "GET", "/v1/topics", timeout=timeout)).topics


async def topic(broker: BrokerPeer, name: str, timeout: float) -> TopicView:
    return await _ask(broker, TopicView, "GET", f"/v1/topics/{check_name(name, 'topic')}", timeout=timeout)


async def put_topic(broker: BrokerPeer, name: str, spec: TopicSpec, timeout: float) -> TopicView:
    body = encode(spec)
    path = f"/v1/topics/{check_name(name, 'topic')}"
    return await _ask(broker, TopicView, "PUT", path, body=body, timeout=timeout)


async def offsets(broker: BrokerPeer, name: str, of_topic: str, timeout: float) -> GroupView:
    path = f"/v1/groups/{check_name(name, 'group')}/offsets"
    query = {"topic": check_name(of_topic, "topic")}
    return await _ask(broker, GroupView, "GET", path, query=query, timeout=timeout)


async def reset_group(broker: BrokerPeer, name: str, request: ResetRequest, timeout: float) -> GroupView:
    path = f"/v1/groups/{check_name(name, 'group')}/reset"
    return await _ask(broker, GroupView, "POST", path, body=encode(request), timeout=timeout)


async def transaction(broker: BrokerPeer, gid: str, timeout: float) -> TransactionView:
    path = f"/v1/transactions/{quote(check_gid(gid), safe='')}"
    return await _ask(broker, TransactionView, "GET", path, timeout=timeout)


async def calls(broker: BrokerPeer, gid: str, wait: float, timeout: float) -> CallsView:
    """The calls of a transaction; waits up to `wait` seconds for the first answer to each."""
    path = f"/v1/transactions/{quote(check_gid(gid), safe='')}/calls"
    query = {"wait_ms": milliseconds(wait, "wait")}
    return await _ask(broker, CallsView, "GET", path, query=query, timeout=timeout + wait)


async def poll_checks(broker: BrokerPeer, poll: CheckPoll, margin: float = MARGIN_SECONDS) -> list[CheckRequest]:
    """Wait to be asked for outcomes, as long as the poll says and at most `margin` seconds longer."""
    body = encode(poll)
    timeout = poll.wait_ms / 1000 + margin
    return (await _ask(broker, CheckPollResponse, "POST", "/v1/checks/poll", body=body, timeout=timeout)).checks


async def groups(broker: BrokerPeer, timeout: float) -> list[GroupView]:
    return (await _ask(broker, _Groups, "GET", "/v1/groups", timeout=timeout)).groups


async def fetch(
    broker: BrokerPeer, name: str, queue: int, offset: int, most: int, wait: float, timeout: float
) -> Fetched:
    """Messages from `offset` on; waits up to `wait` seconds for the first one."""
    answer = await _ask(
        broker,
        FetchResponse,
        "GET",
        f"/v1/topics/{check_name(name, 'topic')}/queues/{queue}/messages",
        query={"offset": offset, "max": most, "wait_ms": milliseconds(wait, "wait")},
        timeout=timeout + wait,
    )
    store = broker.answered_by(answer.store or await broker.known_store())
    chunks = [_chunk(raw) for raw in answer.chunks]
    messages = from_chunks(chunks, name, queue, offset, most, store, broker.address)
    follows = messages[-1].offset + 1 if messages else answer.next
    return Fetched(messages, follows, answer.end, store)


async def receive(
    broker: BrokerPeer, name: str, request: ReceiveRequest, margin: float = MARGIN_SECONDS
) -> list[Message]:
    """Messages under lease for a group; waits as long as the request says, and at most `margin` seconds longer."""
    answer = await _ask(
        broker,
        ReceiveResponse,
        "POST",
        f"/v1/groups/{check_name(name, 'group')}/receive",
        body=encode(request),
        timeout=request.wait_ms / 1000 + margin,
    )
    store = broker.answered_by(answer.store or await broker.known_store())
    return [from_delivery(delivery, name, store, broker.address) for delivery in answer.deliveries]


async def wait_for_calls(broker: BrokerPeer, gid: str, seconds: float, *, surely_there: bool = True) -> None:
    """Wait for the first pass over the calls of a committed transaction; raises `CallsNotFinished` if not all are done.

    `surely_there`: the transaction has calls, so a broker that has not heard of them will. Otherwise there is nothing
    to wait for in that case.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    view: CallsView | None = None
    reason = ""
    while (left := deadline - loop.time()) > 0:
        try:
            view = await calls(broker, gid, min(left, ONE_WAIT_SECONDS), CALLS_MARGIN_SECONDS)
            reason = ""
        except TallystickError as error:
            if isinstance(error, NotFound) and not surely_there:
                return
            if not (error.retryable or isinstance(error, NotFound)):
                raise CallsNotFinished(gid, view, f"the broker cannot be asked: {error}") from error
            reason = f"the broker was last asked in vain: {error}"
        else:
            if view.state == "done":
                return
            # Not while the commit is still on its way to the broker: then nothing can have been tried.
            if first_pass_over(view):
                raise CallsNotFinished(gid, view)
        await asyncio.sleep(min(PAUSE_SECONDS, max(0.0, deadline - loop.time())))
    raise CallsNotFinished(gid, view, reason or f"the wait of {seconds:g} s is over")
