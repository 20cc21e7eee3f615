"""A topic that nobody asked for: a name with a slip in it, perhaps. The broker's log says where it came from."""

from __future__ import annotations

import logging

import pytest
from inner_broker import inside

from tallystick.core.errors import NotFound
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Send
from tallystick.core.wire import ReceiveRequest, TopicSpec


async def test_a_topic_that_is_made_by_its_first_use_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.broker")
    async with inside(default_queues=3) as broker:
        await broker.door.put_topic("wanted", TopicSpec())
        for _ in range(2):
            await broker.door.receive("g", ReceiveRequest("ordrs"))
            await broker.do(Send([OutgoingMessage("bills", b"1"), OutgoingMessage("wanted", b"2")]))
    assert caplog.messages == [
        "topic 'ordrs' was made, with 3 queues, by a receive of group 'g'",
        "topic 'bills' was made, with 3 queues, by a message",
    ]


async def test_a_topic_that_was_refused_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick.broker")
    async with inside(auto_create_topics=False) as broker:
        with pytest.raises(NotFound):
            await broker.door.receive("g", ReceiveRequest("ordrs"))
    assert caplog.messages == []
