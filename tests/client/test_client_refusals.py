"""A broker that is there and refuses: its callers are told what it said, not only that it did not work out."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client_support import Bank, messages_in, pay

import tallystick
from brokers import BrokerProcess, running_broker
from cutting_proxy import lossy_proxy
from tallystick import AsyncClient, Client, errors
from tallystick.barrier import create_tables
from tallystick.barrier.adapters.recognition import adapt
from tallystick.client.transactions import local
from tallystick.core.errors import BrokerUnreachable

# A real broker whose disk is full while a file is there: one that finds its disk full at its start is not ready.
_FULL = """
from pathlib import Path
from tallystick.broker.writer import SpaceGuard

looks = iter([False] * {looks})
SpaceGuard.enough = lambda self: not Path({flag!r}).exists() or next(looks, True)
"""
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
        with filling() as broker:
            yield broker
    else:
        with running_broker(prelude=_REFUSES.format(name=name)) as broker:
            yield broker


@contextlib.contextmanager
def filling(looks: int = 10**6) -> Iterator[BrokerProcess]:
    """A broker whose disk becomes full once it is ready, for so many looks at it."""
    with tempfile.TemporaryDirectory() as directory:
        flag = Path(directory, "full")
        with running_broker(prelude=_FULL.format(looks=looks, flag=str(flag))) as broker:
            flag.touch()
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
    with filling(looks=3) as broker, Client(broker.url, group="g") as ts:
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


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_block_that_fails_before_an_early_prepare_undoes_what_it_can(
    broker: BrokerProcess, tmp_path: Path, autocommit: bool
) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None if autocommit else "DEFERRED")
    create_tables(connection)
    connection.execute("create table note (what text)")
    with Client(broker.url, group="early-mistakes") as ts:
        with pytest.raises(errors.InvalidRequest, match="unless the connection is in autocommit mode"):
            _change_and_send(ts, connection, "forgotten")
        with pytest.raises(ZeroDivisionError):
            _change_and_send(ts, connection, "failed", fail=True)
        with ts.transaction(connection) as tx:
            connection.execute("insert into note values ('next')")
            tx.send("early-mistakes", "next")
    lost = [("forgotten",), ("failed",)] if autocommit else []
    assert connection.execute("select what from note").fetchall() == [*lost, ("next",)]
    connection.close()


def _change_and_send(ts: Client, connection: sqlite3.Connection, what: str, fail: bool = False) -> None:
    with ts.transaction(connection, prepare="early") as tx:
        connection.execute("insert into note values (?)", (what,))
        tx.send("early-mistakes", what)
        if fail:
            raise ZeroDivisionError


def test_what_is_left_of_a_closed_connection_keeps_nothing_from_being_undone(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its block was dropped without an end, and a new connection has the number of the old one."""
    connection = sqlite3.connect(tmp_path / "shop.db")
    create_tables(connection)
    connection.execute("create table note (what text)")
    dropped = weakref.ref(local.LocalTransaction(adapt(connection)))
    stale = local._Begun(dropped, "stale", threading.current_thread(), None)
    monkeypatch.setitem(local._open, id(connection), stale)
    with Client(broker.url, group="early-mistakes") as ts, pytest.raises(ZeroDivisionError):
        _change_and_send(ts, connection, "failed", fail=True)
    assert connection.execute("select what from note").fetchall() == []
    connection.close()


def test_an_early_block_inside_another_block_undoes_nothing_of_it(broker: BrokerProcess, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    create_tables(connection)
    connection.execute("create table note (what text)")
    with Client(broker.url, group="early-mistakes") as ts, ts.transaction(connection) as tx:
        connection.execute("insert into note values ('outer')")
        with pytest.raises(ZeroDivisionError):
            _change_and_send(ts, connection, "inner", fail=True)
        tx.send("early-mistakes", "outer")
    assert ("outer",) in connection.execute("select what from note").fetchall()
    connection.close()


def test_nothing_is_sent_in_a_block_that_has_not_begun(broker: BrokerProcess, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    with Client(broker.url, group="g") as ts:
        tx = ts.transaction(connection)
        with pytest.raises(errors.InvalidRequest, match=r"with ts\.transaction\(conn\) as tx"):
            tx.send("t", 1)
    connection.close()


@pytest.mark.parametrize("urls", [None, 5, ["http://a", None]])
def test_what_is_no_address_is_refused_by_name(urls: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="urls") as refused:
        Client(urls, group="g")
    assert refused.value.field == "urls"


@pytest.mark.parametrize("name", ["timeout", "commit_wait"])
def test_a_time_is_a_number(name: str) -> None:
    with pytest.raises(errors.InvalidRequest, match=f"{name}: '5s' is not a time in seconds"):
        Client(**{name: "5s"})


def test_a_topic_is_a_text() -> None:
    with Client(group="g") as ts:
        for wrong in (5, None):
            with pytest.raises(errors.InvalidRequest, match=rf"topic {wrong} \(not a text\) is not a valid name"):
                ts.send(wrong, 1)  # type: ignore[arg-type]
        with pytest.raises(errors.InvalidRequest, match="topic"):

            @ts.subscribe  # type: ignore[arg-type]
            def handler(message: Any) -> None: ...
