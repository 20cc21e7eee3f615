"""A broker that is there and refuses: its callers are told what it said, not only that it did not work out."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
from client_support import Bank, messages_in, pay

import tallystick
from brokers import BrokerProcess, running_broker
from cutting_proxy import lossy_proxy
from tallystick import AsyncClient, Client, errors
from tallystick.core.errors import BrokerUnreachable

NEVER_ENOUGH = 2**60

# A real broker whose every group commit is refused, in the words that the test looks for.
_REFUSES = """
from tallystick.broker.door import BrokerDoor
from tallystick.core import errors

async def refuse(self, ops, weight=0):
    raise errors.{name}("so says the broker")

BrokerDoor.batch = refuse
"""
WORDS = {
    "StorageFull": "disk is nearly full",
    "Busy": "so says the broker",
    "Draining": "so says the broker",
    "StorageFailed": "so says the broker",
}


@contextlib.contextmanager
def refusing(name: str) -> Iterator[BrokerProcess]:
    if name == "StorageFull":
        with running_broker(min_free_bytes=NEVER_ENOUGH) as broker:
            yield broker
    else:
        with running_broker(prelude=_REFUSES.format(name=name)) as broker:
            yield broker


@pytest.fixture(params=sorted(WORDS), scope="module")
def refusal(request: pytest.FixtureRequest) -> Iterator[tuple[BrokerProcess, type[errors.TallystickError], str]]:
    with refusing(request.param) as broker:
        yield broker, getattr(errors, request.param), WORDS[request.param]


Refusal = tuple[BrokerProcess, type[errors.TallystickError], str]


@pytest.mark.parametrize("options", [{}, {"mode": "consumer-dedup"}, {"gid": "its-own"}], ids=str)
def test_a_block_raises_what_the_broker_said(refusal: Refusal, bank: Bank, topic: str, options: dict[str, str]) -> None:
    broker, kind, words = refusal
    with Client(broker.url, group="g", timeout=1.5) as ts, pytest.raises(kind, match=words) as raised:
        pay(ts, bank, topic, 1, **options)
    assert type(raised.value) is kind
    assert raised.value.retryable
    assert bank.notes() == []


@pytest.mark.parametrize("level", [1, 2])
def test_send_raises_what_the_broker_said(refusal: Refusal, topic: str, level: int) -> None:
    broker, kind, words = refusal
    with Client(broker.url, timeout=1.5) as ts, pytest.raises(kind, match=words) as raised:
        ts.send(topic, 1, level=level)
    assert type(raised.value) is kind


async def test_the_asynchronous_client_raises_what_the_broker_said(refusal: Refusal, topic: str) -> None:
    broker, kind, words = refusal
    async with AsyncClient(broker.url, group="g", timeout=1.5) as ts:
        for work in (ts.send(topic, 1), ts.prepare("its-own", [tallystick.outgoing(topic, 1)])):
            with pytest.raises(kind, match=words) as raised:
                await work
            assert type(raised.value) is kind


def test_brokers_that_all_refuse_for_one_reason_are_told_as_one(refusal: Refusal, bank: Bank, topic: str) -> None:
    broker, kind, words = refusal
    addresses = [broker.url, broker.url.replace("127.0.0.1", "localhost")]
    with Client(addresses, group="g", timeout=3) as ts, pytest.raises(kind, match=words):
        pay(ts, bank, topic, 1)
    mixed = Client([broker.url, "http://127.0.0.1:9"], group="g", timeout=3)
    with mixed as ts, pytest.raises(errors.BrokerUnavailable, match=words):
        pay(ts, bank, topic, 1)
    assert bank.notes() == []


def test_a_full_disk_is_not_waited_for_as_long_as_an_absent_broker(bank: Bank, topic: str) -> None:
    """Meanwhile the block holds its locks, and a disk does not become empty in the time that a caller has."""
    with refusing("StorageFull") as broker, Client(broker.url, group="g", timeout=600) as ts:
        began = time.monotonic()
        with pytest.raises(errors.StorageFull, match="nearly full"):
            pay(ts, bank, topic, 1)
        assert time.monotonic() - began < 120
        assert bank.notes() == []


def test_a_disk_that_is_full_for_a_moment_is_not_noticed(bank: Bank, topic: str) -> None:
    prelude = """
from tallystick.broker.writer import SpaceGuard
looks = iter([False] * 3)
SpaceGuard.enough = lambda self: next(looks, True)
"""
    with running_broker(prelude=prelude) as broker, Client(broker.url, group="g") as ts:
        pay(ts, bank, topic, 1)
    assert bank.notes() == ["paid"]


# The disk is full as soon as the first message has been stored.
_FULL_AFTER_ONE = """
from tallystick.broker import writer
from tallystick.core.ops import Send

stored = []
write = writer.Writer._write

def noted(self, ops, made):
    results = write(self, ops, made)
    stored.extend(op for op in ops if isinstance(op, Send))
    return results

writer.Writer._write = noted
writer.SpaceGuard.enough = lambda self: not stored
"""


def test_what_may_have_happened_stays_uncertain_when_a_refusal_follows(topic: str) -> None:
    """The first answer was lost on the way; that the disk is full now says nothing about what happened before."""
    with running_broker(prelude=_FULL_AFTER_ONE) as broker, lossy_proxy(broker.port) as proxy:
        proxy.losing, proxy.lose_at_most = b"\xa4send", 1
        with Client(proxy.url) as ts, pytest.raises(errors.BrokerUnavailable, match="may have acted") as told:
            ts.send(topic, 1)
        assert "nearly full" in str(told.value)
        assert not isinstance(told.value, BrokerUnreachable)
        assert len(messages_in(broker.url, topic)) == 1
