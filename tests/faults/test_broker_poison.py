"""An operation that meets an error of ours: it alone fails, and the broker goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tallystick.broker.broker import Broker
from tallystick.broker.config import load_config
from tallystick.core.errors import TallystickError
from tallystick.core.message import OutgoingMessage
from tallystick.core.ops import Commit, Prepare, Send
from tallystick.store.kv import transactions
from tallystick.store.memory import open_memory

pytestmark = pytest.mark.fault

send_as_written = transactions.send


def poisoned_send(batch: Any, op: Send) -> Any:
    """A bug that shows only after the operation has changed something."""
    result = send_as_written(batch, op)
    if op.gid == "poison":
        raise ZeroDivisionError("seeded")
    return result


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    monkeypatch.setattr(transactions, "send", poisoned_send)
    made = Broker(load_config(flags={"store": "memory"}, environ={}), open_memory())
    yield made
    await made.close()


def send(gid: str) -> Send:
    return Send([OutgoingMessage("orders", gid.encode())], gid)


async def test_only_the_one_that_is_wrong_fails(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    half = Prepare("half", "shop", [OutgoingMessage("orders", b"half")])
    await broker.door().batch([half], 100)
    gids = [*(f"a{number}" for number in range(20)), "poison", *(f"b{number}" for number in range(20))]
    blocked = broker._writer.look(lambda _: __import__("time").sleep(0.2))  # all of them wait for one group commit
    work = [asyncio.ensure_future(broker.door().batch([send(gid)], 100)) for gid in gids]
    counted = asyncio.ensure_future(broker.door().info())
    last = asyncio.ensure_future(broker.door().batch([Commit("half")], 100))
    await blocked
    answers = await asyncio.gather(*work, counted, last, return_exceptions=True)
    failed = [gid for gid, answer in zip(gids, answers, strict=False) if isinstance(answer, BaseException)]
    assert failed == ["poison"]
    error = answers[20]
    assert isinstance(error, TallystickError)
    assert (error.status, error.retryable) == (500, False)
    assert "internal error" in error.detail
    view = broker.door().known_topic("orders")
    assert sum(view.ends) == 41
    for gid in gids:
        found = await broker.door().whole(gid)
        assert (found is None) == (gid == "poison")


async def test_the_broker_goes_on_after_it(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for number in range(5):
        with pytest.raises(TallystickError, match="internal error"):
            await broker.door().batch([send("poison")], 100)
        assert (await broker.door().batch([send(f"s{number}")], 100))[0] is not None
    assert broker.door().not_ready() is None
    view = broker.door().known_topic("orders")
    assert sum(view.ends) == 5
