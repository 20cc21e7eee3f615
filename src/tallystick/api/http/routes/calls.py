"""Calls and call topics."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from tallystick.api.http.route import Asked
from tallystick.core.calls import CallPage, CallsView, CallTopicView, HostView, Remark, Url
from tallystick.core.errors import NotFound


class SubscriberIn(Struct, forbid_unknown_fields=True):
    url: Url
    remark: Remark = ""


class UnsubscribeQuery(Struct):
    url: Annotated[str, Meta(description="the URL to remove")] = ""


class CallsQuery(Struct):
    wait_ms: Annotated[int, Meta(ge=0, le=60_000, description="how long to wait at most")] = 0


class CallListQuery(Struct):
    state: Annotated[Literal["waiting", "parked"], Meta(description="waiting or parked")] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000, description="page size")] = 100
    after: Annotated[str, Meta(description="`next` of the page before")] | None = None


class CallTopicList(Struct):
    topics: list[CallTopicView]


class HostList(Struct):
    hosts: list[HostView]


async def show(asked: Asked, query: CallsQuery) -> CallsView:
    if query.wait_ms:
        return await asked.wait(asked.door.wait_for_calls(asked.gid, query.wait_ms / 1000))
    return await asked.door.calls(asked.gid)


async def resume(asked: Asked) -> CallsView:
    await asked.door.resume_calls(asked.gid)
    return await asked.door.calls(asked.gid)


async def stop(asked: Asked) -> CallsView:
    await asked.door.stop_calls(asked.gid)
    return await asked.door.calls(asked.gid)


async def list_(asked: Asked, query: CallListQuery) -> CallPage:
    return await asked.door.list_calls(query.state, query.after, query.limit)


async def hosts(asked: Asked) -> HostList:
    return HostList(await asked.door.called_hosts())


# --- call topics -------------------------------------------------------------------------------------------------


async def list_topics(asked: Asked) -> CallTopicList:
    return CallTopicList(await asked.door.call_topics())


async def show_topic(asked: Asked) -> CallTopicView:
    topic = asked.topic
    for known in await asked.door.call_topics():
        if known.topic == topic:
            return known
    raise NotFound(f"there is no call topic {topic!r}", field="topic")


async def subscribe(asked: Asked, sent: SubscriberIn) -> CallTopicView:
    await asked.door.subscribe(asked.topic, sent.url, sent.remark)
    return await show_topic(asked)


async def unsubscribe(asked: Asked, query: UnsubscribeQuery) -> None:
    await asked.door.unsubscribe(asked.topic, query.url)


async def drop_topic(asked: Asked) -> None:
    await asked.door.drop_call_topic(asked.topic)
