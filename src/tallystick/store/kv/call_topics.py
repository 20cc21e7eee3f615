"""Call topics: a name for a list of URLs, looked up when a transaction that calls `topic://name` comes in."""

from __future__ import annotations

from tallystick.core.calls import (
    CallPolicy,
    CallSpec,
    CallTopicView,
    OutgoingCall,
    Subscriber,
    branch_of,
    check_body,
    check_branches,
    digest_of,
    protocol_of,
)
from tallystick.core.dtm_mark import has_dtm_calls
from tallystick.core.errors import Conflict, InvalidRequest, NotFound, TooLarge
from tallystick.core.headers import check_headers
from tallystick.core.names import check_name
from tallystick.core.urls import TOPIC_SCHEME
from tallystick.store.kv import keys
from tallystick.store.kv.batch import Batch, encode
from tallystick.store.kv.channels import check_room
from tallystick.store.protocol import DropCallTopic, Subscribe, Unsubscribe


def subscribe(batch: Batch, op: Subscribe) -> None:
    _require(op.topic, "topic")
    _require(op.url, "url")
    check_name(op.topic, "topic")
    known = batch.catalog.call_topics.get(op.topic)
    if known is None:
        if len(batch.catalog.call_topics) >= batch.settings.limits.topics:
            raise TooLarge(f"topic: there are {batch.settings.limits.topics} call topics already", field="topic")
        known = CallTopicView(op.topic, [], 0, batch.now, batch.now)
    if any(one.url == op.url for one in known.subscribers):
        raise Conflict(f"{op.url} is a subscriber of call topic {op.topic!r} already", field="url")
    if len(known.subscribers) >= batch.settings.limits.transaction_messages:
        raise TooLarge(f"url: {op.topic} has {len(known.subscribers)} subscribers, which is the limit", field="url")
    _change(batch, known, [*known.subscribers, Subscriber(op.url, op.remark)])


def unsubscribe(batch: Batch, op: Unsubscribe) -> None:
    _require(op.topic, "topic")
    _require(op.url, "url")
    known = batch.catalog.call_topics.get(op.topic)
    if known is None:
        raise _unknown(op.topic)
    if not known.subscribers:
        raise NotFound(f"call topic {op.topic!r} has no subscribers", field="subscribers")
    left = [one for one in known.subscribers if one.url != op.url]
    if len(left) == len(known.subscribers):
        raise NotFound(f"{op.url} is no subscriber of call topic {op.topic!r}", field="url")
    _change(batch, known, left)


def drop(batch: Batch, op: DropCallTopic) -> None:
    _require(op.topic, "topic")
    if batch.catalog.call_topics.pop(op.topic, None) is None:
        raise _unknown(op.topic)
    batch.delete("index", keys.CALL_TOPIC.key(op.topic))


def _require(value: str, field: str) -> None:
    if not value:
        raise InvalidRequest(f"{field}: must not be empty", field=field)


def _unknown(topic: str) -> NotFound:
    return NotFound(f"there is no call topic {topic!r}", field="topic")


def _change(batch: Batch, known: CallTopicView, subscribers: list[Subscriber]) -> None:
    changed = CallTopicView(known.topic, subscribers, known.version + 1, known.created_at, batch.now)
    batch.catalog.call_topics[known.topic] = changed
    batch.put("index", keys.CALL_TOPIC.key(known.topic), encode(changed))


# --- use ---------------------------------------------------------------------------------------------------------


def spec_of(batch: Batch, asked: list[OutgoingCall], options: CallPolicy | None, remark: str) -> CallSpec | None:
    """The calls as they will be made: one for each subscriber, each with a branch of its own. Refuses what could not
    be made at the commit, when the business change can no longer be taken back."""
    if not asked and not has_dtm_calls(remark):
        return None  # dtm's check-backs need the interval, with or without calls
    calls = [one for place, call in enumerate(asked, 1) for one in _expanded(batch, call, place)]
    most = batch.settings.limits.transaction_messages
    if len(calls) > most:
        raise TooLarge(f"calls: {len(calls)} with all subscribers, the limit is {most}", field="calls")
    check_branches(calls)
    for call in calls:
        check_room(batch, "call", call.url, "")
    chosen = options or CallPolicy()
    return CallSpec(
        calls,
        chosen.concurrent,
        chosen.retry_ms or 0,
        chosen.max_attempts or 0,
        remark,
        digest_of(asked, options),
    )


def _expanded(batch: Batch, call: OutgoingCall, place: int) -> list[OutgoingCall]:
    branch = branch_of(call, place)
    if not call.url.startswith(TOPIC_SCHEME):
        return [_named(call, call.url, branch)]
    name = call.url[len(TOPIC_SCHEME) :]
    known = batch.catalog.call_topics.get(name)
    if known is None or not known.subscribers:
        raise NotFound(f"calls: there is no call topic {name!r} with a subscriber", field="calls")
    for one in known.subscribers:
        check_body(call, one.url, f"calls[{place - 1}]")
        check_headers(call.headers, f"calls[{place - 1}].headers", one.url)
    if len(known.subscribers) == 1:
        return [_named(call, known.subscribers[0].url, branch)]
    return [_named(call, one.url, f"{branch}-{number:02d}") for number, one in enumerate(known.subscribers, 1)]


def _named(call: OutgoingCall, url: str, branch: str) -> OutgoingCall:
    protocol = protocol_of(url, call.protocol)
    return OutgoingCall(url, call.body, call.headers, protocol, call.timeout_ms, call.delay_ms, branch)
