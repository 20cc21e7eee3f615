"""Messages whose local transaction is in Redis: dtm's six cases, with a real broker that asks the decider."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.retry import Retry

from brokers import BrokerProcess, running_broker
from cutting_proxy import cutting_proxy
from servers import RedisServer
from tallystick import BrokerUnavailable, Client, outgoing
from tallystick.barrier import AlreadyDecided
from tallystick.barrier.redis import NotEnough, RedisBarrier, RedisDecider


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with running_broker(check_after="500ms", check_interval="300ms") as process:
        yield process


class Sale:
    """A service that sells units of a stock in Redis and announces each sale."""

    def __init__(self, ts: Client, redis: Redis) -> None:
        self.ts, self.redis = ts, redis
        self.stock, self.topic = f"stock-{uuid.uuid4().hex}", f"sold-{uuid.uuid4().hex}"
        redis.set(self.stock, 2)

    def sell(self, gid: str, client: Redis | None = None) -> None:
        self.ts.prepare(gid, [outgoing(self.topic, gid)], source="redis")
        try:
            RedisBarrier(client or self.redis, gid).adjust(self.stock, -1)
        except (NotEnough, AlreadyDecided):
            self.ts.rollback(gid)
            raise
        self.ts.commit(gid)

    def outcome(self, gid: str) -> str:
        """As soon as there is one."""
        deadline = time.monotonic() + 20
        while (outcome := self.ts.outcome(gid)) is None:
            assert time.monotonic() < deadline, f"{gid} is still undecided"
            time.sleep(0.05)
        return outcome

    def state(self) -> tuple[int, list[str]]:
        """The stock, and the sales that were announced."""
        known = {topic.name for topic in self.ts.topics()}
        messages = self.ts.receive(self.topic, "looking") if self.topic in known else []
        return int(self.redis.get(self.stock) or 0), [message.value.decode() for message in messages]


@pytest.fixture
def sale(broker: BrokerProcess, redis: RedisServer) -> Iterator[Sale]:
    with contextlib.closing(redis.connect()) as client:
        group = f"group-{uuid.uuid4().hex}"
        with Client(broker.url, group=group, deciders={"redis": RedisDecider(client)}) as ts:
            yield Sale(ts, client)


def test_done_and_committed(sale: Sale, gid: str) -> None:
    sale.sell(gid)
    assert (sale.outcome(gid), sale.state()) == ("committed", (1, [gid]))


def test_the_effect_says_no(sale: Sale, gid: str) -> None:
    sale.redis.set(sale.stock, 0)
    with pytest.raises(NotEnough):
        sale.sell(gid)
    assert (sale.outcome(gid), sale.state()) == ("rolled_back", (0, []))


def test_the_effect_comes_after_the_check_back(sale: Sale, gid: str) -> None:
    assert RedisDecider(sale.redis).decide(gid) == "rolled_back"
    with pytest.raises(AlreadyDecided):
        sale.sell(gid)
    assert (sale.outcome(gid), sale.state()) == ("rolled_back", (2, []))


def test_the_prepare_fails(sale: Sale, gid: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with Client(f"http://127.0.0.1:{unused.getsockname()[1]}", group="nobody", timeout=1) as ts:
            lonely = Sale(ts, sale.redis)
            with pytest.raises(BrokerUnavailable):
                lonely.sell(gid)
            assert (sale.redis.get(lonely.stock), sale.redis.get(f"{gid}-00-msg-01")) == (b"2", None)


def test_the_effect_fails_and_the_broker_asks(sale: Sale, gid: str) -> None:
    good, sale.stock = sale.stock, f"{sale.stock}-list"
    sale.redis.rpush(sale.stock, 1)
    with pytest.raises(ResponseError):
        sale.sell(gid)
    outcome, sale.stock = sale.outcome(gid), good
    assert (outcome, sale.state()) == ("rolled_back", (2, []))


def test_the_effect_is_done_but_its_answer_is_lost_and_the_broker_asks(
    sale: Sale, redis: RedisServer, gid: str
) -> None:
    # Redis knows the script from now on, so that what is cut is the effect and not the question for the script.
    sale.redis.incr(sale.stock)
    assert RedisBarrier(sale.redis, f"{gid}-before").adjust(sale.stock, -1) == "done"
    with cutting_proxy(redis.port) as proxy:
        once: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
        with contextlib.closing(Redis(redis.host, proxy.port, **once)) as client:
            client.ping()
            proxy.arm("after")
            with pytest.raises(RedisConnectionError):
                sale.sell(gid, client)
    assert (sale.outcome(gid), sale.state()) == ("committed", (1, [gid]))


def test_a_process_that_dies_after_the_last_unit_has_its_sale_and_a_retry_changes_nothing(sale: Sale, gid: str) -> None:
    sale.redis.set(sale.stock, 1)
    sale.ts.prepare(gid, [outgoing(sale.topic, gid)], source="redis")
    RedisBarrier(sale.redis, gid).adjust(sale.stock, -1)
    assert sale.outcome(gid) == "committed"  # nobody committed: the broker asked
    assert RedisBarrier(sale.redis, gid).adjust(sale.stock, -1) == "duplicate"
    assert sale.state() == (0, [gid])


def test_another_member_with_the_decider_answers_for_one_that_is_gone(
    broker: BrokerProcess, redis: RedisServer, gid: str
) -> None:
    group = f"group-{uuid.uuid4().hex}"
    with contextlib.closing(redis.connect()) as client:
        with Client(broker.url, group=group) as gone:
            sale = Sale(gone, client)
            gone.prepare(gid, [outgoing(sale.topic, gid)], source="redis")
            RedisBarrier(client, gid).adjust(sale.stock, -1)
        with Client(broker.url, group=group, deciders={"redis": RedisDecider(client)}) as ts:
            sale.ts = ts
            assert (sale.outcome(gid), sale.state()) == ("committed", (1, [gid]))
