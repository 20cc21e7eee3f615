"""Calls and call topics."""

from __future__ import annotations

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from tallystick.api.http.bodies import respond
from tallystick.api.http.routes.context import body_of, broker_of, gid_of, number, while_connected
from tallystick.broker.broker import Broker
from tallystick.core.calls import CallPage, CallsView, CallTopicView, Remark, Url
from tallystick.core.errors import InvalidRequest, NotFound
from tallystick.core.names import check_name
from tallystick.store.protocol import DropCallTopic, ResumeCalls, StopCalls, Subscribe, Unsubscribe


class SubscriberIn(Struct, forbid_unknown_fields=True):
    url: Url
    remark: Remark = ""


async def _view(broker: Broker, gid: str) -> CallsView:
    view = await broker.look(lambda store: store.calls(gid))
    if view is None:
        raise NotFound(f"transaction {gid} is not known here, or has no calls", field="gid")
    return view


async def show(request: Request) -> Response:
    gid, broker = gid_of(request), broker_of(request)
    wait_ms = number(request, "wait_ms", 0, 0, 60_000)
    if wait_ms:
        return respond(request, await while_connected(request, broker.calls.wait(gid, wait_ms / 1000)))
    return respond(request, await _view(broker, gid))


async def resume(request: Request) -> Response:
    return await _tell(request, ResumeCalls(gid_of(request)))


async def stop(request: Request) -> Response:
    return await _tell(request, StopCalls(gid_of(request)))


async def _tell(request: Request, op: ResumeCalls | StopCalls) -> Response:
    broker = broker_of(request)
    await broker.one(op)
    return respond(request, await _view(broker, op.gid))


async def list_(request: Request) -> Response:
    state = request.query_params.get("state")
    if state not in (None, "waiting", "parked"):
        raise InvalidRequest(f"state: {state[:40]!r} is none of waiting, parked", field="state")
    limit = number(request, "limit", 100, 1, 1_000)
    after = request.query_params.get("after")
    found, more = await broker_of(request).look(lambda store: store.scan_calls(state, after, limit))
    return respond(request, CallPage(found, more))


async def hosts(request: Request) -> Response:
    return respond(request, {"hosts": broker_of(request).calls.hosts()})


# --- call topics -------------------------------------------------------------------------------------------------


def _topic_of(request: Request) -> str:
    return check_name(request.path_params["topic"], "topic")


async def _topics(broker: Broker) -> dict[str, CallTopicView]:
    return {view.topic: view for view in await broker.look(lambda store: store.call_topics())}


async def list_topics(request: Request) -> Response:
    return respond(request, {"topics": list((await _topics(broker_of(request))).values())})


async def show_topic(request: Request) -> Response:
    topic = _topic_of(request)
    known = (await _topics(broker_of(request))).get(topic)
    if known is None:
        raise NotFound(f"there is no call topic {topic!r}", field="topic")
    return respond(request, known)


async def subscribe(request: Request) -> Response:
    topic, sent, broker = _topic_of(request), await body_of(request, SubscriberIn), broker_of(request)
    await broker.subscribe(Subscribe(topic, sent.url, sent.remark))
    return respond(request, (await _topics(broker))[topic])


async def unsubscribe(request: Request) -> Response:
    await broker_of(request).one(Unsubscribe(_topic_of(request), request.query_params.get("url", "")))
    return Response(status_code=204)


async def drop_topic(request: Request) -> Response:
    await broker_of(request).one(DropCallTopic(_topic_of(request)))
    return Response(status_code=204)
